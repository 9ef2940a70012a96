"""The official client, which lists, shows and pulls the models of a server.

This is the only module that imports the package `ollama`, and the `httpx` that it sends with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from vibe_llms.base.credentials import guard_loggers
from vibe_llms.base.exceptions import (
    PackageMissing,
    ProviderError,
    ProviderUnreachable,
    ReplyCut,
    ReplyMalformed,
    ReplyTimeout,
)
from vibe_llms.base.files import describe_download
from vibe_llms.base.network.connections import choose_proxy
from vibe_llms.base.network.offline import permit_request
from vibe_llms.base.redaction import redact
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.http_errors import ErrorObject
from vibe_llms.providers.ollama.errors import ERRORS, advise_unreachable

if TYPE_CHECKING:
    from ollama import AsyncClient


class LibraryModel(Struct, frozen=True):
    """A model on a server; `size` is in bytes."""

    name: str
    size: int = 0
    family: str = ""
    parameters: str = ""
    quantization: str = ""


class LibraryEntry(Struct, frozen=True):
    """A server's description of one of its models."""

    capabilities: tuple[str, ...] = ()
    context_tokens: int | None = None
    parameters: str = ""
    template: str = ""


class PullProgress(Struct, frozen=True):
    """A step of pulling a model; `completed` and `total` are bytes of the part `digest`."""

    status: str
    digest: str = ""
    completed: int = 0
    total: int = 0

    @property
    def text(self) -> str:
        """The step for people, with its bytes and percentage.

        >>> PullProgress("pulling 8934", "sha256:8934", 120_000_000, 4_900_000_000).text
        'pulling 8934: 0.1 of 4.9 GB (2 %)'
        """
        if not self.total:
            return self.status
        return f"{self.status}: {describe_download(self.completed, self.total)}"


class OllamaLibrary:
    """The models of a server:

    ```python
    async with client.produce_library() as library:
        async for progress in library.pull("qwen3:8b"):
            print(progress.text)
    ```

    Failures are `ProviderError`s; without the package ollama it is a `PackageMissing`.
    """

    def __init__(
        self,
        provider: str,
        address: str,
        authorize: Callable[[], Mapping[str, str]],
        *,
        connect_seconds: float,
        idle_seconds: float,
        offline: bool = False,
    ) -> None:
        self._provider = provider
        self._offline = offline
        self._address = address
        self._authorize = authorize
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._client: AsyncClient | None = None

    async def __aenter__(self) -> Self:
        self._client = self._connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()  # type: ignore[no-untyped-call]

    async def list(self) -> Sequence[LibraryModel]:
        """Return the models that the server has."""
        with self._translated():
            listed = await self._access_client().list()
        return [
            LibraryModel(
                repair_text(entry.model or ""),
                int(entry.size or 0),
                (entry.details and entry.details.family) or "",
                (entry.details and entry.details.parameter_size) or "",
                (entry.details and entry.details.quantization_level) or "",
            )
            for entry in listed.models
        ]

    async def show(self, name: str) -> LibraryEntry:
        """Return the description of a model; raise `ModelUnavailable` if the server lacks it."""
        with self._translated(name):
            shown = await self._access_client().show(name)
        lengths = [
            value
            for key, value in (shown.modelinfo or {}).items()
            if key.endswith(".context_length") and isinstance(value, int)
        ]
        return LibraryEntry(
            tuple(shown.capabilities or ()),
            lengths[0] if lengths else None,
            shown.parameters or "",
            shown.template or "",
        )

    async def pull(self, name: str) -> AsyncIterator[PullProgress]:
        """Make the server download a model; the last step has the status `success`."""
        status = ""
        with self._translated(name):
            async for step in await self._access_client().pull(name, stream=True):
                status = repair_text(step.status or "")
                yield PullProgress(status, step.digest or "", step.completed or 0, step.total or 0)
        if status != "success":
            raise ReplyCut(
                f"pulling {name!r} ended before it was complete; pull it again to continue",
                provider=self._provider,
            )

    def _access_client(self) -> AsyncClient:
        if self._client is None:
            raise RuntimeError("use the library within `async with`")
        permit_request(
            self._address,
            f"{self._provider}: a request about the models of a server",
            offline=self._offline,
        )
        return self._client

    def _connect(self) -> AsyncClient:
        try:
            import httpx
            import ollama
        except ImportError as error:
            raise PackageMissing(
                f"managing the models of [providers.{self._provider}]",
                package="ollama",
                command="python -m pip install 'vibe-llms[ollama]'",
            ) from error
        guard_loggers("ollama", "httpx", "httpcore")
        headers = dict(self._authorize())

        async def keep_own_key(request: Any) -> None:
            # The package sends OLLAMA_API_KEY to every server, even if its row has no key.
            if not headers:
                request.headers.pop("authorization", None)

        return ollama.AsyncClient(
            host=self._address,
            headers=headers,
            follow_redirects=False,
            event_hooks={"request": [keep_own_key]},
            timeout=httpx.Timeout(self._idle_seconds, connect=self._connect_seconds),
            proxy=choose_proxy(self._address),
            trust_env=False,
            verify=httpx.create_ssl_context(),
        )

    @contextmanager
    def _translated(self, model: str = "") -> Iterator[None]:
        """Raise errors of the package, and of its HTTP client, as our errors."""
        import httpx
        import ollama
        import pydantic

        try:
            yield
        except ollama.ResponseError as error:
            status = error.status_code if error.status_code > 0 else None
            raise self._translate(str(error.error), status, model) from error
        except ollama.RequestError as error:
            raise self._translate(str(error.error), 400, model) from error
        except httpx.TimeoutException as error:
            limit = "connect-seconds" if isinstance(error, httpx.ConnectTimeout) else "idle-seconds"
            seconds = self._connect_seconds if limit == "connect-seconds" else self._idle_seconds
            raise ReplyTimeout(
                f"no answer within {seconds:g} s ({limit})",
                provider=self._provider,
                limit=limit,
                seconds=seconds,
            ) from error
        except (ConnectionError, httpx.ConnectError) as error:
            unreachable = ProviderUnreachable(str(error), provider=self._provider)
            raise advise_unreachable(unreachable, self._address) from error
        except httpx.TransportError as error:
            raise ReplyCut(
                f"connection lost during the reply: {redact(str(error))}",
                provider=self._provider,
            ) from error
        except (pydantic.ValidationError, ValueError, TypeError) as error:
            raise ReplyMalformed(
                f"unexpected data from the server: {redact(str(error))[:200]}",
                provider=self._provider,
            ) from error

    def _translate(self, words: str, status: int | None, model: str) -> ProviderError:
        return ERRORS.produce(self._provider, ErrorObject(words), status=status, model=model)
