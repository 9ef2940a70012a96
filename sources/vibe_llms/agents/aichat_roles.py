"""Roles of aichat, as agents.

The rules are those of `src/config/role.rs` (February 2026), and of the file `roles.yaml` that came
before the folder `roles` (August 2024), whose roles may have arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vibe_llms.agents.drafts import AgentDraft, DraftWriter
from vibe_llms.agents.templates import INPUT
from vibe_llms.base.configuration import Configuration
from vibe_llms.base.yaml_values import read_yaml

_FRONT_MATTER = re.compile(
    r"\A\s*-{3,}[^\S\n]*\n(.*?)^-{3,}[^\S\n]*(?:\n|\Z)(.*)", re.DOTALL | re.MULTILINE
)
_PLACEHOLDER = re.compile(r"__(?:INPUT|ARG(\d+))__(?=(\w)?)", re.ASCII)
_ARGUMENT = re.compile(r"__ARG\d+__")
#: Values that aichat fills in when it loads a role.
_FILLED = re.compile(r"\{\{__(?:os|os_distro|os_family|arch|shell|locale|now|cwd)__\}\}")
_MARK_INPUT, _MARK_OUTPUT = "### INPUT:", "### OUTPUT:"
#: Older names of keys.
_OLD_KEYS = {"model_id": "model", "functions_filter": "use_tools"}


def read_role(name: str, data: bytes, configuration: Configuration) -> AgentDraft:
    """Return the role of a Markdown file as a draft; raises `ValueError` if it is not valid."""
    text = data.decode("utf-8-sig").replace("\r\n", "\n")
    if not text.strip():
        raise ValueError("it is empty")
    metadata: Mapping[str, Any] = {}
    if found := _FRONT_MATTER.match(text):
        match read_yaml(found[1].encode()):
            case None:
                pass
            case dict() as given:
                metadata = {str(key): value for key, value in given.items()}
            case _:
                raise ValueError("its front matter, between the lines ---, is not a mapping")
        text = found[2]
    return _produce(name, metadata, text, configuration)


def read_roles(data: bytes, configuration: Configuration) -> Iterator[AgentDraft | tuple[str, str]]:
    """Yield the roles of a file `roles.yaml` as drafts, or the name of a wrong one and the reason.

    Raises `ValueError` if the file is not valid.
    """
    match read_yaml(data):
        case list() as roles:
            pass
        case _:
            raise ValueError("it is not a list of roles")
    for number, role in enumerate(roles, 1):
        match role:
            case {"name": str() as name, "prompt": str() as prompt, **others}:
                # The parts after the first one are the names of the arguments.
                short = re.split("[:#]", name)[0] if _ARGUMENT.search(prompt) else name
                fields = {str(key): value for key, value in others.items()}
                yield _produce(short, fields, prompt, configuration)
            case _:
                yield f"entry {number}", "it is not a role: it needs a name and a prompt, as texts"


def divide_examples(prompt: str) -> tuple[str, Sequence[tuple[str, str]]]:
    """Divide a prompt into instructions and examples, which are none unless all are complete.

    >>> divide_examples("Be brief. ### INPUT: Hello ### OUTPUT: Hi")
    ('Be brief.', [('Hello', 'Hi')])
    >>> divide_examples("Be brief. ### INPUT: Hello")
    ('Be brief. ### INPUT: Hello', [])
    """
    parts: list[str] = []
    rest, mark, other = prompt, _MARK_INPUT, _MARK_OUTPUT
    while mark in rest:
        part, _, rest = rest.partition(mark)
        parts.append(part.strip())
        mark, other = other, mark
    if rest:
        parts.append(rest.strip())
    system, *texts = parts or [""]
    if not texts or len(texts) % 2:
        return prompt, []
    return system, [*zip(texts[::2], texts[1::2], strict=True)]


def _produce(
    name: str, metadata: Mapping[str, Any], text: str, configuration: Configuration
) -> AgentDraft:
    writer = DraftWriter(configuration, "aichat", name)
    for given, value in metadata.items():
        match _OLD_KEYS.get(given, given), value:
            case _, None:
                pass
            case "model", str():
                writer.set_model(value)
            case ("temperature" | "top_p") as key, int() | float() if not isinstance(value, bool):
                writer.set_control(key, value)
            case "use_tools", _:
                writer.remark(
                    f"use_tools {value!r} is left out; name tools of yours in the keys tools or "
                    "ensembles"
                )
            case _:
                writer.remark(f"{given!r} is left out: aichat does not read {value!r} for it")
    text = text.strip()
    if filled := dict.fromkeys(_FILLED.findall(text)):
        writer.remark(f"{', '.join(filled)}: not filled in here; write the value in its place")
    if "__INPUT__" in text:
        writer.set("prompt", _convert(text))
        return writer.finish()
    system, examples = divide_examples(text)
    if _ARGUMENT.search(system):
        writer.set("supervisor-template", _convert(system))
    else:
        writer.set("supervisor", system)
    writer.set("examples", [{"input": given, "output": answer} for given, answer in examples])
    return writer.finish()


def _convert(text: str) -> str:
    """Return a prompt of aichat as a template."""

    def write(found: re.Match[str]) -> str:
        name = f"arg{found[1]}" if found[1] else INPUT
        return f"${{{name}}}" if found[2] else f"${name}"

    return _PLACEHOLDER.sub(write, text.replace("$", "$$"))
