"""The protocol of built-in and third-party ensembles.

A session opens an ensemble once, when a conversation first names it or calls one of its tools, and
closes it with the session. Its tools are `Invoker`s with names of the form `ensemble/tool`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import Positive, Seconds
from vibe_llms.invocation.invokers import Approval, Invoker


class Ensemble(Protocol):
    """A group of tools that open and close together."""

    @property
    def name(self) -> str:
        """The name of its row, which is the first part of its tools' names."""
        ...

    @property
    def invokers(self) -> Sequence[Invoker]:
        """The tools that it currently offers; none before it is open."""
        ...

    async def open(self) -> None:
        """Make the tools available; raises `EnsembleFailed` if that fails."""
        ...

    async def close(self) -> None:
        """Close everything; callable from any task, in any order, and more than once."""
        ...


@runtime_checkable
class OutsideEnsemble(Ensemble, Protocol):
    """An ensemble whose tools are described by others, such as a server.

    The description of a tool is stored when one of its calls is first approved.
    """

    @property
    def origin(self) -> str:
        """The command that it starts, or its address; another origin means another ensemble."""
        ...

    @property
    def details(self) -> Mapping[str, str]:
        """Facts about the other side once it is open, by short names, for display."""
        ...


@runtime_checkable
class RecallingEnsemble(Ensemble, Protocol):
    """An ensemble that may know its tools before it is open; then the first call opens it."""

    def recall(self) -> bool:
        """Offer the known tools; return False if the ensemble must be opened first."""
        ...


@runtime_checkable
class InstructingEnsemble(Ensemble, Protocol):
    """An ensemble that gives models instructions for its tools, besides their descriptions.

    The instructions are supervisor text while any of its tools is offered. Therefore they never
    contain text from others, such as a server.
    """

    @property
    def instructions(self) -> str:
        """Instructions for models; may be empty."""
        ...


#: Rules from the most lenient to the strictest.
STRICTNESS: Sequence[Approval] = ("always", "allow", "ask", "deny")


class ToolLimits(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Limits of a tool: the time of a call, and the shown and stored sizes of its result.

    Unset limits default to those of `[tools]`.
    """

    timeout_seconds: Seconds | None = None
    shown_bytes: Positive | None = None
    kept_bytes: Positive | None = None


class EnsembleRules(ToolLimits, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys that are common to all rows of `[ensembles]`.

    `approval` applies to all tools of the ensemble, `approvals` to single tools, without the
    ensemble's name. Without either, read-only tools are allowed and all others ask. `limits` apply
    to single tools and override the row's own. Both know tools by their names in other systems too;
    of several rules for one tool, the strictest applies. If `required`, failure to open the
    ensemble is an error instead of a notice. Without `pin-tools`, changed descriptions of tools go
    unnoticed.
    """

    approval: Approval | None = None
    approvals: Mapping[str, Approval] = {}
    limits: Mapping[str, ToolLimits] = {}
    required: bool = False
    pin_tools: bool = True

    def apply(self, invoker: Invoker, *, reads_only: bool) -> Invoker:
        """Return the tool with its approval and limits in this ensemble."""
        names = dict.fromkeys((invoker.name.partition("/")[2], *invoker.other_names.names))
        rules = [self.approvals[name] for name in names if name in self.approvals]
        usual: Approval = self.approval or ("allow" if reads_only else "ask")
        approval = max(rules, key=STRICTNESS.index) if rules else usual
        own = next((self.limits[name] for name in names if name in self.limits), ToolLimits())
        return msgspec.structs.replace(
            invoker,
            approval=approval,
            timeout_seconds=own.timeout_seconds or self.timeout_seconds,
            shown_bytes=own.shown_bytes or self.shown_bytes,
            kept_bytes=own.kept_bytes or self.kept_bytes,
        )
