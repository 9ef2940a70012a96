"""Typed output: a type becomes the JSON Schema of the reply, and the reply a value of the type.

Types are pydantic models, dataclasses, typed dictionaries, `msgspec.Struct`s, and all others that
pydantic supports; a mapping is a JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, is_typeddict

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import RequestError
from vibe_llms.base.offloading import offload
from vibe_llms.invocation.keywords import (
    LOOP_STEPS,
    CheckTooLong,
    SchemaInapplicable,
    SchemaValidator,
    limit_steps,
)
from vibe_llms.invocation.schemata import Schema, describe_problems
from vibe_llms.messages.canisters import Canister, SupervisorCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import Model

#: A type, or a JSON Schema.
OutputType: TypeAlias = Any

_FENCE = r"```[\w-]*\s*"
_WRAPPED = "value"


class OutputMismatch(ValueError):
    """A text is not a value of the type; the model gets the message to correct it."""


class OutputForm(Struct, frozen=True):
    """The required form of a reply.

    `schema` always describes an object, because most providers accept no other type. Other types
    are wrapped in an object with the single member `value`. `value_schema` is the schema of the
    value itself; a form of it reads the same values as plain data.
    """

    name: str
    schema: Schema
    value_schema: Schema
    decode: Callable[[str], object]

    @property
    def instruction(self) -> str:
        """Instruction for a model that does not accept a schema."""
        schema = msgspec.json.encode(self.schema).decode()
        return (
            "Answer with a single JSON object and nothing else: no other text, no Markdown. "
            f"It must match this JSON Schema:\n{schema}"
        )

    def request(
        self, model: Model, said: Sequence[Canister], controls: Controls
    ) -> tuple[Sequence[Canister], Controls]:
        """Return a prompt and controls that request the form, with its schema or in words."""
        if model.attributes.surely_takes("response-schema"):
            return said, Controls(response_schema=self.schema).over(controls)
        return (SupervisorCanister.from_text(self.instruction), *said), controls

    def read(self, text: str) -> object:
        """Convert a reply's text to a value; raises `OutputMismatch` with a list of problems."""
        try:
            return self._decode(text)
        except CheckTooLong as error:
            raise OutputMismatch("The value takes too long to check; make it smaller.") from error

    async def run(self, text: str) -> object:
        """Convert as `read` does; a check of more than a few steps continues in a thread."""
        try:
            with limit_steps(LOOP_STEPS):
                return self._decode(text)
        except CheckTooLong:
            return await offload(True, self.read, text)

    def _decode(self, text: str) -> object:
        if not (body := _strip_fence(text.strip())):
            raise OutputMismatch("The reply is empty.")
        return self.decode(body)


def _strip_fence(text: str) -> str:
    """Return the content of a single code block, or else the text itself."""
    first, _, rest = text.partition("\n")
    body, line, last = rest.rpartition("\n")
    fenced = line and last.strip() == "```" and re.fullmatch(_FENCE, first)
    return body.strip() if fenced else text


def produce_form(output: OutputType) -> OutputForm:
    """Return the form for a type or JSON Schema; raises `RequestError` if it is unsupported."""
    if isinstance(output, Mapping):
        return _of_schema(output)
    # Before Python 3.12, pydantic refuses the typed dictionaries of the standard library.
    if is_typeddict(output) or (isinstance(output, type) and issubclass(output, Struct)):
        return _of_struct(output)
    return _of_type(output)


def read_partial(text: str) -> Any:
    """Parse the JSON value in a text that is still growing; return None if it has not begun.

    >>> read_partial('{"name": "Ada", "born": 18')
    {'name': 'Ada', 'born': 18}
    """
    from pydantic_core import from_json

    begin = text.find("{")
    if begin < 0:
        return None
    try:
        return from_json(text[begin:], allow_partial="trailing-strings")
    except ValueError:
        return None


def _of_schema(given: Mapping[str, Any]) -> OutputForm:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    plain = dict(given)
    try:
        Draft202012Validator.check_schema(plain)
    except SchemaError as error:
        raise RequestError(f"the output is not a valid JSON Schema: {error.message}") from error
    except RecursionError as error:
        raise RequestError("the JSON Schema of the output is too deep") from error
    validator = SchemaValidator(plain, expressions="linear")

    def check(value: Any) -> object:
        try:
            found = validator.list_problems(value)
        except SchemaInapplicable as error:
            raise OutputMismatch(f"the schema cannot be applied: {error}") from error
        problems = [
            f"{'.'.join(map(str, path))}: {message}".removeprefix(": ") for path, message in found
        ]
        if problems:
            raise OutputMismatch("\n".join(problems[:20]))
        return value

    wrapped = plain.get("type") != "object"
    return OutputForm(
        str(plain.get("title", "output")),
        _wrap(plain) if wrapped else plain,
        plain,
        lambda text: check(_unwrap(_parse(text)) if wrapped else _parse(text)),
    )


def _of_struct(output: Any) -> OutputForm:
    try:
        schema = _inline(msgspec.json.schema(output))
    except TypeError as error:
        raise RequestError(f"{output.__name__} has no JSON Schema: {error}") from error
    decoder = msgspec.json.Decoder(output)

    def decode(text: str) -> object:
        try:
            return decoder.decode(text)
        except (ValueError, RecursionError) as error:
            raise OutputMismatch(str(error)) from error

    closed = _close(schema)
    return OutputForm(output.__name__, closed, closed, decode)


def _of_type(output: Any) -> OutputForm:
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    name = getattr(output, "__name__", "output")
    try:
        adapter = TypeAdapter(output)
        schema = _inline(adapter.json_schema())
    except (PydanticUserError, PydanticSchemaGenerationError) as error:
        reason = str(error).partition("\n")[0]
        raise RequestError(f"{name} has no JSON Schema: {reason}") from error
    wrapped = schema.get("type") != "object"

    def decode(text: str) -> object:
        try:
            # Refuses invalid JSON that pydantic would accept, such as NaN.
            value = _parse(text)
            if wrapped:
                return adapter.validate_json(msgspec.json.encode(_unwrap(value)))
            return adapter.validate_json(text)
        except ValidationError as error:
            raise OutputMismatch(describe_problems(error)) from error

    closed = _close(schema)
    return OutputForm(name, _wrap(schema) if wrapped else closed, closed, decode)


def _parse(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise OutputMismatch(f"This is not valid JSON: {error}") from error


def _unwrap(value: Any) -> Any:
    if not isinstance(value, dict) or set(value) != {_WRAPPED}:
        raise OutputMismatch(f"It must be an object with the one member {_WRAPPED!r}.")
    return value[_WRAPPED]


def _wrap(schema: Schema) -> Schema:
    inner = dict(schema)
    shared = {"$defs": inner.pop("$defs")} if "$defs" in inner else {}
    return {
        "type": "object",
        "properties": {_WRAPPED: _close(inner)},
        "required": [_WRAPPED],
        "additionalProperties": False,
        **_close(shared),
    }


def _inline(schema: Schema) -> Schema:
    """Return the schema; if it only refers to one of its parts, move that part to the top."""
    reference = schema.get("$ref", "")
    if not reference.startswith("#/$defs/"):
        return schema
    name = reference.removeprefix("#/$defs/")
    parts = schema["$defs"]
    inner = {"title": name, **parts[name]}
    refers_back = f'"{reference}"' in msgspec.json.encode(parts).decode()
    kept = {key: value for key, value in parts.items() if key != name or refers_back}
    return {**inner, **({"$defs": kept} if kept else {})}


def _close(node: Any) -> Any:
    """Return the schema, with every object closed unless it says otherwise."""
    match node:
        case dict():
            closed = {key: _close(value) for key, value in node.items()}
            if node.get("type") == "object" and isinstance(node.get("properties"), dict):
                closed.setdefault("additionalProperties", False)
            return closed
        case list():
            return [_close(item) for item in node]
        case _:
            return node
