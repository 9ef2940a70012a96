"""The text of a `SKILL.md`: YAML front matter, then Markdown.

The format is that of https://agentskills.io/specification, and the verdicts are those of its
reference reader, `skills-ref` 0.1.1. What that reader refuses without need does not keep a skill
from being offered here: such a departure is a remark instead of a problem.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

Value: TypeAlias = "str | list[Value] | dict[str, Value]"

_BOM = b"\xef\xbb\xbf"
_NAME_CHARACTERS = 64
_DESCRIPTION_CHARACTERS = 1024
_COMPATIBILITY_CHARACTERS = 500
_FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
#: A field of some programs, with which only the user may call for a skill.
_USERS_ONLY = "disable-model-invocation"
_DEEPEST = 10
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)(.*)", re.DOTALL | re.MULTILINE)


class SkillText(Struct, frozen=True, kw_only=True):
    """The parts of a `SKILL.md`; a skill with a `problem` is not offered.

    `remarks` are departures from the format that other readers may refuse.
    """

    description: str = ""
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}
    body: str = ""
    problem: str = ""
    remarks: tuple[str, ...] = ()


class _Refused(ValueError):
    """The front matter cannot be read."""


def read_skill(data: bytes, folder: str) -> SkillText:
    r"""Read a `SKILL.md`, in a folder of that name; mistakes are reported in the result.

    >>> text = read_skill(b"---\nname: pdf\ndescription: Fills in forms.\n---\nDo this.", "pdf")
    >>> text.description, text.body, text.problem
    ('Fills in forms.', 'Do this.', '')
    >>> read_skill(b"Do this.", "pdf").problem
    'it has no front matter; its first line must be ---'
    """
    remarks: list[str] = []
    if data.startswith(_BOM):
        data = data.removeprefix(_BOM)
        remarks.append("it begins with a byte order mark; save it as UTF-8 without one")
    try:
        text = data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        front, body = _split(text)
        fields = _read_fields(front, remarks)
    except UnicodeDecodeError:
        return SkillText(problem="it is not UTF-8 text", remarks=tuple(remarks))
    except _Refused as error:
        return SkillText(problem=str(error), remarks=tuple(remarks))
    if unknown := sorted(set(fields) - {*_FIELDS}):
        remarks.append(f"unknown fields: {', '.join(unknown)}; put them in metadata")
    tools = fields.get("allowed-tools", "")
    extra = fields.get("metadata", "")
    return SkillText(
        description=_read_text(fields, "description"),
        license=_read_text(fields, "license"),
        compatibility=_read_text(fields, "compatibility"),
        allowed_tools=tuple(tools.split() if isinstance(tools, str) else map(str, tools)),
        metadata={key: str(one) for key, one in extra.items()} if isinstance(extra, dict) else {},
        body=body,
        problem="; ".join(_find_problems(fields, folder)),
        remarks=tuple(remarks),
    )


def _split(text: str) -> tuple[str, str]:
    """Return the YAML and the Markdown of a file."""
    if "\0" in text:
        raise _Refused("it is a binary file, not text")
    if not re.match(r"---[ \t]*(\n|\Z)", text):
        raise _Refused("it has no front matter; its first line must be ---")
    if not (found := _FRONT_MATTER.match(text)):
        raise _Refused("its front matter has no end; write the line --- after the last field")
    return found[1], found[2].strip()


def _read_fields(front: str, remarks: list[str]) -> dict[str, Value]:
    """Return the fields of a front matter; add departures from the format to the remarks."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # Aliases and deep nesting are refused before nodes are made of them.
        remarks += _survey_departures(yaml.parse(front, loader))
        node = yaml.compose(front, loader)
    except yaml.MarkedYAMLError as error:
        # The front matter begins in line 2.
        line = "" if (mark := error.problem_mark) is None else f" in line {mark.line + 2}"
        hint = ""
        if "mapping values are not allowed" in (error.problem or ""):
            hint = "; a value that contains ': ' needs quotes"
        raise _Refused(f"invalid YAML{line}: {error.problem}{hint}") from error
    except yaml.YAMLError as error:
        raise _Refused(f"invalid YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(node, yaml.MappingNode):
        raise _Refused("its front matter has no fields; write one a line, such as name: pdf-forms")
    value = _convert(node)
    assert isinstance(value, dict)
    return value


def _survey_departures(events: Iterator[Any]) -> Sequence[str]:
    """Return departures of YAML; raise `_Refused` for those that make it ambiguous or costly."""
    import yaml

    depth, flows = 0, False
    for event in events:
        if getattr(event, "anchor", None) or getattr(event, "tag", None):
            line = event.start_mark.line + 2
            raise _Refused(f"line {line} has an anchor, an alias or a tag, which are not accepted")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            flows = flows or bool(event.flow_style)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise _Refused(f"its front matter is nested more than {_DEEPEST} levels deep")
    return ["it uses brackets or braces of YAML; write one item a line"] if flows else []


def _convert(node: Any) -> Value:
    """Return a node with all its scalars as text; raise `_Refused` for a repeated field."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_convert(one) for one in node.value]
    found: dict[str, Value] = {}
    for key, value in node.value:
        name = _convert(key)
        if not isinstance(name, str):
            raise _Refused(f"the name of the field in line {key.start_mark.line + 2} is not text")
        if name in found:
            raise _Refused(f"the field {name!r} occurs twice")
        found[name] = _convert(value)
    return found


def _read_text(fields: Mapping[str, Value], name: str) -> str:
    value = fields.get(name, "")
    return value.strip() if isinstance(value, str) else ""


def _find_problems(fields: Mapping[str, Value], folder: str) -> Iterator[str]:
    for name in ("name", "description"):
        if not _read_text(fields, name):
            yield f"it has no {name}" if name not in fields else f"its {name} is empty or not text"
    if name := _read_text(fields, "name"):
        yield from _find_problems_of_name(unicodedata.normalize("NFKC", name), folder)
    description, compatibility = fields.get("description"), fields.get("compatibility", "")
    if isinstance(description, str) and len(description) > _DESCRIPTION_CHARACTERS:
        yield _too_long("description", len(description), _DESCRIPTION_CHARACTERS)
    if not isinstance(compatibility, str):
        yield "its compatibility is not text"
    elif len(compatibility) > _COMPATIBILITY_CHARACTERS:
        yield _too_long("compatibility", len(compatibility), _COMPATIBILITY_CHARACTERS)
    if _read_text(fields, _USERS_ONLY).lower() == "true":
        yield f"its author excludes use by models ({_USERS_ONLY})"


def _find_problems_of_name(name: str, folder: str) -> Iterator[str]:
    if len(name) > _NAME_CHARACTERS:
        yield _too_long("name", len(name), _NAME_CHARACTERS)
    if name != name.lower() or not all(one.isalnum() or one == "-" for one in name):
        yield f"its name {name!r} may have only lowercase letters, digits and hyphens"
    elif name.startswith("-") or name.endswith("-") or "--" in name:
        yield f"its name {name!r} has a hyphen at an end, or two in a row"
    if name != unicodedata.normalize("NFKC", folder):
        yield f"its name {name!r} is not that of its folder, {folder!r}; rename one"


def _too_long(what: str, length: int, most: int) -> str:
    return f"its {what} has {length} characters; at most {most} are allowed"
