"""Imports agents from the templates of llm and the roles of aichat.

Nothing of them is run: YAML is read without tags and aliases, and Python code is left out.
Importing again changes nothing, and an agent that differs is replaced only on request.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.agents.aichat_roles import read_role, read_roles
from vibe_llms.agents.definitions import AGENTS, Agent, access_agent, check_agent, refuse_name
from vibe_llms.agents.drafts import AgentDraft, Program
from vibe_llms.agents.llm_templates import read_template
from vibe_llms.base.configuration import (
    Configuration,
    Layer,
    assemble,
    parse_settings,
    read_settings,
)
from vibe_llms.base.configuration_file import add_rows, is_writable
from vibe_llms.base.exceptions import RequestError, VibeLlmsError
from vibe_llms.base.files import LARGEST_SETTINGS, read_file

#: Paths to import: files and folders.
AgentPaths: TypeAlias = str | Path | Iterable[str | Path]
#: Outcome for an agent. `partly` is imported, but something is missing.
AgentStatus: TypeAlias = Literal["imported", "partly", "unchanged", "refused"]
AGENT_STATUSES: tuple[AgentStatus, ...] = get_args(AgentStatus)
#: Finds the provider of a model, or raises `ModelNotFound`.
Locate: TypeAlias = Callable[[str], object]
_ROLES_FILE = "roles.yaml"
_YAML = (".yaml", ".yml")
_MARKDOWN = ".md"


class ImportedAgent(Struct, frozen=True, kw_only=True):
    """One template or role, and what became of it.

    `row` are the keys of its row in `[agents]`, empty if it was refused. `reasons` says what of it
    has no counterpart, or why it was refused.
    """

    name: str
    program: Program
    source: str
    status: AgentStatus
    row: Mapping[str, Any] = {}
    reasons: tuple[str, ...] = ()


class AgentImportReport(Struct, frozen=True, kw_only=True):
    """The result of an import of agents; in a dry run, what it would be.

    `file` is the configuration file, to which the rows were added.
    """

    agents: tuple[ImportedAgent, ...]
    file: str
    dry_run: bool = False

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of agents by status, including those with none."""
        found = Counter(one.status for one in self.agents)
        return {status: found[status] for status in AGENT_STATUSES}


def survey_sources(environment: Mapping[str, str] | None = None) -> Sequence[Path]:
    """Return the existing places where llm keeps templates and aichat keeps roles."""
    from platformdirs import user_config_path

    environment = os.environ if environment is None else environment
    llm = Path(environment.get("LLM_USER_PATH") or user_config_path("io.datasette.llm"))
    if folder := environment.get("AICHAT_CONFIG_DIR"):
        aichat = Path(folder)
    elif folder := environment.get("XDG_CONFIG_HOME"):
        aichat = Path(folder) / "aichat"
    else:
        aichat = user_config_path("aichat")
    places = (
        llm / "templates",
        Path(environment.get("AICHAT_ROLES_DIR") or aichat / "roles"),
        aichat / _ROLES_FILE,
    )
    return [one for one in places if one.exists()]


def import_agents(
    paths: AgentPaths,
    configuration: Configuration,
    *,
    locate: Locate,
    dry_run: bool = False,
    force: bool = False,
) -> AgentImportReport:
    """Import agents into the configuration file; with `force`, replace those that differ.

    A file or an agent that is not valid is refused in the report, and the others are imported.
    """
    file = configuration.places.configuration_file
    own = parse_settings(read_settings(file), file).get(AGENTS, {})
    given = [paths] if isinstance(paths, str | Path) else [*paths]
    found: list[ImportedAgent] = []
    taken: dict[str, str] = {}
    for source in _survey_files(given):
        for one in _read(source, configuration):
            if one.status == "refused":
                found.append(one)
            elif other := taken.get(one.name):
                found.append(_refuse(one, f"{other} has the same name; rename one of them"))
            else:
                taken[one.name] = one.source
                found.append(_decide(one, configuration, own, locate, force=force))
    added = [one for one in found if one.status in ("imported", "partly")]
    if added and not dry_run:
        add_rows(
            file,
            AGENTS,
            {one.name: one.row for one in added},
            remarks={one.name: (f"From {one.program}.", *one.reasons) for one in added},
            replace=force,
        )
    return AgentImportReport(agents=tuple(found), file=str(file), dry_run=dry_run)


def check_row(
    configuration: Configuration, name: str, row: Mapping[str, Any], locate: Locate
) -> Agent:
    """Return the agent of a new row in the configuration file; raise `ConfigurationError`."""
    file = configuration.places.configuration_file
    shipped, *others = configuration.layers
    own = next((one.tree for one in others if one.origin == str(file)), {})
    changed = {**own, AGENTS: {**own.get(AGENTS, {}), name: row}}
    rest = [one for one in others if one.origin != str(file)]
    trial = assemble(configuration.places, (shipped, Layer(str(file), changed), *rest))
    agent = access_agent(trial, name)
    check_agent(trial, agent, locate)
    return agent


def _decide(
    one: ImportedAgent,
    configuration: Configuration,
    own: Mapping[str, Any],
    locate: Locate,
    *,
    force: bool,
) -> ImportedAgent:
    """Return the outcome for an agent, by what is in the configuration already."""
    if problem := refuse_name(one.name):
        return _refuse(one, f"{problem}; rename it in {one.program}")
    if own.get(one.name) == one.row:
        return replace(one, status="unchanged", reasons=())
    if (one.name in own or one.name in configuration.tree.get(AGENTS, {})) and not force:
        return _refuse(one, "an agent with this name exists and differs; --force replaces it")
    if not is_writable(AGENTS, {one.name: one.row}):
        return _refuse(one, "its values cannot be written to the configuration file")
    try:
        check_row(configuration, one.name, one.row, locate)
    except VibeLlmsError as error:
        return _refuse(one, str(error))
    return one


def _refuse(one: ImportedAgent, reason: str) -> ImportedAgent:
    return replace(one, status="refused", row={}, reasons=(reason,))


def _survey_files(paths: Sequence[str | Path]) -> Iterator[Path]:
    """Yield the files of templates and roles, each once."""
    seen: set[Path] = set()
    for given in paths:
        path = Path(os.path.expanduser(given))
        for file in _survey_folder(path) if path.is_dir() else [path]:
            if file.absolute() not in seen:
                seen.add(file.absolute())
                yield file


def _survey_folder(folder: Path) -> Sequence[Path]:
    """Return the files of a folder with templates or roles, or of the folder that has these."""
    inner = [one for one in (folder / "templates", folder / "roles") if one.is_dir()]
    files = [folder / _ROLES_FILE] if (folder / _ROLES_FILE).exists() else []
    for one in inner or ([] if files else [folder]):
        files += [each for each in sorted(one.iterdir()) if each.suffix in (*_YAML, _MARKDOWN)]
    if not files:
        raise RequestError(f"{folder} has no templates of llm (.yaml) and no roles of aichat (.md)")
    return files


def _read(path: Path, configuration: Configuration) -> Iterator[ImportedAgent]:
    """Yield the templates or roles of a file."""
    program: Program = "aichat" if path.suffix == _MARKDOWN or path.name == _ROLES_FILE else "llm"
    # A name of a file need not be UTF-8.
    source, name = (os.fsencode(one).decode("utf-8", "replace") for one in (path, path.stem))
    whole = ImportedAgent(name=name, program=program, source=source, status="refused")
    try:
        drafts = _read_drafts(path, name, program, configuration)
    except UnicodeDecodeError:
        yield _refuse(whole, "it is not UTF-8 text")
    except OSError as error:
        yield _refuse(whole, error.strerror or str(error))
    except ValueError as error:
        yield _refuse(whole, str(error))
    else:
        for draft in drafts:
            if isinstance(draft, AgentDraft):
                status: AgentStatus = "partly" if draft.remarks else "imported"
                yield replace(
                    whole, name=draft.name, status=status, row=draft.row, reasons=draft.remarks
                )
            else:
                yield _refuse(replace(whole, name=draft[0]), draft[1])


def _read_drafts(
    path: Path, name: str, program: Program, configuration: Configuration
) -> Sequence[AgentDraft | tuple[str, str]]:
    if path.suffix not in (*_YAML, _MARKDOWN):
        raise ValueError("it is neither a template of llm (.yaml) nor a role of aichat (.md)")
    data = read_file(path, LARGEST_SETTINGS)
    if b"\0" in data:
        raise ValueError("it is not text")
    if path.name == _ROLES_FILE:
        return [*read_roles(data, configuration)]
    read = read_role if program == "aichat" else read_template
    return [read(name, data, configuration)]
