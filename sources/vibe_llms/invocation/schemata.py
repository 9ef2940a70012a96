"""Makes the JSON Schema of a function's arguments from its signature, and checks calls.

The pydantic model that makes the schema also checks the arguments, so the two always agree.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import msgspec

from vibe_llms.base.exceptions import ArgumentsInvalid, InvokerInvalid
from vibe_llms.messages.contents import repair_text

if TYPE_CHECKING:
    from pydantic import BaseModel

Schema = dict[str, Any]
_MAX_PROBLEMS = 20


class Signature:
    """The arguments of a function: their schema, and a check of calls against it.

    `injected` are the names of the parameters with an annotation in `injections`. They are not in
    the schema; the caller passes them.
    """

    def __init__(
        self, function: Callable[..., Any], injections: Mapping[type, str] | None = None
    ) -> None:
        from pydantic.errors import PydanticUserError

        inner = innermost(function)
        name = getattr(inner, "__name__", type(inner).__name__)
        try:
            self._parameters = _free_parameters(function)
            hints = get_type_hints(_hinted(inner), include_extras=True)
        except (ValueError, TypeError, NameError) as error:
            raise InvokerInvalid(f"the signature of {name!r} cannot be read: {error}") from error
        self.description, explained = _read_docstring(inspect.getdoc(inner) or "")
        self.injected = {
            key: injected
            for kind, injected in (injections or {}).items()
            for key in self._parameters
            if kind in (hints.get(key), *get_args(hints.get(key)))
        }
        self._names: dict[str, str] = {}
        fields: dict[str, Any] = {}
        for key, parameter in self._parameters.items():
            if key in self.injected:
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise InvokerInvalid(
                    f"{name!r} takes {parameter}, which has no schema; name each parameter"
                )
            field = f"field_{len(fields)}"
            self._names[field] = key
            fields[field] = _field(parameter, hints.get(key, Any), explained.get(key))
        try:
            self._model = _produce_model(name, fields)
            self.schema = _produce_schema(self._model)
        except (PydanticUserError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise InvokerInvalid(
                f"the parameters of {name!r} cannot be described in JSON Schema: {reason}"
            ) from error

    def bind(self, arguments: str, injections: Mapping[str, Any]) -> inspect.BoundArguments:
        """Check and convert the arguments of a call; `injections` are by type.

        Raises `ArgumentsInvalid` with one problem per line.
        """
        from pydantic import ValidationError

        try:
            # Invalid JSON is always refused, although pydantic would accept NaN, for example.
            msgspec.json.decode(arguments or "{}")
            model = self._model.model_validate_json(arguments or "{}", strict=True)
        except ValidationError as error:
            raise ArgumentsInvalid(describe_problems(error)) from error
        except (ValueError, RecursionError) as error:
            raise ArgumentsInvalid(f"This is not valid JSON: {error}") from error
        values = {key: getattr(model, field) for field, key in self._names.items()}
        values.update({key: injections[kind] for key, kind in self.injected.items()})
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for key, parameter in self._parameters.items():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(values[key])
            else:
                named[key] = values[key]
        return inspect.Signature(list(self._parameters.values())).bind(*positional, **named)


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside partial applications, which has the name and docstring."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _free_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters that a call may set; a partial application hides those that it sets."""
    fixed: set[str] = set()
    inner = function
    while isinstance(inner, functools.partial):
        fixed |= inner.keywords.keys()
        inner = inner.func
    parameters = inspect.signature(function).parameters
    return {key: parameter for key, parameter in parameters.items() if key not in fixed}


def _hinted(function: Callable[..., Any]) -> Any:
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


def _field(parameter: inspect.Parameter, annotation: Any, explanation: str | None) -> Any:
    from pydantic import Field
    from pydantic.fields import FieldInfo

    default = parameter.default
    options: dict[str, Any] = {"alias": parameter.name}
    if explanation:
        options["description"] = explanation
    if isinstance(default, FieldInfo):
        annotation = Annotated[annotation, default]
    elif default is not parameter.empty:
        options["default"] = default
    known = getattr(annotation, "__metadata__", ())
    if any(isinstance(item, FieldInfo) and item.description for item in known):
        options.pop("description", None)
    return annotation, Field(**options)


def _produce_model(name: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    from pydantic import ConfigDict, create_model

    return create_model(
        name,
        __config__=ConfigDict(extra="forbid", allow_inf_nan=False),
        **dict(fields),
    )


def _produce_schema(model: type[BaseModel]) -> Schema:
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        # A default that JSON cannot represent is omitted; the parameter stays optional.
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    schema: Schema = _tidy(model.model_json_schema(by_alias=True, schema_generator=Generator))
    schema.setdefault("properties", {})
    schema.pop("description", None)
    return schema


#: Keywords whose members are names and schemas, not keywords.
_NAMED = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})
#: Keywords whose values are data.
_DATA = frozenset({"default", "const", "enum", "examples"})


def _tidy(node: Any, *, within: str = "") -> Any:
    """Return a schema without pydantic's generated titles and without lone surrogates."""
    match node:
        case dict():
            return {
                repair_text(key): _tidy(value, within=within if within in _DATA else key)
                for key, value in node.items()
                if key != "title" or within in _NAMED or within in _DATA
            }
        case list():
            return [_tidy(item, within=within) for item in node]
        case str():
            return repair_text(node)
        case _:
            return node


def describe_problems(error: Any) -> str:
    """Return the problems of a `pydantic.ValidationError`, one per line, for a model to fix."""
    lines = []
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    for problem in problems[:_MAX_PROBLEMS]:
        place = ".".join(str(part) for part in problem["loc"])
        lines.append(f"{place}: {problem['msg']}" if place else str(problem["msg"]))
    if len(problems) > _MAX_PROBLEMS:
        lines.append(f"and {len(problems) - _MAX_PROBLEMS} more")
    return "\n".join(lines)


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    if not text:
        return "", {}
    from docstring_parser import parse

    parsed = parse(text)
    body = [parsed.short_description or "", parsed.long_description or ""]
    description = "\n\n".join(part for part in body if part)
    explained = {
        param.arg_name: re.sub(r"\s+", " ", param.description)
        for param in parsed.params
        if param.description
    }
    return description, explained
