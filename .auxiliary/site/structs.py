"""Extension of griffe for `msgspec.Struct`: what the constructor of such a class takes.

Griffe reads the source without running it, and knows this of dataclasses only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe

#: Fields that only the library itself sets.
_INNER = {"source_line"}
_SELF = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)


class StructExtension(griffe.Extension):
    """Gives each `Struct` an `__init__` with its fields, those of its bases first."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Visit all classes, once the whole package is loaded."""
        for found in _survey_classes(pkg):
            if "__init__" not in found.members and any(map(_is_struct, _line(found))):
                init = griffe.Function("__init__", parent=found, returns="None")
                init.parameters = griffe.Parameters(_SELF, *_survey_fields(found))
                found.set_member("__init__", init)


def _survey_classes(owner: griffe.Module | griffe.Class) -> Iterator[griffe.Class]:
    for member in owner.members.values():
        if isinstance(member, griffe.Class):
            yield member
        if isinstance(member, griffe.Module | griffe.Class):
            yield from _survey_classes(member)


def _line(found: griffe.Class) -> list[griffe.Class]:
    """Return the bases within the package, the farthest first, and the class."""
    try:
        return [*reversed(found.mro()), found]
    except ValueError:
        return [found]


def _is_struct(found: griffe.Class) -> bool:
    return any(
        isinstance(base, griffe.Expr) and base.canonical_path == "msgspec.Struct"
        for base in found.bases
    )


def _survey_fields(found: griffe.Class) -> list[griffe.Parameter]:
    kinds = griffe.ParameterKind
    fields: dict[str, griffe.Parameter] = {}
    for owner in _line(found):
        named = owner.keywords.get("kw_only") == "True"
        for name, member in owner.members.items():
            if (
                not isinstance(member, griffe.Attribute)
                or member.annotation is None
                or "instance-attribute" not in member.labels
                or name in _INNER
            ):
                continue
            fields[name] = griffe.Parameter(
                name,
                annotation=member.annotation,
                kind=kinds.keyword_only if named else kinds.positional_or_keyword,
                default=_read_default(member.value),
            )
    return sorted(fields.values(), key=lambda field: field.kind is kinds.keyword_only)


def _read_default(value: str | griffe.Expr | None) -> str | griffe.Expr | None:
    """Return the default of a field, if it is not made anew for each instance."""
    if not isinstance(value, griffe.ExprCall) or str(value.function) not in (
        "field",
        "msgspec.field",
    ):
        return value
    for argument in value.arguments:
        if isinstance(argument, griffe.ExprKeyword):
            if argument.name == "default_factory":
                return "..."
            if argument.name == "default":
                return argument.value
    return None
