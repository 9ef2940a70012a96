"""What completion offers, in the shell and in the REPL: values, each with a word of help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from vibe_llms.controls import Controls
from vibe_llms.exceptions import VibeLlmsError
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.storage.files import make_folder, read_within, replace_file, storage_errors

#: A value, and what it is.
Offer: TypeAlias = tuple[str, str]
#: So many conversations or facts are offered at most.
OFFERED = 200
_TOOLS_FILE = "known-tools.json"
_VALUES = {
    "parallel-invocations": ("true", "false"),
    "tool-choice": ("auto", "any", "none"),
}


def offer_controls(attributes: ModelAttributes) -> Sequence[Offer]:
    """The controls that a model takes; all of them if it is not known."""
    known = attributes.controls
    return [
        (name, _describe(attributes, name))
        for name in Controls.__struct_encode_fields__
        if known is None or name in known or name == "extras"
    ]


def offer_control_values(attributes: ModelAttributes, control: str) -> Sequence[Offer]:
    """The values of a control that can be listed."""
    known = (attributes.controls or {}).get(control.replace("_", "-"))
    choices = known.choices if known is not None else ()
    return [(value, "") for value in choices or _VALUES.get(control.replace("_", "-"), ())]


def remember_tools(state: Path, tools: Mapping[str, str]) -> None:
    """Keep the names of tools and their descriptions, so that they are completed without a server.

    Tools of the same ensembles that were kept before are replaced. A disk that fails is no failure.
    """
    ensembles = {name.partition("/")[0] for name in tools}
    kept = {
        name: text for name, text in recall_tools(state) if name.partition("/")[0] not in ensembles
    }
    with suppress(VibeLlmsError), storage_errors(state):
        make_folder(state)
        replace_file(state / _TOOLS_FILE, msgspec.json.encode({**kept, **tools}))


def recall_tools(state: Path) -> Sequence[Offer]:
    """The tools that were kept; none if that cannot be read."""
    try:
        known = msgspec.json.decode(read_within(state, _TOOLS_FILE), type=dict[str, str])
    except (OSError, ValueError, VibeLlmsError):
        return []
    return list(known.items())


def _describe(attributes: ModelAttributes, control: str) -> str:
    known = (attributes.controls or {}).get(control)
    if known is None:
        return ""
    if known.choices:
        return ", ".join(known.choices)
    bounds = (known.minimum, known.maximum)
    if bounds == (None, None):
        return ""
    low, high = ("" if bound is None else f"{bound:g}" for bound in bounds)
    return f"{low} to {high}" if low and high else f"from {low}" if low else f"up to {high}"
