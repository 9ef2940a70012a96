"""A local server that answers from a script, like the servers of providers: `fake_server`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import read_toml, shipped_folder
from vibe_llms.base.exceptions import ScriptInvalid
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, Usage
from vibe_llms.providers.scripted.demo import last_words
from vibe_llms.providers.scripted.scripts import Improvisation, Part, Script, ScriptedReply
from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest
from vibe_llms.testing.wires.anthropic import AnthropicWire
from vibe_llms.testing.wires.chat_completions import ChatCompletionsWire
from vibe_llms.testing.wires.core import (
    AskedReply,
    RefusedRequest,
    ScriptedFailure,
    Wire,
    count_words,
    estimate_tokens,
    play,
)
from vibe_llms.testing.wires.gemini import GeminiWire
from vibe_llms.testing.wires.ollama import OllamaWire
from vibe_llms.testing.wires.responses import ResponsesWire

#: A script: the chunks of a reply, one reply, several, or a function that makes them.
AnyScript: TypeAlias = Sequence[str] | ScriptedReply | Script | Improvisation

KEY = "sk-fake-0123456789abcdef"
#: Models in the list if a script serves all names.
LISTED = ("claude-sonnet-5-5", "gpt-5.5", "gpt-6.1-sol", "gemini-3.8-flash", "qwen3:8b")
_MODULES = {
    "vibe_llms.providers.anthropic": "",
    "vibe_llms.providers.openai.responses": "/v1",
    "vibe_llms.providers.openai.chat_completions": "/v1",
    "vibe_llms.providers.gemini": "",
    "vibe_llms.providers.ollama": "",
}
_KEYLESS = "vibe_llms.providers.ollama"


class Received(Struct):
    """A request to the fake server, and its outcome.

    `interface` is `anthropic`, `responses`, `chat-completions`, `gemini` or `ollama`. `canisters`
    and `invokers` are the contents of a request for a reply. `refusal` is the reason if it was
    refused as malformed. `request` has the bytes and the headers.
    """

    interface: str
    request: ReceivedRequest
    model: str = ""
    canisters: Sequence[Canister] = ()
    invokers: Sequence[Invoker] = ()
    streaming: bool = False
    refusal: str = ""

    @property
    def body(self) -> Any:
        """The decoded body; raises `ValueError` if it is not JSON."""
        return self.request.json


class FakeServer(Listener):
    """A server that speaks the APIs of Anthropic, OpenAI, Gemini and Ollama; see `fake_server`.

    `received` holds all requests, in order. `refusals` lists the reasons of those refused as
    malformed; it is empty if the program under test works right. `configuration` and `keys` are for
    `open_session`, `environment` for other programs.
    """

    def __init__(
        self,
        script: AnyScript | Mapping[str, AnyScript],
        *,
        models: Sequence[str] = (),
        key: str = KEY,
        port: int = 0,
        recording: bool = True,
    ) -> None:
        super().__init__(port=port, recording=recording)
        self.key = key
        self.received: list[Received] = []
        self._scripts = (
            {name: _Playing(one) for name, one in script.items()}
            if isinstance(script, Mapping)
            else {}
        )
        self._script = None if isinstance(script, Mapping) else _Playing(script)
        self._models = tuple(models) or tuple(self._scripts)
        # The first wire that claims a request answers it; OpenAI's refuses unclaimed ones.
        self._otherwise = ChatCompletionsWire()
        self._wires: Sequence[Wire] = (
            OllamaWire(),
            GeminiWire(),
            AnthropicWire(),
            ResponsesWire(),
            self._otherwise,
        )

    @property
    def anthropic_url(self) -> str:
        """The `base_url` for the package anthropic and programs that speak Messages."""
        return self.url

    @property
    def openai_url(self) -> str:
        """The `base_url` for the package openai and programs that speak its interfaces."""
        return f"{self.url}/v1"

    @property
    def gemini_url(self) -> str:
        """The `base_url` for the package google-genai and programs that speak its interface."""
        return self.url

    @property
    def ollama_url(self) -> str:
        """The `host` for the package ollama and programs that speak its interface."""
        return self.url

    @property
    def models(self) -> Sequence[str]:
        """The models in the list."""
        return self._models or LISTED

    @property
    def refusals(self) -> Sequence[str]:
        """Reasons of requests that were refused as malformed."""
        return [one.refusal for one in self.received if one.refusal]

    @property
    def configuration(self) -> dict[str, Any]:
        """Settings that lead the shipped rows with a supported interface to this server."""
        rows = {}
        for name, module in _speaking_rows().items():
            row: dict[str, Any] = {"base-url": self.url + _MODULES[module]}
            if module != _KEYLESS:
                row["credential"] = "key"
            rows[name] = row
        return {"providers": rows}

    @property
    def keys(self) -> dict[str, str]:
        """The key of this server for each of these rows."""
        return {name: self.key for name, module in _speaking_rows().items() if module != _KEYLESS}

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead the official packages and the command `vibe-llms` to this server."""
        rows = {
            f"VIBE_LLMS_PROVIDERS__{name.upper().replace('-', '_')}__BASE_URL": row["base-url"]
            for name, row in self.configuration["providers"].items()
            if name in ("anthropic", "openai", "openai-chat", "gemini", "ollama")
        }
        return {
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": self.key,
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": self.key,
            "GOOGLE_GEMINI_BASE_URL": self.gemini_url,
            "GEMINI_API_KEY": self.key,
            "OLLAMA_HOST": self.ollama_url,
            **rows,
        }

    def require(self, model: str) -> None:
        """Raise `Refusal` if the server does not have the model."""
        if not model or (self._models and model not in self._models):
            raise RefusedRequest(
                f"model: {model}" if model else "no model", error="model-unavailable"
            )

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        """Return the answer to a request."""
        wire = next((wire for wire in self._wires if wire.claims(request)), self._otherwise)
        received = Received(wire.name, request)
        if self.recording:
            self.received.append(received)
        try:
            wire.authorize(request, self.key)
            if not wire.asks(request):
                return wire.answer(request, self)
            asked = wire.read(request)
            received.model, received.streaming = asked.model, asked.streaming
            received.canisters, received.invokers = asked.canisters, asked.invokers
            self.require(asked.model)
            reply = self._choose(asked)
            return play(wire, asked, reply, _usage_of(reply, asked))
        except RefusedRequest as refusal:
            if refusal.failure.error == "refused":
                received.refusal = str(refusal)
            return wire.refuse(refusal.failure)
        except ScriptInvalid as error:
            received.refusal = str(error)
            return wire.refuse(ScriptedFailure("refused", str(error)))

    def _choose(self, asked: AskedReply) -> ScriptedReply:
        playing = self._script or self._scripts.get(asked.model)
        if playing is None:
            raise ScriptInvalid(f"no script for the model {asked.model!r}")
        return playing.choose(asked)


class _Playing:
    """A script and the position in it."""

    def __init__(self, script: AnyScript) -> None:
        if isinstance(script, ScriptedReply):
            script = Script((script,))
        elif isinstance(script, Sequence):
            always = ScriptedReply(parts=(Part(text=tuple(script)),), when=r"(?s).*")
            script = Script((always,))
        self._script = script
        self._position = 0

    def choose(self, asked: AskedReply) -> ScriptedReply:
        if not isinstance(self._script, Script):
            return self._script(asked.canisters, asked.invokers)
        reply = self._script.choose(last_words(asked.canisters), self._position)
        if reply.when is None:
            self._position += 1
        return reply


def fake_server(
    script: AnyScript | Mapping[str, AnyScript],
    *,
    models: Sequence[str] = (),
    key: str = KEY,
    port: int = 0,
    recording: bool = True,
) -> FakeServer:
    """Return a server that answers like Anthropic, OpenAI, Gemini and Ollama, from a script.

    It works offline, with `with` and `async with`, and runs in its own thread:

    ```python
    with fake_server(["Hel", "lo"]) as server:
        async with open_session(
            home=folder, configuration=server.configuration, keys=server.keys
        ) as session:
            conversation = await session.begin("anthropic/claude-sonnet-5-5")
    ```

    `script` is the chunks of the reply to everything, one reply, a script, a function of the
    conversation and the tools (called in the server's thread), or one of these for each model by
    its name. Replies without `when` are given in order, one to each request. Only the models in
    `models`, or those with scripts, are known; without either, all names are. Requests are checked
    as the real servers check them. `port` 0 chooses a free one. With `recording` off, `received`
    stays empty, for a server that runs for a long time.
    """
    return FakeServer(script, models=models, key=key, port=port, recording=recording)


def _usage_of(reply: ScriptedReply, asked: AskedReply) -> Usage:
    """Return the usage from the script, or an estimate."""
    if reply.usage is not None:
        return reply.usage
    counts = {"text": 0, "reasoning": 0}
    for part in reply.parts:
        for kind, words in (("text", part.text), ("reasoning", part.reasoning)):
            counts[kind] += count_words(words if isinstance(words, str) else "".join(words or ()))
        if part.invocation is not None:
            counts["text"] += count_words(
                part.invocation + msgspec.json.encode(part.arguments).decode()
            )
    return Usage(
        uncached_input_tokens=estimate_tokens(asked.canisters, asked.invokers),
        output_tokens=counts["text"],
        reasoning_tokens=counts["reasoning"],
    )


def _speaking_rows() -> dict[str, str]:
    """Return the shipped rows with a supported interface, and their modules."""
    shipped = read_toml(shipped_folder() / "configuration" / "general.toml")["providers"]
    return {name: row["module"] for name, row in shipped.items() if row["module"] in _MODULES}
