"""Rewriting of tool schemas for wires that support less than JSON Schema.

A server that refuses the schema of one tool answers 400 to the whole request. So each schema is
sent in a form that all servers accept: its root is an object with `properties` and without `anyOf`
and similar keywords, arrays have `items`, references resolve. What the rewritten schema no longer
says is added to the description. The arguments of a call are checked against the true schema, which
stays unchanged. A tool whose arguments no such schema can describe is left out, with a notice.

Sources: the answers of the servers, as public reports quote them. Anthropic:
anthropics/claude-code#5878 (alternatives at the root), Dokploy/mcp#74 (draft 2020-12),
decocms/studio#6874 (names of arguments). OpenAI: langchain-ai/langchainjs#9804 (alternatives at the
root), sigoden/aichat#1049 (arrays). Gemini: anomalyco/opencode#11889 and #12295,
karthink/gptel#806. Ollama: `ToolProperty` in `api/types.go`, ollama/ollama#10328 and #18051.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeGuard

import msgspec
from msgspec import Struct

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.providers.interfaces import Model, TurnContext
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.requests import send_notice

Schema: TypeAlias = dict[str, Any]

#: Maximum depth of a schema; below it, anything is accepted.
_MAX_DEPTH = 32
#: Maximum number of schemas within one, after references were replaced.
_MAX_SCHEMAS = 5_000
_LONGEST_HINT = 2_000
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
#: Names of the types in other type systems.
_ALIASES = {
    "str": "string", "text": "string", "int": "integer", "long": "integer", "float": "number",
    "double": "number", "bool": "boolean", "dict": "object", "map": "object", "struct": "object",
    "list": "array", "tuple": "array", "set": "array", "none": "null",
}  # fmt: skip
_COMBINED = ("anyOf", "oneOf", "allOf")
#: Temporary member with the sentences to add to a schema's description.
_HINTS = " hints"
_AT_ROOT = (*_COMBINED, "$ref", "enum", "const", "not", "if", "then", "else")
_LISTS = (*_COMBINED, "prefixItems")
_MAPPINGS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DEFINITIONS = ("$defs", "definitions")
_SINGLE = (
    "items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else",
    "unevaluatedProperties", "unevaluatedItems", "additionalItems",
)  # fmt: skip
#: Keywords for which `true` and `false` are schemas that all servers accept.
_BOOLEAN = ("additionalProperties", "unevaluatedProperties", "unevaluatedItems")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minContains", "maxContains",
)  # fmt: skip
_TEXTS = ("description", "title", "pattern", "format", "$comment", "$id", "$schema", "$anchor")
_FLAGS = ("uniqueItems", "deprecated", "readOnly", "writeOnly")
#: Keywords of servers that read schemas of OpenAPI 3.0.
_OPENAPI = frozenset({
    "type", "format", "title", "description", "nullable", "enum", "items", "maxItems", "minItems",
    "properties", "required", "minProperties", "maxProperties", "minLength", "maxLength", "pattern",
    "anyOf", "minimum", "maximum", "default",
})  # fmt: skip
#: Keywords that the description states if a server does not support them.
_TOLD = (
    "enum", "prefixItems", "additionalProperties", "patternProperties", "propertyNames", "not",
    "contains", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "dependentRequired",
)  # fmt: skip


class SchemaRules(Struct, frozen=True):
    """Schema features that an API accepts, besides those that all servers accept.

    If `references` is False, each is replaced by its target. `property_names` is the pattern for
    the names of arguments. If `openapi` is True, only the keywords of OpenAPI 3.0 are sent.
    """

    references: bool = True
    property_names: re.Pattern[str] | None = None
    openapi: bool = False


class SchemaUnfit(ValueError):
    """Error for a tool whose arguments no schema of the wire describes."""


def fit_tools(
    model: Model, invokers: Sequence[Invoker], rules: SchemaRules, context: TurnContext
) -> tuple[Invoker, ...]:
    """Return the tools with schemas that a wire accepts; leave out a tool that it cannot take.

    A tool whose schema is fine stays the same object.
    """
    fitted: list[Invoker] = []
    for invoker in invokers:
        try:
            schema = fit_schema(invoker.arguments_schema, rules)
        except SchemaUnfit as error:
            send_notice(model, context, f"the tool {invoker.name} is not offered: {error}")
            continue
        if schema is not invoker.arguments_schema:
            invoker = msgspec.structs.replace(invoker, arguments_schema=schema)  # noqa: PLW2901
        fitted.append(invoker)
    return tuple(fitted)


def fit_schema(schema: object, rules: SchemaRules) -> Schema:
    """Return the schema in a form that a wire accepts: the same object if it has that form."""
    fitted = _Fitting(schema, rules).fit()
    return schema if schema == fitted and isinstance(schema, dict) else fitted


class _Fitting:
    """Conversion of one schema for the wire."""

    def __init__(self, root: object, rules: SchemaRules) -> None:
        self._root = root
        self._rules = rules
        self._count = 0
        self._flattened = 0

    def fit(self) -> Schema:
        root = self._flatten(self._root, ())
        hints = root.pop(_HINTS, ())
        fitted = self._fit({**root, "type": "object"}, ())
        return self._check_names(_describe(fitted, hints))

    def _check_names(self, fitted: Schema) -> Schema:
        """Leave out arguments whose names the wire refuses, unless they are required."""
        allowed, properties = self._rules.property_names, fitted["properties"]
        refused = [name for name in properties if allowed and not allowed.fullmatch(name)]
        if not refused:
            return fitted
        if needed := [name for name in refused if name in fitted.get("required", ())]:
            raise SchemaUnfit(f"this API does not accept the name of its argument {needed[0]!r}")
        kept = {name: one for name, one in properties.items() if name not in refused}
        return {**fitted, "properties": kept}

    # The root has to be one object.

    def _flatten(self, schema: object, within: tuple[str, ...], depth: int = 0) -> Schema:
        """Return a schema of the arguments as one object, without alternatives at its root."""
        self._flattened += 1
        if schema is True or schema is None or depth > _MAX_DEPTH or self._flattened > _MAX_SCHEMAS:
            return {}
        if not isinstance(schema, Mapping):
            raise SchemaUnfit("its schema accepts no arguments")
        kind = schema.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        names = [one.lower() for one in kinds if _is_text(one)]
        if kind and not any(_ALIASES.get(one, one) == "object" for one in names):
            raise SchemaUnfit(
                f"its arguments are not an object, but {' or '.join(map(str, kinds))}"
            )
        if not any(name in schema for name in _AT_ROOT):
            return dict(schema)
        plain: Schema = {key: value for key, value in schema.items() if key not in _AT_ROOT}
        plain["type"] = "object"
        reference = schema.get("$ref")
        if _is_text(reference):
            if reference in within or len(within) >= _MAX_DEPTH:
                raise SchemaUnfit(f"its schema refers to itself ({reference})")
            target = self._resolve(reference)
            if target is not None:
                plain = _join([plain, self._flatten(target, (*within, reference), depth + 1)])
        for name, merge in (("allOf", _join), ("anyOf", self._unite), ("oneOf", self._unite)):
            branches = schema.get(name)
            if isinstance(branches, list) and branches:
                flat = self._flatten_all(branches, within, depth + 1, all_=name == "allOf")
                plain = merge([plain, *flat])
        for name in ("enum", "const"):
            if name in schema:
                values = schema[name] if name == "enum" else [schema[name]]
                objects = [one for one in values or () if isinstance(one, Mapping)]
                if not objects:
                    raise SchemaUnfit("its schema accepts no object")
                plain = self._unite([plain, *map(_describe_value, objects)])
        for name in ("not", "if", "then", "else"):
            if name in schema:
                plain[_HINTS] = (*plain.get(_HINTS, ()), f"{name}: {_brief(schema[name])}")
        return plain

    def _flatten_all(
        self, branches: Iterable[object], within: tuple[str, ...], depth: int, *, all_: bool
    ) -> list[Schema]:
        """Return the branches that can be an object; for `allOf` each of them must be."""
        flat: list[Schema] = []
        refusal: SchemaUnfit | None = None
        for branch in branches:
            try:
                flat.append(self._flatten(branch, within, depth))
            except SchemaUnfit as error:
                refusal = error
                if all_:
                    raise
        if not flat and refusal is not None:
            raise refusal
        return flat

    @staticmethod
    def _unite(schemas: Sequence[Schema]) -> Schema:
        """Add the arguments of all alternatives to the base; require those that all require."""
        base, *branches = schemas
        branches = branches or [{}]
        required = [
            name
            for name in _required(branches[0])
            if all(name in _required(one) for one in branches)
        ]
        properties: dict[str, Any] = {}
        for branch in branches:
            for name, one in _properties(branch).items():
                known = properties.setdefault(name, [])
                if one not in known:
                    known.append(one)
        united: Schema = {
            "properties": {
                name: known[0] if len(known) == 1 else {"anyOf": known}
                for name, known in properties.items()
            },
            "required": required,
        }
        if not all(one.get("additionalProperties") is False for one in branches):
            base = {key: value for key, value in base.items() if key != "additionalProperties"} | (
                {} if properties else _kept(base, "additionalProperties")
            )
        elif "additionalProperties" not in base:
            united["additionalProperties"] = False
        joined = _join([base, united])
        choices = " or ".join(
            f"({', '.join(_required(one)) or 'no more'})" for one in branches if len(branches) > 1
        )
        inner = [hint for one in branches for hint in one.get(_HINTS, ())]
        hints = [*joined.get(_HINTS, ()), *inner]
        if choices and len({tuple(_required(one)) for one in branches}) > 1:
            hints.append(f"Required: one of {choices}")
        if hints:
            joined[_HINTS] = tuple(hints)
        return joined

    # Everything below the root is repaired in place.

    def _fit(self, schema: object, within: tuple[str, ...], depth: int = 0) -> Schema:
        self._count += 1
        if not isinstance(schema, Mapping):
            return {"not": {}} if schema is False and not self._rules.openapi else {}
        if depth > _MAX_DEPTH or self._count > _MAX_SCHEMAS:
            return {}
        reference = schema.get("$ref")
        if _is_text(reference):
            replaced = self._replace(schema, reference, within)
            if replaced is not None:
                return self._fit(replaced, (*within, reference), depth + 1)
        fitted: Schema = {}
        for key, value in _split_dependencies(schema).items():
            kept = self._fit_keyword(key, value, schema, within, depth)
            if kept is not _DROP:
                fitted[key] = kept
        self._complete(fitted)
        return self._narrow(fitted) if self._rules.openapi else fitted

    def _fit_keyword(
        self, key: str, value: Any, schema: Mapping[str, Any], within: tuple[str, ...], depth: int
    ) -> Any:
        """Return the value of a keyword as the wire accepts it, or `_DROP`."""
        below: Callable[[object], Schema] = lambda one: self._fit(one, within, depth + 1)  # noqa: E731
        if key in _MAPPINGS:
            if not isinstance(value, Mapping) or (key in _DEFINITIONS and self._rules.openapi):
                return _DROP
            if key in _DEFINITIONS and not self._keeps_refs:
                # Definitions are rewritten where they replace references.
                return value
            return {str(name): below(one) for name, one in value.items()}
        if key in _LISTS:
            return [below(one) for one in value] if isinstance(value, list) and value else _DROP
        if key == "items" and isinstance(value, list):
            # The form of tuples before draft 2020-12.
            return _any_of([below(one) for one in value])
        if key in _SINGLE:
            if isinstance(value, bool):
                return value if key in _BOOLEAN else below(value)
            return below(value) if isinstance(value, Mapping) else _DROP
        if key == "type":
            return _fit_type(value)
        if key == "$ref":
            return _DROP if self._rules.openapi else value
        if key in ("exclusiveMinimum", "exclusiveMaximum") and value is True:
            # A flag before draft 6.
            bound = schema.get(key.replace("exclusiveM", "m"))
            return bound if _is_number(bound) else _DROP
        if key == "required" and isinstance(value, list) and all(map(_is_text, value)):
            return list(dict.fromkeys(value))
        fits = _CHECKS.get(key)
        return value if fits is None or fits(value) else _DROP

    @property
    def _keeps_refs(self) -> bool:
        return self._rules.references and not self._rules.openapi

    def _replace(
        self, schema: Mapping[str, Any], reference: str, within: tuple[str, ...]
    ) -> Schema | None:
        """Return the schema to send in place of a reference, or None if it can stay."""
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        target = self._resolve(reference)
        named = reference == "#" or reference.startswith(("#/$defs/", "#/definitions/"))
        if target is None:
            return rest
        if self._keeps_refs and named and self._has_definitions(reference):
            return None
        if reference in within or not isinstance(target, Mapping):
            # A reference to itself has no end.
            return rest if self._rules.openapi or not isinstance(target, Mapping) else None
        return {**target, **rest}

    def _has_definitions(self, reference: str) -> bool:
        """Return True if the target is sent too, because its table is at the root."""
        table = reference.split("/")[1] if "/" in reference else ""
        return not table or (isinstance(self._root, Mapping) and table in self._root)

    def _resolve(self, reference: str) -> Any:
        """Return the target of a reference within the schema, or None."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        found: Any = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name[:6]) < len(found):
                found = found[int(name[:6])]
            else:
                return None
        return found

    @staticmethod
    def _complete(fitted: Schema) -> None:
        """Add missing `properties` to objects, and missing `items` to arrays."""
        kinds = fitted.get("type", ())
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if "object" in kinds:
            fitted.setdefault("properties", {})
        if "array" in kinds:
            fitted.setdefault("items", {})

    def _narrow(self, fitted: Schema) -> Schema:
        """Return the schema with only the keywords of OpenAPI 3.0."""
        if "oneOf" in fitted:
            fitted.setdefault("anyOf", fitted["oneOf"])
        if "const" in fitted:
            fitted.setdefault("enum", [fitted["const"]])
        for branch in fitted.get("allOf", ()):
            fitted = _join([fitted, branch])
        if kinds := fitted.get("prefixItems"):
            rest = fitted.get("items")
            fitted["items"] = _any_of([*kinds, rest] if rest else kinds)
        kind = fitted.get("type")
        if isinstance(kind, list):
            kinds = [one for one in kind if one != "null"]
            if "null" in kind:
                fitted["nullable"] = True
            fitted["type"] = kinds[0] if kinds else "string"
            if len(kinds) > 1:
                del fitted["type"]
                fitted.setdefault("anyOf", [self._narrow({"type": one}) for one in kinds])
        narrow = {key: value for key, value in fitted.items() if key in _OPENAPI}
        if "enum" in narrow:
            values = [one for one in narrow["enum"] if one is not None]
            if all(map(_is_text, values)) and values:
                narrow.update(enum=values, type="string")
            else:
                # Only strings can be listed there.
                del narrow["enum"]
        if "type" not in narrow and "anyOf" not in narrow:
            for member, implied in (("properties", "object"), ("items", "array")):
                if member in narrow:
                    narrow["type"] = implied
        if narrow.get("type", "object") != "object":
            narrow = {k: v for k, v in narrow.items() if k not in ("properties", "required")}
        if narrow.get("type") == "array" and not narrow.get("items"):
            narrow["items"] = {"type": "string"}
        if "required" in narrow:
            known = narrow.get("properties", {})
            narrow["required"] = [name for name in narrow["required"] if name in known]
        lost = [
            f"{key}: {_brief(fitted[key])}"
            for key in _TOLD
            if key not in narrow and fitted.get(key) not in (None, True, False, {})
        ]
        if fitted.get("uniqueItems") is True:
            lost.append("uniqueItems")
        return _describe(narrow, lost)


_DROP: Any = object()


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len({*value}) == len(value)


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_TEXTS, _is_text),
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(_COUNTS, _is_count),
    **dict.fromkeys(_FLAGS, lambda value: isinstance(value, bool)),
    "required": _is_list_of_names,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "examples": lambda value: isinstance(value, list),
    "dependentRequired": lambda value: (
        isinstance(value, Mapping) and all(map(_is_list_of_names, value.values()))
    ),
    "dependencies": lambda _: False,
}


def _any_of(schemas: Sequence[Schema]) -> Schema:
    """Return a schema of values that match one of these."""
    different = [one for at, one in enumerate(schemas) if one not in schemas[:at]]
    return {"anyOf": different} if len(different) > 1 else different[0] if different else {}


def _split_dependencies(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Move the lists of names in `dependencies` (draft 7) to the keyword that replaced it."""
    found = schema.get("dependencies")
    named = {
        name: needed
        for name, needed in (found.items() if isinstance(found, Mapping) else ())
        if isinstance(needed, list)
    }
    return {"dependentRequired": named, **schema} if named else schema


def _fit_type(value: object) -> Any:
    """Return the types of a schema, or `_DROP` if one of them does not exist."""
    named = value if isinstance(value, list) else [value]
    kinds = [
        _ALIASES.get(one.lower(), one.lower())
        for one in named
        if isinstance(one, str) and _ALIASES.get(one.lower(), one.lower()) in _TYPES
    ]
    kinds = list(dict.fromkeys(kinds))
    if not kinds or len(kinds) < len(named):
        return _DROP
    return kinds if isinstance(value, list) else kinds[0]


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _required(schema: Mapping[str, Any]) -> list[str]:
    found = schema.get("required")
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _kept(schema: Mapping[str, Any], name: str) -> Schema:
    return {name: schema[name]} if name in schema else {}


def _join(schemas: Sequence[Schema]) -> Schema:
    """Return one object that matches all of these at once."""
    joined: Schema = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    hints: list[str] = []
    for schema in schemas:
        for key, value in schema.items():
            if key not in ("properties", "required", _HINTS, "description"):
                joined.setdefault(key, value)
        if schema.get("description"):
            joined.setdefault("description", schema["description"])
        for name, one in _properties(schema).items():
            known = properties.get(name, one)
            both = known is not one and known != one and one not in ({}, True)
            if both and known in ({}, True):
                properties[name] = one
            else:
                properties[name] = {"allOf": [known, one]} if both else known
        required += _required(schema)
        hints += schema.get(_HINTS, ())
    if len(schemas) > 1 and joined.get("additionalProperties") is False:
        # Each of them must allow what the others name, or nothing would be allowed.
        closed = [one for one in schemas if one.get("additionalProperties") is False]
        if any(set(properties) - set(_properties(one)) for one in closed):
            del joined["additionalProperties"]
    joined["properties"] = properties
    if required:
        joined["required"] = list(dict.fromkeys(required))
    if hints:
        joined[_HINTS] = tuple(hints)
    return joined


def _describe(schema: Schema, hints: Iterable[str]) -> Schema:
    """Return the schema with hints in its description."""
    words = "; ".join(dict.fromkeys(hints))[:_LONGEST_HINT]
    if not words:
        return schema
    before = f"{schema['description']}\n" if schema.get("description") else ""
    return {**schema, "description": f"{before}{words}"}


def _describe_value(value: Mapping[str, Any]) -> Schema:
    """Return the schema of one value."""
    return {
        "properties": {str(name): {"enum": [one]} for name, one in value.items()},
        "required": [str(name) for name in value],
    }


def _brief(schema: object) -> str:
    try:
        return encode_json(schema).decode()[:300]
    except (TypeError, RecursionError):
        return "…"


#: Rules of OpenAI's interfaces, and of servers like them.
OPENAI = SchemaRules()
ANTHROPIC = SchemaRules(property_names=re.compile(r"[a-zA-Z0-9_.-]{1,64}"))
#: Ollama reads properties into types without references.
OLLAMA = SchemaRules(references=False)
#: Templates read properties, and resolve no references either.
LLAMACPP = SchemaRules(references=False)
GEMINI = SchemaRules(openapi=True)
#: Rules by their names in a model's attributes.
BY_NAME: Mapping[Literal["json-schema", "openapi"], SchemaRules] = {
    "json-schema": OPENAI,
    "openapi": GEMINI,
}
