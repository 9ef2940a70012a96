"""Context windows that refusals of servers have taught, by row and model.

A declared window may be wrong or missing. When a server refuses a request as too long, its window
is stored in a file of the state folder and limits later requests to the model. A session without
such a folder remembers it until it is closed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import Positive
from vibe_llms.base.exceptions import ContextOverflow, RequestTooLarge, StorageError
from vibe_llms.base.files import LARGEST_SETTINGS, read_trusted
from vibe_llms.base.folders import describe, make_folder, replace_file, storage_errors
from vibe_llms.base.locks import locked
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import Model

#: Name of the file in the state folder.
FILE_NAME = "learned-windows.json"
#: Smallest window that is inferred from a refusal without a limit, in tokens.
LEAST_INFERRED = 1_024
#: Smallest limit in a server's words that is taken for a window.
LEAST_NAMED = 256
#: Number of stored windows; the oldest ones are dropped.
MOST_WINDOWS = 1_000
#: Share of the declared window above which a request may really have been too long.
_EXPLAINED = 0.9
#: Number of characters of a server's words that are stored.
_MOST_WORDS = 200
_LOCK_SECONDS = 10.0

_Key: TypeAlias = tuple[str, str]


class LearnedWindow(Struct, frozen=True, omit_defaults=True):
    """A context window that a refusal has taught.

    `declared` is the window of the model's attributes at that time, and `server` the address of
    the row. If another one is declared now, or requests go elsewhere, this window no longer
    applies. `created` is the day in UTC, as in `2026-11-27`. `words` are the beginning of the
    server's error.
    """

    row: str
    model: str
    tokens: Positive
    declared: int | None = None
    server: str = ""
    created: str = ""
    words: str = ""

    @property
    def address(self) -> str:
        """Address `row/model` of the model."""
        return f"{self.row}/{self.model}"

    def fits(self, model: Model) -> bool:
        """Return True unless the model has another declared window or another server now."""
        declared = model.attributes.context_tokens in (None, self.declared)
        return declared and self.server == _server_of(model)


class _Content(Struct, frozen=True):
    """Content of the file."""

    windows: tuple[LearnedWindow, ...]


# msgspec 0.22 crashes if two threads are the first to use a type, so use it here first.
_DECODER = msgspec.json.Decoder(_Content)
_Stored: TypeAlias = Mapping[_Key, LearnedWindow]
_Change: TypeAlias = Callable[[_Stored], _Stored]


class Windows:
    """Context windows of models: the declared or the learned one, whichever is smaller.

    The file is read when it is first needed, and again if another process has changed it. With
    `create`, a missing `folder` is created when something is stored.
    """

    def __init__(
        self,
        folder: Path | None = None,
        notify: Callable[[Notice], None] | None = None,
        *,
        create: bool = True,
    ) -> None:
        self.path = None if folder is None else folder / FILE_NAME
        self._notify = notify
        self._create = create
        self._stamp: tuple[int, ...] = ()
        self._stored: _Stored = {}
        #: Windows of this session that could not be stored.
        self._own: dict[_Key, LearnedWindow] = {}

    async def window_of(self, model: Model) -> int | None:
        """Return the context window of a model in tokens, or None if nothing is known."""
        await self._refresh()
        return self.recall(model)

    def recall(self, model: Model) -> int | None:
        """Return the window like `window_of`, by the file as it was last read."""
        declared, learned = model.attributes.context_tokens, self._find(model)
        if learned is None:
            return declared
        return learned.tokens if declared is None else min(declared, learned.tokens)

    async def find(self, model: Model) -> LearnedWindow | None:
        """Return the learned window of a model, or None if there is none that still applies."""
        await self._refresh()
        return self._find(model)

    async def learn(self, model: Model, error: ContextOverflow, measured_tokens: int) -> int | None:
        """Store the window of a model that has refused a request; return it if it is smaller now.

        It is the limit that the error names, or else half of the tokens of the refused request, by
        the server's count or `measured_tokens`. A limit in bytes teaches nothing.
        """
        known = await self.window_of(model)
        tokens = _infer(error, measured_tokens, known, model.attributes.context_tokens)
        if tokens is None or (known is not None and tokens >= known):
            return None
        learned = LearnedWindow(
            row=model.provider,
            model=model.name,
            tokens=tokens,
            declared=model.attributes.context_tokens,
            server=_server_of(model),
            created=datetime.now(UTC).date().isoformat(),
            words=" ".join(str(error).split())[:_MOST_WORDS],
        )
        key = (learned.row, learned.model)
        self._own[key] = learned
        if await self._change(lambda stored: _merge(stored, learned)):
            self._own.pop(key, None)
        return self.recall(model)

    async def survey(self) -> Sequence[LearnedWindow]:
        """Return all learned windows, by address."""
        await self._refresh()
        windows = {**self._stored, **self._own}.values()
        return sorted(windows, key=lambda one: one.address)

    async def forget(self, address: str | None = None) -> Sequence[LearnedWindow]:
        """Remove the learned window of a model `row/model`, or all; return the removed ones.

        Raises `StorageError` if the file cannot be written.
        """
        removed = [one for one in await self.survey() if address in (None, one.address)]
        keys = {(one.row, one.model) for one in removed}
        if keys & self._stored.keys():
            await self._change(lambda stored: _without(stored, keys), strict=True)
        for key in keys:
            self._own.pop(key, None)
        return removed

    def _find(self, model: Model) -> LearnedWindow | None:
        if not self._stored and not self._own:
            return None
        key = (model.provider, model.name)
        found = (self._stored.get(key), self._own.get(key))
        fitting = [one for one in found if one is not None and one.fits(model)]
        return min(fitting, key=lambda one: one.tokens, default=None)

    async def _refresh(self) -> None:
        """Read the file if it has changed."""
        if self.path is None:
            return
        try:
            stamp = _stamp(self.path)
        except OSError:
            stamp = ()
        if stamp == self._stamp:
            return
        stored, problem = await asyncio.to_thread(_read, self.path) if stamp else ({}, "")
        self._stored, self._stamp = stored, stamp
        if problem:
            self._report(f"{problem}; it is ignored, and replaced when a window is learned")

    async def _change(self, change: _Change, *, strict: bool = False) -> bool:
        """Change the file; unless strict, report a failure and return False."""
        try:
            changed = await asyncio.to_thread(self._rewrite, change)
        except StorageError as error:
            if strict:
                raise
            self._report(f"a learned context window applies to this session only: {error}")
            return False
        if changed is None:
            return False
        self._stored, self._stamp = changed
        return True

    def _rewrite(self, change: _Change) -> tuple[_Stored, tuple[int, ...]] | None:
        """Change the file; return its windows and stamp, or None if there is no place for it."""
        if self.path is None:
            return None
        folder = self.path.parent
        if not self._create and not folder.is_dir():
            # The folder of a removed user.
            return None
        with storage_errors(self.path):
            make_folder(folder)
            with locked(folder, seconds=_LOCK_SECONDS):
                stored = change(_read(self.path)[0])
                replace_file(self.path, _encode(stored), LARGEST_SETTINGS)
                return stored, _stamp(self.path)

    def _report(self, text: str) -> None:
        if self._notify is not None:
            self._notify(Notice("window", text))


def _infer(
    error: ContextOverflow, measured_tokens: int, known: int | None, declared: int | None
) -> int | None:
    """Return the window that a refusal tells, or None.

    The window so far is `known`, because it was learned or `declared`.
    """
    if isinstance(error, RequestTooLarge):
        return None
    if error.limit is not None and error.limit >= LEAST_NAMED:
        return error.limit
    tokens = error.tokens or measured_tokens
    if (known is not None and tokens > known) or (
        declared is not None and tokens >= declared * _EXPLAINED
    ):
        # The known window explains the refusal.
        return None
    return max(tokens // 2, LEAST_INFERRED) if tokens > 0 else None


def _merge(stored: _Stored, learned: LearnedWindow) -> _Stored:
    """Add a window; of two with the same declaration and server, the smaller one stays."""
    key = (learned.row, learned.model)
    known = stored.get(key, learned)
    same = (known.declared, known.server) == (learned.declared, learned.server)
    if same and known.tokens < learned.tokens:
        return stored
    others = {other: one for other, one in stored.items() if other != key}
    newest = [*others.items(), (key, learned)][-MOST_WINDOWS:]
    return dict(newest)


def _server_of(model: Model) -> str:
    """Return the address of a model's server; empty if the model is not on one."""
    return str(getattr(model, "server", ""))


def _without(stored: _Stored, keys: set[_Key]) -> _Stored:
    return {key: one for key, one in stored.items() if key not in keys}


def _stamp(path: Path) -> tuple[int, ...]:
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path) -> tuple[_Stored, str]:
    """Return the stored windows, and why the file cannot be used, if so."""
    try:
        content = _DECODER.decode(read_trusted(path))
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{path} cannot be read: {describe(error)}"
    except (ValueError, RecursionError) as error:
        return {}, f"{path} is damaged: {error}"
    return {(one.row, one.model): one for one in content.windows}, ""


def _encode(windows: _Stored) -> bytes:
    data = msgspec.json.encode(_Content(tuple(windows.values())))
    return msgspec.json.format(data, indent=1) + b"\n"
