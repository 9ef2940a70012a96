"""Model attributes from TOML: general patterns first, the most specific one last."""

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import Configuration, merge, read_toml, shipped_folder
from vibe_llms.base.exceptions import ConfigurationError, ControlInvalid
from vibe_llms.messages.controls import ControlRange, Controls

#: Maximum length of a name that patterns are matched with; servers choose names freely.
LONGEST_NAME = 300


class ModelAttributes(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Limits and abilities of a model, with cautious defaults for unknown models.

    `accepts` names the kinds of contents that can be sent besides text: `image`, `audio`, `video`,
    and MIME types of files. `controls` holds the accepted controls and their ranges; if it is
    `None`, all controls that the provider sends are accepted. In TOML, `effort = false` removes a
    control that a more general pattern adds; if the accepted controls are unknown, a row's entries
    are added to all of them. The control `output-tokens` has the maximum `output_tokens`, unless it
    has one of its own. `context_varies` is True if some servers give the model a larger context, so
    that no estimate is a reason to refuse. `native` is for the provider only.
    """

    context_tokens: int | None = None
    context_varies: bool = False
    output_tokens: int | None = None
    default_output_tokens: int | None = None
    request_bytes: int | None = None
    accepts: tuple[str, ...] = ()
    tools: Literal["native", "contract", "none"] = "native"
    reasoning: bool = False
    title: str = ""
    retires: str = ""
    controls: Mapping[str, ControlRange] | None = None
    native: Mapping[str, Any] = {}

    def accept(self, kind: str, mimetype: str = "") -> bool:
        """Return True if contents of a kind, or of a MIME type, can be sent unchanged."""
        return kind in self.accepts or (bool(mimetype) and mimetype in self.accepts)

    def takes(self, control: str) -> bool:
        """Return True if a control, named as in configuration, is sent to the model on request."""
        return self.controls is None or control in self.controls

    def surely_takes(self, control: str) -> bool:
        """Return True if the model is known to accept a control, named as in configuration."""
        return (
            self.controls is not None and control in self.controls and self.controls[control].sure
        )


#: Controls of an unknown model: each one on request.
_CAREFUL: Mapping[str, Any] = {
    name: {"sure": False} for name in Controls.__struct_encode_fields__ if name != "extras"
}
# msgspec 0.22 crashes if two threads are the first to use a type, so use it here first.
msgspec.json.Decoder(ModelAttributes)


class ModelsIntegrator:
    """Lookup of attributes by model name.

    Each layer maps regular expressions, which must match the whole name, to attributes. Within a
    layer, the pattern with more literal characters is more specific and overrides others key by
    key; of two equals the later wins. A later layer overrides an earlier one.

    `sent` names the controls that a provider sends. All models accept these, unless a layer says
    otherwise, and no others. Without it, a model accepts all controls if neither the first layer
    nor its server lists any; later layers add to that.
    """

    def __init__(
        self,
        layers: Iterable[Mapping[str, Mapping[str, Any]]],
        origin: str = "",
        table: str = "models",
        sent: Collection[str] | None = None,
    ) -> None:
        self._origin = origin
        self._table = table
        self._sent = sent
        self._layers = [
            sorted(
                ((self._compile(pattern), entry) for pattern, entry in layer.items()),
                key=lambda item: specificity(item[0].pattern),
            )
            for layer in layers
        ]
        self._known: dict[str, ModelAttributes] = {}

    def integrate(self, model: str, *, further: Mapping[str, Any] | None = None) -> ModelAttributes:
        """Return a model's attributes; `further`, from its server, overrides the shipped ones."""
        if further is None and model in self._known:
            return self._known[model]
        tree: dict[str, Any] = {}
        careful = False
        if self._sent is not None:
            tree["controls"] = {name: {} for name in self._sent}
        for depth, layer in enumerate(self._layers):
            for pattern, entry in layer:
                if pattern.fullmatch(model[:LONGEST_NAME]):
                    tree = merge(tree, entry)
            if depth == 0 and further:
                tree = merge(tree, further)
            if depth == 0:
                careful = "controls" not in tree
        if careful and "controls" in tree:
            tree = {**tree, "controls": {**_CAREFUL, **tree["controls"]}}
        try:
            attributes = msgspec.convert(_given(tree), ModelAttributes)
        except msgspec.ValidationError as error:
            raise ConfigurationError(
                f"invalid attributes of {model!r}: {error}",
                file=self._origin,
                table=self._table,
            ) from error
        if self._sent is not None:
            controls = attributes.controls or {}
            kept = {name: bounds for name, bounds in controls.items() if name in self._sent}
            attributes = msgspec.structs.replace(attributes, controls=kept)
        attributes = _bound_output(attributes)
        self._known[model] = attributes
        return attributes

    def _compile(self, pattern: str) -> re.Pattern[str]:
        try:
            return re.compile(pattern)
        except re.error as error:
            raise ConfigurationError(
                f"{pattern!r} is not a regular expression: {error}",
                file=self._origin,
                table=self._table,
                key=pattern,
            ) from error


def _bound_output(attributes: ModelAttributes) -> ModelAttributes:
    """Return the attributes with the model's limit as the maximum of the control."""
    controls = attributes.controls or {}
    bounds, limit = controls.get("output-tokens"), attributes.output_tokens
    if bounds is None or bounds.maximum is not None or limit is None:
        return attributes
    bounded = msgspec.structs.replace(bounds, maximum=limit)
    return msgspec.structs.replace(attributes, controls={**controls, "output-tokens": bounded})


# Each client of a row sorts the same shipped patterns, and a server has clients of many users.
@functools.lru_cache(4096)
def specificity(pattern: str) -> int:
    """Return the minimum number of literal characters that a regular expression requires.

    >>> [specificity(p) for p in (r"claude-opus-4-5.*", r"claude-(opus|haiku)-4.*", r".*")]
    [15, 13, 0]
    """
    # Flags require nothing. A class matches one of several characters, an escaped one itself.
    pattern = re.sub(r"^\(\?[a-z]+\)", "", pattern)
    plain = re.sub(r"\[\^?\]?[^]]*(?:\]|\Z)|\\[a-zA-Z0-9]", ".", pattern)
    plain = "(" + re.sub(r"\\.", "_", plain) + ")"
    group = re.compile(r"\((?:\?:)?([^()]*)\)([?*]?)")
    while found := group.search(plain):
        shortest = "" if found[2] else min(found[1].split("|"), key=_count_literals)
        plain = plain[: found.start()] + shortest + plain[found.end() :]
    return _count_literals(plain)


def _count_literals(plain: str) -> int:
    return len(re.sub(r".[?*]|[.+^$]|\{[^{}]*\}", "", plain))


def load_attributes(
    configuration: Configuration,
    row: str,
    *files: str | Path,
    sent: Collection[str] | None = None,
) -> ModelsIntegrator:
    """Load the attributes of models: the shipped files, overridden by the user's configuration.

    `anthropic` is `data/providers/anthropic.toml`, and a path is a provider's own file. The
    patterns of several files are combined; of equals, that of the later file wins. The user's
    patterns are in `[providers.ROW.models."PATTERN"]`. For `sent`, see `ModelsIntegrator`.
    """
    shipped: dict[str, Any] = {}
    for file in files:
        if isinstance(file, Path):
            models = _read_models(file)
        else:
            # Tests check these files, so that no start pays for it.
            models = read_toml(shipped_folder() / "providers" / f"{file}.toml").get("models", {})
        shipped = merge(shipped, models)
    own = configuration.tree.get("providers", {}).get(row, {}).get("models", {})
    place = ("providers", row, "models")
    if not isinstance(own, dict):
        raise configuration.error("models must be a table, one for each pattern", *place)
    for pattern, entry in own.items():
        if not isinstance(entry, dict):
            raise configuration.error("the attributes must be a table", *place, pattern)
        configuration.read(ModelAttributes, _given(entry), *place, pattern)
    place_of_own = str(configuration.places.configuration_file)
    return ModelsIntegrator([shipped, own], place_of_own, ".".join(place), sent)


def _read_models(file: Path) -> Mapping[str, Any]:
    """Read the patterns of a plugin's file, or raise a `ConfigurationError` that names the file."""
    models = read_toml(file).get("models", {})
    if not isinstance(models, dict):
        raise ConfigurationError("models must be a table", file=str(file))
    ModelsIntegrator([models], str(file))
    for pattern, entry in models.items():
        if problem := find_problem(entry):
            raise ConfigurationError(problem, file=str(file), table="models", key=pattern)
    return models


def find_problem(entry: object) -> str:
    """Explain why attributes of a model are invalid; return an empty string if they are valid."""
    try:
        msgspec.convert(_given(entry), ModelAttributes)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _given(entry: Any) -> Any:
    """Return the attributes without the controls that they remove."""
    controls = entry.get("controls") if isinstance(entry, Mapping) else None
    if not isinstance(controls, dict):
        return entry
    kept = {name: bounds for name, bounds in controls.items() if bounds is not False}
    return {**entry, "controls": kept}


def settle_controls(
    controls: Controls,
    defaults: Controls,
    attributes: ModelAttributes,
    model: str,
) -> tuple[Controls, tuple[str, ...]]:
    """Return the controls to send, and notices of the defaults that were left out.

    Raise `ControlInvalid` for a control of this call that the model does not accept. A configured
    default that it does not accept is left out with a notice.
    """
    settled = controls.over(defaults)
    given, extras = settled.given(), settled.extras
    if not given and not extras:
        return settled, ()
    for one in (controls, defaults):
        _check_extras(one, model)
    left_out: list[str] = []
    kept: dict[str, Any] = {}
    asked = controls.given()
    for name, value in given.items():
        refusal = _refusal(name, value, attributes)
        if refusal is None:
            kept[name] = value
        elif name in asked:
            raise ControlInvalid(
                f"the control {name!r} cannot be {value!r}: {refusal}",
                control=name,
                model=model,
                unsupported=not attributes.takes(name),
            )
        else:
            left_out.append(f"the configured control {name} = {value!r} is not sent: {refusal}")
    return msgspec.convert({**kept, "extras": extras}, Controls), tuple(left_out)


def _check_extras(controls: Controls, model: str) -> None:
    for row, extra in controls.extras.items():
        words = "" if isinstance(extra, Mapping) else "it must be a table"
        if words := words or _find_foreign(extra):
            raise ControlInvalid(
                f"'extras' for {row!r} cannot be sent: {words}",
                control="extras",
                model=model,
            )


def _find_foreign(value: object) -> str:
    """Explain why a value is not JSON; return an empty string if it is."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        # Lone surrogates are replaced before sending.
        return ""
    except (TypeError, ValueError, RecursionError) as error:
        return str(error)
    return ""


def _refusal(name: str, value: object, attributes: ModelAttributes) -> str | None:
    try:
        msgspec.convert({name: value}, Controls)
    except msgspec.ValidationError as error:
        return str(error).partition(" - at ")[0]
    if words := _find_foreign(value):
        return words
    if attributes.controls is None:
        return None
    if name not in attributes.controls:
        taken = ", ".join(sorted(attributes.controls)) or "none"
        return f"this model does not accept it (it accepts: {taken})"
    return attributes.controls[name].refusal(value)
