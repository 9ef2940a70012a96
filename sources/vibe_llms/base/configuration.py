"""Merges TOML files, the environment, and command-line options into one frozen `Configuration`.

Only this module knows where files are: the included ones, in a checkout or an installation, and the
user's. Nothing is ever read from the current directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar, cast, get_args

import msgspec
from msgspec import Meta, Struct, ValidationError

from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.base.files import (
    LARGEST_SETTINGS,
    UntrustedFile,
    parse_toml,
    read_file,
    read_trusted,
)
from vibe_llms.base.registries import Row

T = TypeVar("T")
Tree = dict[str, Any]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Number: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]

ENVIRONMENT_PREFIX = "VIBE_LLMS_"
_HOME_VARIABLE = "VIBE_LLMS_HOME"
#: An environment variable in a value and its default, which may contain another variable.
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-((?:[^{}]|\$\{[^{}]*\})*))?\}")
#: The user of the command line and of programs, whose data is in the home folder itself.
LOCAL = "local"
#: The table of the archive's backend, which is a single row.
ARCHIVE = "archive"
#: The table of the rows that the tool `search` can ask.
SEARCH_ENGINES = "search-engines"
#: The table of the readers of other programs' conversations.
IMPORTERS = "importers"


class Places(Struct, frozen=True):
    """Paths of the user's files."""

    configuration: Path
    data: Path
    state: Path

    @classmethod
    def under(cls, folder: Path) -> Self:
        """Return places that are all in one folder, as under `VIBE_LLMS_HOME`."""
        folder = folder.expanduser().absolute()
        return cls(folder, folder, folder)

    @property
    def configuration_file(self) -> Path:
        """The user's own `config.toml`, which may not exist."""
        return self.configuration / "config.toml"

    @property
    def keys_file(self) -> Path:
        """The key file, mode 0600, which may not exist."""
        return self.configuration / "keys.toml"

    @property
    def skills(self) -> Path:
        """The folder of the user's own skills, which may not exist."""
        return self.configuration / "skills"

    @property
    def users(self) -> Path:
        """The folder with the homes of all users except `local`."""
        return self.data / "users"

    @property
    def history_file(self) -> Path:
        """The input history of the chat."""
        return self.state / "history"


class StorageSettings(
    Struct, frozen=True, rename="kebab", forbid_unknown_fields=True, omit_defaults=True
):
    """Settings of `[storage]`: how conversations are stored."""

    durability: Literal["safe", "fast"] = "safe"
    inline_bytes: Number = 1024
    line_bytes: Positive = 16 * 1024 * 1024
    lock_seconds: Annotated[float, Meta(ge=0)] = 10.0


class StreamSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Timeouts and retries: `[stream]`, and the same keys in a provider's row."""

    connect_seconds: Seconds = 10.0
    first_byte_seconds: Seconds = 120.0
    idle_seconds: Seconds = 60.0
    reply_seconds: Seconds = 600.0
    reply_bytes: Positive = 128 * 1024 * 1024
    retries: Number = 2
    retry_wait_seconds: Annotated[float, Meta(ge=0)] = 60.0


#: Method of offering tools to the model.
ToolMode: TypeAlias = Literal["auto", "native", "contract", "off"]


#: Use of memory in a conversation: automatic, or through tools for the model.
MemoryMode: TypeAlias = Literal["automatic", "tools"]


class ToolSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Settings of `[tools]`: how tools are offered, and limits on a turn's tool calls."""

    mode: ToolMode = "auto"
    max_rounds: Number = 10
    max_calls: Number = 50
    identical_calls: Positive = 3
    timeout_seconds: Seconds = 60.0
    agent_depth: Positive = 3
    parallel: Positive = 16
    shown_bytes: Positive = 32 * 1024
    kept_bytes: Positive = 16 * 1024 * 1024


#: Whether a conversation is compacted automatically, after asking the user, or only on request.
ContextMode: TypeAlias = Literal["auto", "ask", "off"]
Share: TypeAlias = Annotated[float, Meta(gt=0, le=1)]


class ContextSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Settings of `[context]`: when a conversation is compacted, and to which size.

    `compact_at` and `compact_to` are shares of the model's context window.
    """

    mode: ContextMode = "auto"
    compact_at: Share = 0.8
    compact_to: Share = 0.4


class SkillSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Settings of `[skills]`: folders of skills besides the user's own."""

    folders: tuple[str, ...] = ()


class WebSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Settings of `[web]`: which web addresses are fetched, and limits on each.

    `allow_hosts` are hosts, with or without a port, that may have private addresses.
    """

    allow_hosts: tuple[str, ...] = ()
    proxy: bool = False
    redirects: Number = 5
    page_bytes: Positive = 16 * 1024 * 1024
    page_seconds: Seconds = 30.0


class RunSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Settings of `[runs]`: when another process takes over a run, and how long events are kept."""

    lease_seconds: Annotated[float, Meta(ge=0.2)] = 15.0
    parallel: Positive = 64
    events_days: Annotated[float, Meta(ge=0)] = 7.0
    answer_seconds: Annotated[float, Meta(ge=0)] = 120.0


#: Period of a budget. Begins with the hour, the day, the week on Monday, or the month, in UTC.
BudgetPeriod: TypeAlias = Literal["hour", "day", "week", "month", "total"]


class Budget(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Limit on each user's usage in a period; `money` is in US dollars."""

    tokens: Positive | None = None
    money: Annotated[float, Meta(gt=0)] | None = None
    period: BudgetPeriod = "day"

    def __bool__(self) -> bool:
        return self.tokens is not None or self.money is not None


class BudgetSettings(Budget, frozen=True):
    """Settings of `[budgets]`: the budget of each user, and exceptions for single users.

    A request that does not fit next to the running ones waits up to `wait_seconds`. A reply with
    fewer than `least_output_tokens` left is refused.
    """

    users: dict[str, Budget] = {}
    wait_seconds: Annotated[float, Meta(ge=0)] = 5.0
    least_output_tokens: Positive = 256

    def find(self, user: str) -> Budget:
        """Return the budget of a user; it is false if it has no limits."""
        return self.users.get(user, self)


class RateLimit(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Limit on each user's requests and tokens in any minute."""

    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None

    def __bool__(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


class LimitSettings(RateLimit, frozen=True):
    """Settings of `[limits]`: the limit of each user, and exceptions for single users."""

    users: dict[str, RateLimit] = {}

    def find(self, user: str) -> RateLimit:
        """Return the limit of a user; it is false if nothing is limited."""
        return self.users.get(user, self)


#: Keys of a provider's row that other modules read; used in suggestions for typos.
ROW_KEYS = (
    *("module", "factory", "enabled", "credential", "api-key-environment", "api-key-command"),
    *("default-model", "known-models", "models", "controls", "prices", "install", "import-seconds"),
    *("fallback", "requests-per-minute", "tokens-per-minute"),
    *StreamSettings.__struct_encode_fields__,
)


class TelemetrySettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Settings of `[telemetry]`: whether spans, metrics, and message contents are recorded."""

    enabled: bool = False
    content: bool = False


class Layer(Struct, frozen=True):
    """One source of settings: a file, the environment, or the caller."""

    origin: str
    tree: Tree


class Configuration(Struct, frozen=True):
    """All settings, merged, with the origin of each."""

    places: Places
    layers: tuple[Layer, ...]
    tree: Tree
    storage: StorageSettings
    stream: StreamSettings
    tools: ToolSettings
    default_model: str
    aliases: Mapping[str, str]
    controls: Mapping[str, Any]
    archive: Mapping[str, Any] = {}
    memory: Mapping[str, Any] = {}
    documents: Mapping[str, Any] = {}
    server: Mapping[str, Any] = {}
    web: WebSettings = WebSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    runs: RunSettings = RunSettings()
    budgets: BudgetSettings = BudgetSettings()
    limits: LimitSettings = LimitSettings()
    context: ContextSettings = ContextSettings()
    skills: SkillSettings = SkillSettings()
    offline: bool = False
    local_servers: bool = True

    @property
    def memory_enabled(self) -> bool:
        """True if chats use memory by default."""
        enabled = self.memory.get("enabled", False)
        if not isinstance(enabled, bool):
            raise self.error("must be true or false", "memory", "enabled")
        return enabled

    @property
    def memory_mode(self) -> MemoryMode:
        """Use of memory in a conversation; read here to avoid loading a memory module."""
        mode = self.memory.get("mode", "automatic")
        if mode not in get_args(MemoryMode):
            raise self.error("must be 'automatic' or 'tools'", "memory", "mode")
        return cast("MemoryMode", mode)

    @property
    def memory_waits(self) -> bool:
        """True if a single question at the terminal waits until the turn is remembered."""
        wait = self.memory.get("wait", False)
        if not isinstance(wait, bool):
            raise self.error("must be true or false", "memory", "wait")
        return wait

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the enabled rows of a registry's table, in file order."""
        for name, entry in self._table(table).items():
            enabled = entry.get("enabled", True)
            if not isinstance(enabled, bool):
                raise self.error("must be true or false", *_split(table), name, "enabled")
            if enabled:
                yield self.row(table, name)

    def row(self, table: str, name: str) -> Row:
        """Return one row, enabled or not; without `table`, the row is the table `[name]` itself."""
        entry = dict(self._table(table)[name])
        path = (*_split(table), name)
        entry.pop("enabled", None)
        module, factory = entry.pop("module", ""), entry.pop("factory", "")
        if not isinstance(module, str) or not module:
            raise self.error('a row needs a module = "..."', *path)
        if not isinstance(factory, str):
            raise self.error("factory must be a string", *path, "factory")
        return Row(name, module, factory, entry, self._origin((*path, "module")))

    def _table(self, table: str) -> Tree:
        """Return a table by its dotted name; empty if missing."""
        tree = self.tree
        for key in _split(table):
            tree = tree.get(key, {})
        return tree

    def is_of_the_user(self, table: str, name: str) -> bool:
        """Return True if the user, rather than the included settings, defines a row."""
        return any(_contains(layer.tree, (table, name)) for layer in self.layers[1:])

    def read(self, cls: type[T], values: Mapping[str, Any], *path: str) -> T:
        """Convert the values at a path to the type `cls`.

        Raises `ConfigurationError` with the file, table, and key of an invalid value.
        """
        try:
            return msgspec.convert(values, cls)
        except ValidationError as error:
            further = ROW_KEYS if path[:-1] == ("providers",) else ()
            message, keys = _locate(error, values, cls, further)
            raise self.error(message, *path, *keys) from error

    def error(self, message: str, *path: str) -> ConfigurationError:
        """Return a `ConfigurationError` about the value at a path, with the file that sets it.

        If only the included defaults set it, the error names the user's file, where it can be
        changed.
        """
        origin = self._origin(path)
        shipped = bool(self.layers) and origin == self.layers[0].origin
        return ConfigurationError(
            message,
            file=str(self.places.configuration_file) if shipped else origin,
            table=".".join(path[:-1]),
            key=path[-1],
            path=path,
        )

    def _origin(self, path: tuple[str, ...]) -> str:
        for depth in range(len(path), 0, -1):
            for layer in reversed(self.layers):
                if _contains(layer.tree, path[:depth]):
                    return layer.origin
        return ""


class _Settings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    storage: StorageSettings = StorageSettings()
    stream: StreamSettings = StreamSettings()
    tools: ToolSettings = ToolSettings()
    offline: bool | Literal[0, 1] = False
    local_servers: bool | Literal[0, 1] = True
    default_model: str = ""
    aliases: dict[str, str] = {}
    controls: dict[str, Any] = {}
    providers: dict[str, dict[str, Any]] = {}
    ensembles: dict[str, dict[str, Any]] = {}
    agents: dict[str, dict[str, Any]] = {}
    embedders: dict[str, dict[str, Any]] = {}
    search_engines: dict[str, dict[str, Any]] = {}
    importers: dict[str, dict[str, Any]] = {}
    archive: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    documents: dict[str, Any] = {}
    server: dict[str, Any] = {}
    web: WebSettings = WebSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    runs: RunSettings = RunSettings()
    budgets: BudgetSettings = BudgetSettings()
    limits: LimitSettings = LimitSettings()
    context: ContextSettings = ContextSettings()
    skills: SkillSettings = SkillSettings()


def shipped_folder() -> Path:
    """Return the library's `data/` folder, in an installation or a checkout."""
    here = Path(__file__).resolve().parent
    installed = here.parent / "data"
    return installed if installed.is_dir() else here.parents[2] / "data"


def find_places(environment: Mapping[str, str] | None = None) -> Places:
    """Return the paths of the user's files: in `VIBE_LLMS_HOME`, or the platform's defaults."""
    environment = os.environ if environment is None else environment
    if home := environment.get(_HOME_VARIABLE):
        folder = Path(os.path.expanduser(home))
        if not folder.is_absolute():
            raise ConfigurationError(
                f"{home!r} is not an absolute path", file="environment", key=_HOME_VARIABLE
            )
        return Places.under(folder)
    from platformdirs import PlatformDirs

    folders = PlatformDirs("vibe-llms", appauthor=False)
    return Places(folders.user_config_path, folders.user_data_path, folders.user_state_path)


def load_configuration(
    places: Places | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Configuration:
    """Merge the included defaults, the user's file, the environment, and `overrides`, in order.

    Tables merge by key at every depth; scalars and arrays replace. Raises `ConfigurationError` for
    invalid TOML, an unknown key, or a value of the wrong type.
    """
    places = places or find_places(environment)
    layers = read_layers(places, environment)
    if overrides:
        layers = (*layers, Layer("the options", dict(overrides)))
    return assemble(places, layers)


def read_layers(places: Places, environment: Mapping[str, str] | None = None) -> tuple[Layer, ...]:
    """Return the included defaults, the user's file, and the environment, unmerged."""
    environment = os.environ if environment is None else environment
    shipped = shipped_folder() / "configuration" / "general.toml"
    layers = [Layer(str(shipped), read_toml(shipped))]
    if text := read_settings(places.configuration_file):
        tree = parse_settings(text, places.configuration_file)
        layers.append(Layer(str(places.configuration_file), tree))
    merged = _merge_all(layers)
    layers.extend(_environment_layers(environment, merged))
    return tuple(layers)


def read_toml(path: Path, *, trusted: bool = False, limit: int = LARGEST_SETTINGS) -> Tree:
    """Return a TOML file as a tree; `ConfigurationError` names the file, line, and column.

    A `trusted` file decides what runs as this user: only the user and root may have written it.
    """
    return parse_settings(_read(path, trusted=trusted, limit=limit), path)


def read_settings(path: Path) -> bytes:
    """Return the bytes of the user's configuration file; empty if it does not exist."""
    try:
        os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", file=str(path)) from error
    return _read(path, trusted=True)


def _read(path: Path, *, trusted: bool, limit: int = LARGEST_SETTINGS) -> bytes:
    try:
        return read_trusted(path, limit) if trusted else read_file(path, limit)
    except UntrustedFile as error:
        raise ConfigurationError(str(error.strerror), file=str(error.filename)) from error
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", file=str(path)) from error


def parse_settings(data: bytes, path: Path) -> Tree:
    """Parse the text of a file; raises `ConfigurationError` if it is not valid TOML."""
    try:
        return parse_toml(data)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"not UTF-8 text: {error}", file=str(path)) from error
    except ValueError as error:
        raise ConfigurationError(f"not valid TOML: {error}", file=str(path)) from error


def assemble(places: Places, layers: tuple[Layer, ...]) -> Configuration:
    """Merge all layers into a `Configuration`."""
    tree = _merge_all(layers)
    bare = Configuration(
        places, layers, tree, StorageSettings(), StreamSettings(), ToolSettings(), "", {}, {}
    )
    settings = bare.read(_Settings, tree)
    return msgspec.structs.replace(
        bare,
        storage=settings.storage,
        stream=settings.stream,
        tools=settings.tools,
        default_model=settings.default_model,
        aliases=settings.aliases,
        controls=settings.controls,
        archive=settings.archive,
        memory=settings.memory,
        documents=settings.documents,
        server=settings.server,
        web=settings.web,
        runs=settings.runs,
        budgets=settings.budgets,
        limits=settings.limits,
        context=settings.context,
        skills=settings.skills,
        telemetry=settings.telemetry,
        offline=bool(settings.offline),
        local_servers=bool(settings.local_servers),
    )


def _split(table: str) -> Sequence[str]:
    return table.split(".") if table else ()


def _merge_all(layers: list[Layer] | tuple[Layer, ...]) -> Tree:
    tree: Tree = {}
    for layer in layers:
        tree = merge(tree, layer.tree)
    return tree


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Tree:
    """Merge `upper` over `lower`: tables by key at every depth, anything else replaced.

    >>> merge({"a": {"b": 1, "c": [1]}}, {"a": {"c": [2]}})
    {'a': {'b': 1, 'c': [2]}}
    """
    tree = dict(lower)
    for key, value in upper.items():
        under = tree.get(key)
        tree[key] = (
            merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
        )
    return tree


def _environment_layers(environment: Mapping[str, str], known: Tree) -> Iterator[Layer]:
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or name == _HOME_VARIABLE:
            continue
        path = _setting_path(name.removeprefix(ENVIRONMENT_PREFIX), known)
        tree: Tree = {path[-1]: parse_value(text)}
        for part in reversed(path[:-1]):
            tree = {part: tree}
        yield Layer(f"environment {name}", tree)


def _setting_path(name: str, known: Tree) -> list[str]:
    # `_` can mean `-` or `_`: an existing key decides, otherwise it is `-`.
    path: list[str] = []
    level: object = known
    for part in name.split("__"):
        wanted = part.lower()
        keys = level if isinstance(level, dict) else {}
        found = next((key for key in keys if key.lower().replace("-", "_") == wanted), None)
        path.append(found or wanted.replace("_", "-"))
        level = keys.get(found) if found else None
    return path


def parse_value(text: str) -> Any:
    """Parse a value from outside a file as TOML, or return it as a string.

    >>> parse_value("3"), parse_value("[1, 2]"), parse_value("some words")
    (3, [1, 2], 'some words')
    """
    try:
        tree = parse_toml(f"value = {text}".encode())
    except ValueError:
        return text
    # Text with several lines could contain more than one value.
    return tree["value"] if len(tree) == 1 else text


def fill_variables(text: str, environment: Mapping[str, str]) -> str:
    """Replace `${NAME}` and `${NAME:-else}` with the values of environment variables.

    Raises `KeyError` for an unset variable without a default. Values are not expanded again.

    >>> fill_variables("${HOST:-${NAME:-localhost}}:${PORT:-80}", {"NAME": "box", "PORT": ""})
    'box:80'
    """

    def fill(found: re.Match[str]) -> str:
        name, otherwise = found.groups()
        if environment.get(name) or otherwise is None:
            return environment[name]
        return fill_variables(otherwise, environment)

    return VARIABLE.sub(fill, text)


def _locate(
    error: ValidationError, values: Mapping[str, Any], cls: type, further: Sequence[str]
) -> tuple[str, list[str]]:
    """Return the message of an error and the keys to its value, which msgspec reports only partly.

    `further` are keys that other modules read, for suggestions.
    """
    message, _, at = str(error).partition(" - at `$")
    keys: list[str] = []
    for key in re.findall(r"[^.\[\]`]+|\.\.\.", at):
        keys.append(_guilty(values, cls, keys) if key == "..." else key)
    if unknown := re.match(r"Object contains unknown field `(.*)`", message):
        names = [*_names_at(cls, keys), *further]
        message = f"unknown key{_suggest(unknown[1], names)}"
        keys.append(unknown[1])
    elif wrong := re.match(r"Invalid enum value '(.*)'", message):
        choices = _choices_at(cls, keys)
        message = f"{wrong[1]!r} is not one of {', '.join(map(repr, choices))}"
    return message, keys


def _suggest(name: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _names_at(cls: type, keys: Sequence[str]) -> Sequence[str]:
    """Return the allowed names in the table at `keys`."""
    return [
        field.encode_name for kind in _types_at(cls, keys) for field in getattr(kind, "fields", ())
    ]


def _choices_at(cls: type, keys: Sequence[str]) -> Sequence[object]:
    return [value for kind in _types_at(cls, keys) for value in getattr(kind, "values", ())]


def _types_at(cls: type, keys: Sequence[str]) -> Sequence[Any]:
    """Return the allowed types at `keys`, as msgspec describes types."""
    from msgspec.inspect import type_info

    kinds: list[Any] = [type_info(cls)]
    for key in keys:
        below: list[Any] = []
        for kind in kinds:
            fields = {field.encode_name: field.type for field in getattr(kind, "fields", ())}
            inner = fields.get(key, getattr(kind, "value_type", getattr(kind, "item_type", None)))
            below += [] if inner is None else getattr(inner, "types", (inner,))
        kinds = below
    return kinds


def _guilty(values: Mapping[str, Any], cls: type, keys: Sequence[str]) -> str:
    """Return the key with the invalid value in the table at `keys`."""
    above: list[tuple[Any, Any]] = []
    table: Any = values
    for key in keys:
        place: Any = int(key) if isinstance(table, list) else key
        above.append((table, place))
        table = table[place]

    def fits(name: str) -> bool:
        tree: Any = {name: table[name]}
        for container, place in reversed(above):
            copy = container.copy()
            copy[place] = tree
            tree = copy
        try:
            msgspec.convert(tree, cls)
        except ValidationError:
            return False
        return True

    return next(str(name) for name in table if not fits(name))


def _contains(tree: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    level: object = tree
    for key in path:
        if not isinstance(level, dict) or key not in level:
            return False
        level = level[key]
    return True
