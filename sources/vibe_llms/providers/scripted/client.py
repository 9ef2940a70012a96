"""Provider, client, and models of the scripted provider, which plays a script as a stream."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import ContextOverflow, ModelNotFound, ModelUnavailable
from vibe_llms.invocation.invokers import Invoker, describe
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ReplyCanister,
    Usage,
)
from vibe_llms.messages.contents import MediaContent
from vibe_llms.messages.controls import ControlRange, Controls
from vibe_llms.messages.events import EventHandler
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.conversions import check_contents, name_content
from vibe_llms.providers.deltas import (
    ArgumentsDelta,
    ContentClosed,
    ContentOpened,
    Delta,
    InvocationClosed,
    InvocationOpened,
    ReasoningDelta,
    ReplyClosed,
    ReplyOpened,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.interfaces import (
    Embeddings,
    Loader,
    ProviderConfiguration,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.pieces import encode_json, load_texts
from vibe_llms.providers.row_models import RowModel
from vibe_llms.providers.scripted.demo import improvise, last_words
from vibe_llms.providers.scripted.messages import nativize
from vibe_llms.providers.scripted.scripts import (
    Improvisation,
    Part,
    Script,
    ScriptedReply,
    produce_fault,
    read_script,
)
from vibe_llms.providers.scripted.vectors import DIMENSIONS, count_words, embed_text
from vibe_llms.providers.spending import access_spending, bound_messages, reserve_output
from vibe_llms.providers.watch import Watch

MODULE = "vibe_llms.providers.scripted"
_MEDIA = ("image", "audio", "video")
READABLE_PACE_SECONDS = 0.02
DEMO = "demo"
_BYTES_PER_TOKEN = 4


class ScriptedSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of a row of this module.

    `scripts` maps names of further models to TOML files; relative paths begin in the folder of the
    configuration. `pace-seconds` is the delay between two words, by default only if interactive.
    """

    scripts: dict[str, str] = {}
    pace_seconds: Annotated[float, Meta(ge=0)] | None = None


class ScriptedProvider:
    """Provider row of this module."""

    def __init__(
        self, name: str, configuration: ProviderConfiguration, event_handler: EventHandler
    ) -> None:
        self.name = name
        self.event_handler = event_handler
        self.stream = configuration.stream
        settings = configuration.configuration.read(
            ScriptedSettings, configuration.settings, "providers", name
        )
        folder = configuration.configuration.places.configuration
        self.scripts = {
            model: folder / os.path.expanduser(path) for model, path in settings.scripts.items()
        }
        watched = READABLE_PACE_SECONDS if configuration.interactive else 0.0
        self.pace_seconds = watched if settings.pace_seconds is None else settings.pace_seconds

    def produce_client(self) -> ScriptedClient:
        """Return a new client, which the caller must close."""
        return ScriptedClient(
            self.name,
            self.event_handler,
            stream=self.stream,
            scripts=self.scripts,
            pace_seconds=self.pace_seconds,
        )


class ScriptedClient:
    """Client that plays the scripts of a row without a connection."""

    def __init__(
        self,
        provider: str,
        event_handler: EventHandler,
        *,
        stream: StreamSettings,
        scripts: Mapping[str, Path],
        pace_seconds: float = 0.0,
    ) -> None:
        self.provider = provider
        self.event_handler = event_handler
        self.stream = stream
        self.pace_seconds = pace_seconds
        self._scripts = scripts

    async def access_model(self, name: str) -> ScriptedModel:
        """Return `demo`, a script named in the row, or the script at a path.

        Raise `ModelNotFound` otherwise. A path is made absolute in the model's name so that its
        conversations can be continued from another folder.
        """
        if name == DEMO:
            return DemoModel(self, name, improvise, accepts=_MEDIA)
        if name not in self._scripts and name.endswith(".toml"):
            name = os.path.abspath(os.path.expanduser(name))  # noqa: ASYNC240  (it reads no file)
            path = Path(name)
        elif name in self._scripts:
            path = self._scripts[name]
        else:
            known = ", ".join([DEMO, *self._scripts])
            raise ModelNotFound(
                f"{self.provider!r} has no script {name!r}; the scripts are {known}; "
                "or write the path of a script: scripted/PATH.toml"
            )
        script = await asyncio.to_thread(read_script, path)
        return ScriptedModel(self, name, script)

    async def survey_models(self) -> Sequence[ScriptedModel]:
        """Return `demo` and the scripts named in the row."""
        return [await self.access_model(name) for name in (DEMO, *self._scripts)]

    async def embed(
        self, model: str, texts: Sequence[str], *, dimensions: int | None = None
    ) -> Embeddings:
        """Return vectors of the texts' words, for tests; only the model `demo` makes them."""
        if model != DEMO:
            raise ModelUnavailable(
                f"{model!r} does not support embeddings; use {DEMO!r}", provider=self.provider
            )
        vectors = [embed_text(text, dimensions or DIMENSIONS) for text in texts]
        return Embeddings(vectors, Usage(uncached_input_tokens=count_words(texts)))

    async def close(self) -> None:
        """Do nothing; there is no connection."""


class ScriptedModel(RowModel[ScriptedClient]):
    """Model that plays one script.

    With `recording`, `requests` holds every request sent to the model, each with its whole history,
    for tests to inspect. `context_tokens` is the longest request. `accepts` lists the kinds of
    contents that the model takes. The demo takes no files; their text is read instead.
    """

    module = MODULE
    #: The script bounds its replies.
    caps_output = True

    def __init__(
        self,
        client: ScriptedClient,
        name: str,
        script: Script | Improvisation,
        *,
        recording: bool = False,
        accepts: tuple[str, ...] = (*_MEDIA, "file"),
        context_tokens: int | None = None,
    ) -> None:
        super().__init__(client, name)
        if context_tokens is None and isinstance(script, Script):
            context_tokens = script.context_tokens
        self._window = context_tokens
        # A script does not follow a schema, and ignores other controls.
        taken = [name for name in Controls.__struct_encode_fields__ if name != "response-schema"]
        self.attributes = ModelAttributes(
            accepts=accepts,
            context_tokens=self._window,
            title="a script, not a model",
            controls={name: ControlRange(sure=False) for name in taken if name != "extras"},
        )
        self.requests: list[Mapping[str, Any]] = []
        self._recording = recording
        self._script = script
        self._served = 0

    def produce_cache(self) -> None:
        """Return None; a script needs no cache."""

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise if a canister has contents of a kind that the script does not take."""
        for canister in canisters:
            check_contents(canister, self, self._unsupported)

    def _unsupported(self, content: MediaContent) -> str:
        kind = str(content.__struct_config__.tag)
        taken = self.attributes.accept(kind) or content.mimetype.startswith("text/")
        return "" if taken else name_content(content)

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """Make one round trip; see `vibe_llms.providers.interfaces.Model`."""
        if self._recording:
            self.requests.append(await self._encode(canisters, invokers, controls, context))

        if (spending := access_spending()) is not None:
            tokens = bound_messages(canisters, invokers, self) if spending.bounded else 0
            await reserve_output(spending, self, tokens, controls, context)

        async def play(watch: Watch, accumulator: Accumulator) -> None:
            tokens = await self._require_window(canisters, context.load)
            reply = self._choose(canisters, invokers, controls.over(context.default_controls))
            if tokens and reply.usage is None:
                output = sum(len(str(part.text or "")) for part in reply.parts) // _BYTES_PER_TOKEN
                usage = Usage(uncached_input_tokens=tokens, output_tokens=output)
                reply = msgspec.structs.replace(reply, usage=usage)
            watch.expect("first-byte-seconds", self.client.stream.first_byte_seconds)
            async for delta in self._play(reply, context.streaming):
                watch.rest()
                accumulator.accept(delta)
                if context.throttle is not None:
                    await context.throttle()
                watch.expect("idle-seconds", self.client.stream.idle_seconds)

        return await self.attempt(play, context)

    async def _require_window(self, canisters: Sequence[Canister], load: Loader) -> int:
        """Return the tokens of a request; raise `ContextOverflow` if they are too many.

        Returns 0 if the script does not limit them.
        """
        limit = self._window
        if limit is None:
            return 0
        tokens = (await self.count_tokens(canisters, load=load)).tokens
        if tokens > limit:
            error = ContextOverflow(
                f"the request has {tokens} tokens, and the script accepts {limit}",
                provider=self.provider,
            )
            error.tokens, error.limit = tokens, limit
            raise error
        return tokens

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """Estimate one token per four bytes of a request, including texts in the archive."""
        texts = await load_texts(canisters, load)
        size = sum(len(encode_json(nativize(one, texts))) for one in canisters)
        return TokenCount(size // _BYTES_PER_TOKEN, estimated=True)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        """Return the request as a recording model stores it."""
        return encode_json(await self._encode(canisters, invokers, controls, context))

    async def _encode(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Mapping[str, Any]:
        texts = await load_texts(canisters, context.load)
        settled = controls.over(context.default_controls)
        return {
            "messages": [nativize(canister, texts) for canister in canisters],
            "tools": [describe(invoker) for invoker in invokers],
            "controls": settled.given(),
            "streaming": context.streaming,
        }

    def _choose(
        self, canisters: Sequence[Canister], invokers: Sequence[Invoker], controls: Controls
    ) -> ScriptedReply:
        if not isinstance(self._script, Script):
            return self._script(canisters, invokers)
        # Each attempt takes the next reply. A conversation that is continued in another process
        # continues after the replies that it already has.
        answered = {
            canister.reply
            for canister in canisters
            if isinstance(canister, AssistantCanister | InvocationCanister) and canister.reply
        }
        position = max(self._served, len(answered))
        self._served = position + 1
        return self._script.choose(last_words(canisters), position)

    async def _play(self, reply: ScriptedReply, streaming: bool) -> AsyncIterator[Delta]:
        said: list[str] = []
        opened = False
        for part in reply.parts:
            if part.delay_seconds:
                await asyncio.sleep(part.delay_seconds)
            if (fault := produce_fault(part, self.provider)) is not None:
                raise fault
            if part.stall:
                # Wait until the limit of the row or the caller ends it.
                await asyncio.Event().wait()
            async for delta in self._play_part(part, streaming):
                if not opened:
                    yield ReplyOpened("scripted")
                    opened = True
                if isinstance(delta, TextDelta | ReasoningDelta | ArgumentsDelta):
                    said.append(delta.text)
                yield delta
        if not opened:
            yield ReplyOpened("scripted")
        yield UsageDelta(reply.usage or Usage(output_tokens=len("".join(said).split())))
        yield ReplyClosed(reply.reason, native_reason="script")

    async def _play_part(self, part: Part, streaming: bool) -> AsyncIterator[Delta]:
        if part.text is not None:
            yield ContentOpened("text")
            async for chunk in self._pace(part.text, streaming):
                yield TextDelta(chunk)
            yield ContentClosed()
        if part.reasoning is not None:
            yield ContentOpened("reasoning")
            async for chunk in self._pace(part.reasoning, streaming):
                yield ReasoningDelta(chunk)
            yield ContentClosed()
        if part.invocation is not None:
            yield InvocationOpened(part.invocation)
            arguments = part.arguments
            if not isinstance(arguments, str):
                arguments = msgspec.json.encode(arguments).decode()
            yield ArgumentsDelta(arguments)
            yield InvocationClosed()

    async def _pace(self, text: str | tuple[str, ...], streaming: bool) -> AsyncIterator[str]:
        if not streaming:
            yield text if isinstance(text, str) else "".join(text)
            return
        chunks = re.findall(r"\s*\S+\s*|\s+", text) if isinstance(text, str) else text
        for chunk in chunks:
            if self.client.pace_seconds:
                await asyncio.sleep(self.client.pace_seconds)
            yield chunk


class DemoModel(ScriptedModel):
    """Model `demo`, which also follows the controls for tool choice and response schema."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        names = Controls.__struct_encode_fields__
        taken = {name: ControlRange() for name in names if name != "extras"}
        self.attributes = msgspec.structs.replace(self.attributes, controls=taken)

    def _choose(
        self, canisters: Sequence[Canister], invokers: Sequence[Invoker], controls: Controls
    ) -> ScriptedReply:
        return improvise(canisters, invokers, controls)
