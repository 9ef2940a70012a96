"""Stores the definitions of approved tools, and blocks tools whose definition has changed.

A server describes its own tools, in words that a model reads and obeys. Therefore its description
of a tool is stored when a call of it is first approved. If the description changes later, the tool
is blocked until the user approves the change.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import EnsembleFailed, StorageError
from vibe_llms.base.files import LARGEST_SETTINGS, read_trusted
from vibe_llms.base.folders import make_folder, replace_file, storage_errors
from vibe_llms.base.locks import locked
from vibe_llms.invocation.ensembles import OutsideEnsemble
from vibe_llms.invocation.invokers import InvocationContext, Invoker, skip_check
from vibe_llms.invocation.results import InvocationOutput

_FORMAT = 1
_LOCK_SECONDS = 10.0


class Definition(Struct, frozen=True):
    """The description of a tool by its ensemble: everything that the user approves."""

    name: str
    description: str
    arguments_schema: dict[str, Any]
    annotations: dict[str, Any]

    @classmethod
    def of(cls, invoker: Invoker) -> Definition:
        """Return the current definition of a tool."""
        return cls(
            invoker.name,
            invoker.description,
            dict(invoker.arguments_schema),
            dict(invoker.annotations),
        )

    def encode(self) -> str:
        """Encode the definition as JSON; equal definitions give equal text."""
        import json

        return json.dumps(msgspec.to_builtins(self), sort_keys=True)


class ToolChange(Struct, frozen=True):
    """A tool whose definition differs from the approved one."""

    approved: Definition
    offered: Definition


class Pins:
    """The approved definitions of one ensemble and origin, in a file of the state folder."""

    def __init__(self, state: Path, ensemble: str, origin: str) -> None:
        import hashlib
        import json

        # An origin may contain a key, so only its hash is stored.
        digest = hashlib.sha256(json.dumps([ensemble, origin]).encode()).hexdigest()
        self.path = state / "pins" / f"{digest}.json"
        self._ensemble = ensemble
        self._stamp: tuple[int, ...] = ()
        self._definitions: dict[str, Definition] = {}

    def load(self) -> Mapping[str, Definition]:
        """Return the approved definitions by tool name; read the file again if it changed."""
        with storage_errors(self.path):
            try:
                found = os.stat(self.path, follow_symlinks=False)
            except FileNotFoundError:
                if self._stamp:
                    self._stamp, self._definitions = (), {}
                return self._definitions
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp != self._stamp:
                self._definitions = self._decode(read_trusted(self.path))
                self._stamp = stamp
        return self._definitions

    def keep(self, definition: Definition) -> None:
        """Store the first definition of a tool; raise `EnsembleFailed` if another was approved."""
        with self._locked():
            if definition.name in self.load():
                self.require(definition)
            else:
                self._write({**self._definitions, definition.name: definition})

    def require(self, definition: Definition) -> None:
        """Raise `EnsembleFailed` unless this is the approved definition."""
        known = self.load().get(definition.name)
        if known is None or (known is not definition and known.encode() != definition.encode()):
            raise EnsembleFailed(describe_block(self._ensemble), ensemble=self._ensemble)

    def approve(self, changes: Iterable[ToolChange]) -> None:
        """Replace approved definitions with the new ones that the user has reviewed."""
        with self._locked():
            definitions = dict(self.load())
            for change in changes:
                definitions.pop(change.approved.name, None)
                definitions[change.offered.name] = change.offered
            self._write(definitions)

    def remove(self) -> None:
        """Delete all approved definitions of the ensemble."""
        with storage_errors(self.path):
            self.path.unlink(missing_ok=True)

    def _locked(self) -> AbstractContextManager[int]:
        with storage_errors(self.path):
            make_folder(self.path.parent)
        return locked(self.path.parent, seconds=_LOCK_SECONDS)

    def _write(self, definitions: Mapping[str, Definition]) -> None:
        import json

        content = {
            "format": _FORMAT,
            "ensemble": self._ensemble,
            "tools": [msgspec.to_builtins(one) for one in definitions.values()],
        }
        with storage_errors(self.path):
            replace_file(
                self.path, (json.dumps(content, indent=1) + "\n").encode(), LARGEST_SETTINGS
            )

    def _decode(self, data: bytes) -> dict[str, Definition]:
        import json

        try:
            content = json.loads(data)
            if content["format"] != _FORMAT:
                raise StorageError(
                    "a newer version wrote it; use that version", path=str(self.path)
                )
            tools = msgspec.convert(content["tools"], list[Definition])
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise StorageError(
                "the approved tools cannot be read from it; delete it to approve them again "
                f"({error})",
                path=str(self.path),
            ) from error
        return {one.name: one for one in tools}


class PinGuard:
    """The tools of an outside ensemble, each blocked if it has changed."""

    def __init__(self, ensemble: OutsideEnsemble, state: Path) -> None:
        self.pins = Pins(state, ensemble.name, ensemble.origin)
        self._ensemble = ensemble
        self._seen: tuple[Sequence[Invoker], Mapping[str, Definition]] = ((), {})
        self._guarded: tuple[Invoker, ...] = ()

    @property
    def invokers(self) -> Sequence[Invoker]:
        """Current tools; a tool that changed since its approval is blocked.

        For a blocked tool, the model sees the approved description instead of the new one.
        """
        offered, approved = self._ensemble.invokers, self.pins.load()
        if offered is not self._seen[0] or approved is not self._seen[1]:
            found = _compare(offered, approved)
            self._guarded = tuple(
                self._watch(one) if change is None else self._block(one, change)
                for one, change in found
            )
            self._seen = offered, approved
        return self._guarded

    @property
    def changes(self) -> Sequence[ToolChange]:
        """Blocked tools, each with its approved and its new definition."""
        found = _compare(self._ensemble.invokers, self.pins.load())
        return [change for _, change in found if change is not None]

    def _watch(self, invoker: Invoker) -> Invoker:
        """Return the tool; its first call stores its definition as approved."""
        definition = Definition.of(invoker)

        async def invoke(arguments: str, context: InvocationContext) -> InvocationOutput:
            if definition.name not in self.pins.load():
                await asyncio.to_thread(self.pins.keep, definition)
            self.pins.require(definition)
            return await invoker.invoke(arguments, context)

        return msgspec.structs.replace(invoker, invoke=invoke)

    def _block(self, invoker: Invoker, change: ToolChange) -> Invoker:
        why = describe_block(self._ensemble.name)

        async def refuse(_: str, __: InvocationContext) -> InvocationOutput:
            raise EnsembleFailed(why, ensemble=self._ensemble.name)

        return msgspec.structs.replace(
            invoker,
            description=change.approved.description,
            arguments_schema=change.approved.arguments_schema,
            annotations=change.approved.annotations,
            check=skip_check,
            invoke=refuse,
            blocked=why,
        )


def describe_block(ensemble: str) -> str:
    """Say why a tool is blocked and which command shows the change, for people and models."""
    return (
        "the tool is blocked because its server changed its description since it was "
        f"approved; to see the change: vibe-llms mcp approve {ensemble}"
    )


def _compare(
    offered: Sequence[Invoker], approved: Mapping[str, Definition]
) -> list[tuple[Invoker, ToolChange | None]]:
    """Pair tools with their changes; a tool renamed only in spelling counts as changed."""
    names = {one.name for one in offered}
    gone = {_bare(name): definition for name, definition in approved.items() if name not in names}
    found: list[tuple[Invoker, ToolChange | None]] = []
    for one in offered:
        known = approved.get(one.name) or gone.get(_bare(one.name))
        change = None
        if known is not None:
            now = Definition.of(one)
            change = ToolChange(known, now) if known.encode() != now.encode() else None
        found.append((one, change))
    return found


def _bare(name: str) -> str:
    """Return a name without case, punctuation and invisible characters."""
    import unicodedata

    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", name).casefold())
