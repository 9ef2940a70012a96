"""Search for a server on this machine that answers without a key."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.base.network.offline import is_loopback, requests_forbidden
from vibe_llms.base.redaction import redact
from vibe_llms.providers.interfaces import Client, Model

#: Seconds for which all local servers together are asked for their models.
SEARCH_SECONDS = 0.3
#: Seconds until they are asked again.
KEPT_SECONDS = 10.0
# Names and families of models that only make vectors, scores or sound. Source: the embedding models
# of https://ollama.com/library, and the tasks of https://huggingface.co/models (2026-11).
_NOT_CHAT = re.compile(
    r"embed|rerank|bert\b|minilm|paraphrase|whisper|(?<![a-z])(?:bge|gte|e5|tts|clip)(?![a-z])",
    re.IGNORECASE,
)
#: A model that only vibe-llms itself serves: its own server must not answer to itself.
_OWN = "scripted/demo"


class LocalSearch:
    """Finds the first chat model of the first local server that lists any.

    `survey` yields the rows that need no key, with their addresses and clients, in order. Only
    addresses of this machine are asked.
    """

    def __init__(self, survey: Callable[[], Iterable[tuple[str, str, Client]]]) -> None:
        self._survey = survey
        self._found: tuple[str, str] | None = None
        self._until = 0.0

    async def find(self) -> tuple[str, str] | None:
        """Return the address of a model and a note for the user, or None."""
        if requests_forbidden():
            return None
        if time.monotonic() >= self._until:
            self._found = await self._ask()
            self._until = time.monotonic() + KEPT_SECONDS
        return self._found

    async def _ask(self) -> tuple[str, str] | None:
        """Ask all servers at the same time, for `SEARCH_SECONDS` together."""
        tasks = [
            (name, url, asyncio.create_task(_choose_served(client)))
            for name, url, client in self._survey()
            if is_on_this_machine(url)
        ]
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                for name, url, task in tasks:
                    if model := await task:
                        return _describe(name, url, model)
        except TimeoutError:
            # An earlier server may hang while a later one has answered.
            for name, url, task in tasks:
                if task.done() and not task.cancelled() and (model := task.result()):
                    return _describe(name, url, model)
        finally:
            for _, _, task in tasks:
                task.cancel()
            await asyncio.gather(*(task for _, _, task in tasks), return_exceptions=True)
        return None


def is_on_this_machine(address: str) -> bool:
    """Return True if requests to a URL do not leave this machine."""
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        # The transport reports a wrong address.
        return False


def choose_chat_model(models: Sequence[Model]) -> str:
    """Return the name of the first model that can chat, or an empty text."""
    if any(model.name == _OWN for model in models):
        return ""
    for model in models:
        if not _NOT_CHAT.search(f"{model.name} {model.attributes.title}"):
            return model.name
    return ""


async def _choose_served(client: Client) -> str:
    """Return the first chat model that a server lists, or an empty text."""
    with suppress(VibeLlmsError):
        return choose_chat_model(await client.survey_models())
    return ""


def _describe(row: str, url: str, model: str) -> tuple[str, str]:
    address = f"{row}/{model}"
    return address, (
        f"no key is set, so {address} answers, from the server at {redact(url)}; choose another "
        "model with -m, or set default-model in config.toml"
    )
