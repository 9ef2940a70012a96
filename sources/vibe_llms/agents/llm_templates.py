"""Templates of llm, as agents.

The fields are those of `llm/templates.py` in version 0.36 (November 2026). Its texts are
`string.Template`s, as ours are.
"""

from __future__ import annotations

from string import Template
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.agents.drafts import AgentDraft, DraftWriter
from vibe_llms.agents.templates import INPUT, fill_template, survey_variables
from vibe_llms.base.configuration import Configuration
from vibe_llms.base.yaml_values import read_yaml

_MESSAGE = f"${INPUT}"


class LlmAttachment(Struct, frozen=True, forbid_unknown_fields=True):
    """An attachment with its media type."""

    type: str
    value: str


class LlmTemplate(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a template."""

    name: Any = None
    prompt: str | None = None
    system: str | None = None
    attachments: list[str] | None = None
    attachment_types: list[LlmAttachment] | None = None
    model: str | None = None
    defaults: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    extract: bool | None = None
    extract_last: bool | None = None
    schema_object: dict[str, Any] | None = None
    fragments: list[str] | None = None
    system_fragments: list[str] | None = None
    tools: list[str] | None = None
    functions: str | None = None


def read_template(name: str, data: bytes, configuration: Configuration) -> AgentDraft:
    """Return a template as a draft of an agent; raises `ValueError` if it is not valid."""
    match read_yaml(data):
        case None:
            raise ValueError("it is empty")
        case str() as prompt:
            template = LlmTemplate(prompt=prompt)
        case dict() as fields:
            try:
                template = msgspec.convert(fields, LlmTemplate)
            except msgspec.ValidationError as error:
                raise ValueError(f"it is not a template of llm: {error}") from error
        case _:
            raise ValueError("it is not a template: its YAML is neither a mapping nor a text")
    writer = DraftWriter(configuration, "llm", name)
    writer.set_model(template.model)
    _set_texts(template, writer)
    for option, setting in (template.options or {}).items():
        writer.set_control(option, setting)
    if template.schema_object is not None:
        if _has_null(template.schema_object):
            writer.remark("schema_object contains null, which the file cannot; give --schema")
        else:
            schema = msgspec.to_builtins(template.schema_object, str_keys=True)
            writer.set_control("response_schema", schema)
    _remark(template, writer)
    return writer.finish()


def _set_texts(template: LlmTemplate, writer: DraftWriter) -> None:
    prompt, system = (_mend(text or "", writer) for text in (template.prompt, template.system))
    variables = survey_variables(system)
    if INPUT in variables:
        writer.remark(f"system contains {_MESSAGE}, so it is sent with each message")
        prompt = f"{system}\n\n{prompt}" if prompt else system
    elif variables:
        writer.set("supervisor-template", system)
    else:
        writer.set("supervisor", fill_template(system, {}))
    if prompt and INPUT not in survey_variables(prompt):
        # llm adds the message to such a prompt.
        prompt = f"{prompt}\n{_MESSAGE}"
    writer.set("prompt", prompt)
    used = {*survey_variables(prompt, system)} - {INPUT}
    defaults = template.defaults or {}
    writer.set("defaults", {key: str(value) for key, value in defaults.items() if key in used})
    for key in (one for one in defaults if one not in used):
        writer.remark(f"the default of {key!r} is left out: no text uses it")


def _mend(text: str, writer: DraftWriter) -> str:
    """Double the dollar signs that begin no variable, with which llm refuses to run a template."""
    if Template(text).is_valid():
        return text
    writer.remark("dollar signs that begin no variable are now written $$")
    return Template.pattern.sub(
        lambda found: found.group() if found.group("invalid") is None else "$$", text
    )


def _remark(template: LlmTemplate, writer: DraftWriter) -> None:
    """Add remarks on the fields without a counterpart."""
    if template.functions:
        writer.remark(
            "functions is Python code, which an import never runs; save it as a file, read it, and "
            "give it with --functions FILE"
        )
    if template.tools:
        writer.remark(
            f"tools of llm are left out: {', '.join(template.tools)}; name tools of yours in the "
            "keys tools or ensembles"
        )
    attached = [
        *(template.attachments or ()),
        *(one.value for one in template.attachment_types or ()),
    ]
    if attached:
        writer.remark(f"attachments are given with each message: {_draw('-a', attached)}")
    if template.fragments:
        writer.remark(f"fragments are given with each message: {_draw('-f', template.fragments)}")
    if template.system_fragments:
        writer.remark(
            f"system_fragments are left out: {', '.join(template.system_fragments)}; add their "
            "text to the system prompt"
        )
    if template.extract:
        writer.remark("extract is an option of a command: -x")
    if template.extract_last:
        writer.remark("extract_last is an option of a command: --xl")


def _draw(option: str, values: list[str]) -> str:
    return " ".join(f"{option} {value}" for value in values)


def _has_null(value: object) -> bool:
    match value:
        case dict():
            return any(map(_has_null, value.values()))
        case list():
            return any(map(_has_null, value))
        case _:
            return value is None
