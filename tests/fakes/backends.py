"""What a law asks of an interface, whether a server answers or something in this process.

A law asks for a backend, has it answer with replies of some shape (whole, cut, stalled, refused),
and looks at what was sent. How that is done is the interface's own affair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibe_llms.base.configuration import StorageSettings
from vibe_llms.opening import open_session
from vibe_llms.session.core import Session
from vibe_llms.storage.archive import DirectoryArchive


@dataclass(frozen=True, kw_only=True, eq=False)
class Interface(ABC):
    """One interface; `row` is its row in the configuration, `module` that of its provider.

    `texts`, `tools` and `thoughts` make replies in its own format, for the `replies` of a backend,
    which says "Hello." when none is left. `failures` are replies that fail, each by a word for its
    class. `thinks`, `sees`, `checks` and `caches` are whether its replies hold reasoning, its
    models can take pictures, it refuses what a model does not take, and encodes a history once.
    """

    row: str
    model: str
    module: str
    texts: Callable[..., Any]
    tools: Callable[..., Any]
    thoughts: Callable[[str, str, str], Any]
    failures: Mapping[str, Callable[..., Any]]
    thinks: bool = True
    sees: bool = True
    checks: bool = True
    caches: bool = True

    @property
    def name(self) -> str:
        """What tests call it."""
        return self.row

    @property
    def address(self) -> str:
        """The model with its row before it."""
        return f"{self.row}/{self.model}"

    @abstractmethod
    def serve(self) -> AbstractContextManager[Any]:
        """A backend, as strict as the real one."""

    @abstractmethod
    def play(self, *replies: Any) -> AbstractContextManager[Any]:
        """A backend with these replies."""

    @abstractmethod
    def cut(self, reply: Any, part: float) -> Any:
        """A reply that breaks off after this part of it."""

    @abstractmethod
    def stall(self, reply: Any, part: float) -> Any:
        """A reply that says nothing more after this part of it; after -1 not even that it began."""

    def escape(self, reply: Any) -> Any:
        """A reply as one sends it that escapes whatever is not ASCII."""
        return reply

    def remember(self, backend: Any, reply: Any) -> None:  # noqa: B027  (most sign nothing)
        """What a backend signed of a reply, although it is cut, it knows when it comes back."""

    @abstractmethod
    async def produce_model(self, backend: Any, **options: Any) -> Any:
        """A model of a client of its own."""

    @abstractmethod
    def sent(self, backend: Any) -> list[bytes]:
        """The requests for a reply that came, byte for byte."""

    @abstractmethod
    def count_left(self, backend: Any) -> int:
        """How many replies were left before their end, which the backend has noticed."""

    @abstractmethod
    def configure(self, backend: Any, **settings: Any) -> dict[str, Any]:
        """A configuration whose row leads to a backend."""

    def keys(self, backend: Any) -> Mapping[str, str]:
        """The key of the row, where it needs one."""
        return {self.row: backend.key} if backend.key else {}

    def open_session(
        self, backend: Any, home: Path | None = None, **settings: Any
    ) -> AbstractAsyncContextManager[Session]:
        """A session whose row leads to a backend; its archive is in `home`, if that is given."""
        archive = None
        if home is not None:
            archive = DirectoryArchive(home, StorageSettings(durability="fast"))
        configuration = self.configure(backend, **settings)
        return open_session(configuration=configuration, archive=archive, keys=self.keys(backend))


def produce_row(**settings: Any) -> dict[str, Any]:
    """The keys of a row: none is tried again unless it says so."""
    return {"retries": 0} | {name.replace("_", "-"): value for name, value in settings.items()}
