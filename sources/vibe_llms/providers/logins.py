"""Logins of clouds: tokens and keys from a cloud's package, renewed before they end.

The package is imported when the first of them is needed, in a thread, because loading it and asking
for a token block.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from importlib.util import find_spec
from typing import ClassVar, Generic, Protocol, TypeVar

from msgspec import Struct

from vibe_llms.base.exceptions import CredentialMissing, PackageMissing
from vibe_llms.base.network.offline import permit_request
from vibe_llms.base.redaction import remember

#: Seconds before its end at which a token is renewed, and from which it is not used any more.
RENEWED_SECONDS = 300
USELESS_SECONDS = 30
_LOADING = threading.local()


class LoginGrant(Protocol):
    """Result of a login."""

    @property
    def secrets(self) -> Sequence[str]:
        """Texts that must not be shown."""
        ...

    def lasts(self, seconds: float) -> bool:
        """Return True if it need not be renewed for this time."""
        ...


G = TypeVar("G", bound=LoginGrant)
T = TypeVar("T")


class AccessToken(Struct, frozen=True):
    """Token of a login; `ends` is its end in seconds since 1970."""

    text: str
    ends: float

    def __repr__(self) -> str:
        return "[secret]"

    @property
    def secrets(self) -> Sequence[str]:
        """Texts that must not be shown."""
        return (self.text,)

    def lasts(self, seconds: float) -> bool:
        """Return True if the token is valid for this time."""
        return self.ends - time.time() > seconds


class CloudLogin(ABC, Generic[G]):
    """Login of a row with `credential = "package"`.

    `package` is the module that must be installed, `distribution` its name and `extra` our extra
    with it; `loggers` are its loggers and those of the packages it uses. `authority` is the server
    that issues tokens: with `offline`, none is asked. Without one, `fetch` must see to that.
    """

    package: ClassVar[str]
    distribution: ClassVar[str]
    extra: ClassVar[str]
    loggers: ClassVar[tuple[str, ...]]
    authority: ClassVar[str] = ""

    def __init__(self, provider: str, *, offline: bool = False) -> None:
        self.provider = provider
        self._offline = offline
        self._lock = threading.Lock()
        self._held: G | None = None
        self._refused = False

    @abstractmethod
    def load(self) -> None:
        """Import the package; raise `ImportError` if it is not installed. It runs in a thread."""

    @abstractmethod
    def fetch(self) -> G:
        """Return a new grant; raise `CredentialMissing` with what to do. It runs in a thread."""

    def reset(self) -> None:
        """Drop what the package remembers of the last login. It runs in a thread."""

    def check(self) -> None:
        """Raise `PackageMissing` if the package is not installed; import nothing of it."""
        try:
            found = find_spec(self.package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise self._miss_package()

    async def access(self) -> G:
        """Return a grant that does not end soon."""
        held = self._held
        if held is None or not held.lasts(RENEWED_SECONDS):
            held = await _run_aside(self._renew)
        return held

    def forget(self) -> None:
        """Log in anew next time, because a server has refused what was granted."""
        self._held, self._refused = None, True

    def miss(self, words: str) -> CredentialMissing:
        """Return the error of a login that gives nothing."""
        return CredentialMissing(words, table=f"providers.{self.provider}", key="credential")

    def _renew(self) -> G:
        with self._lock:
            held = self._held
            if held is not None and held.lasts(RENEWED_SECONDS):
                # Another thread was first.
                return held
            if self._refused:
                self._refused = False
                self.reset()
            if self.authority:
                permit_request(self.authority, f"{self.provider}: a login", offline=self._offline)
            try:
                self.load()
            except ImportError as error:
                raise self._miss_package() from error
            try:
                with _quiet(self.loggers):
                    made = self.fetch()
            except CredentialMissing:
                if held is not None and held.lasts(USELESS_SECONDS):
                    return held
                raise
            for secret in made.secrets:
                remember(secret)
            self._held = made
            return made

    def _miss_package(self) -> PackageMissing:
        return PackageMissing(
            f'credential = "package" of [providers.{self.provider}]',
            package=self.distribution,
            command=f"python -m pip install 'vibe-llms[{self.extra}]'",
        )


async def _run_aside(work: Callable[[], T]) -> T:
    """Return the result of some work in a thread that does not keep the process from ending.

    A source of tokens may hang, and cannot be interrupted.
    """
    result: futures.Future[T] = futures.Future()

    def run() -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised again where it is awaited)
            result.set_exception(error)

    threading.Thread(target=run, daemon=True, name="vibe-llms login").start()
    return await asyncio.wrap_future(result)


class _LoadingFilter(logging.Filter):
    """Filter that drops the records of a thread that logs in.

    Packages log answers of servers, with secrets that nobody could have remembered, and failures
    that are raised as well.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False while this thread logs in."""
        del record
        return not getattr(_LOADING, "active", False)


@contextmanager
def _quiet(names: tuple[str, ...]) -> Iterator[None]:
    """Drop what these loggers, and all below them, log in this thread."""
    below = tuple(f"{name}." for name in names)
    # A filter applies only to its own logger.
    for name in (
        *names,
        *(one for one in [*logging.root.manager.loggerDict] if one.startswith(below)),
    ):
        logger = logging.getLogger(name)
        if not any(isinstance(one, _LoadingFilter) for one in logger.filters):
            logger.addFilter(_LoadingFilter())
    _LOADING.active = True
    try:
        yield
    finally:
        _LOADING.active = False
