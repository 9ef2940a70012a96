"""Generation of one reply on a model's thread: render, count, generate, and send deltas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from msgspec import Struct

from vibe_llms.base.exceptions import ContextOverflow, ReplyCut, RequestRefused, SessionClosed
from vibe_llms.providers.deltas import Delta
from vibe_llms.providers.llamacpp.controls import Generation
from vibe_llms.providers.llamacpp.engines import CLOSED, Job
from vibe_llms.providers.llamacpp.grammars import produce_grammar
from vibe_llms.providers.llamacpp.history import fold_system
from vibe_llms.providers.llamacpp.package import LlamaModel
from vibe_llms.providers.llamacpp.streams import (
    Decoder,
    LlamacppAssimilator,
    StopFinder,
    merge_deltas,
)
from vibe_llms.providers.llamacpp.templates import THINK, THINK_END, Template

#: Seconds for which deltas are gathered before they are sent; too short to be noticed.
PACE_SECONDS = 0.01
#: Seconds between signals that the thread still works, if there is nothing to send.
SIGN_SECONDS = 1.0


class Signal(Struct, frozen=True, gc=False):
    """Sign that the thread has begun or still works; not part of the reply."""


class SystemNotice(Struct, frozen=True, gc=False):
    """Notice that the conversation was changed to fit the template."""

    text: str


GenerationItem = Delta | Signal | SystemNotice
_NO_SYSTEM = "the template has no system message, so instructions go into the first message"


class GenerationTask(Struct, frozen=True, kw_only=True):
    """Reply to be generated. `template` is resolved on the thread: it may need the package."""

    provider: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    generation: Generation
    template: Callable[[], Template]
    name_of: Callable[[str], str]
    seed: int | None = None
    reuse: bool = False
    streaming: bool = True

    def measure(self, loaded: LlamaModel) -> int:
        """Return the number of tokens in the prompt."""
        return len(loaded.tokenize(self._render(loaded, self.template())[0]))

    def perform(self, job: Job[GenerationItem], loaded: LlamaModel) -> None:
        """Generate the reply; raise `ContextOverflow` before anything is generated."""
        job.send(Signal())
        template, generation = self.template(), self.generation
        grammar = self._produce_grammar(loaded)
        prompt, notices = self._render(loaded, template, closed=grammar is not None)
        job.send(*notices)
        tokens = loaded.tokenize(prompt)
        room = loaded.context_tokens - len(tokens)
        if room <= 0:
            raise self._overflow(len(tokens), loaded.context_tokens)
        bound = min(generation.max_tokens or room, room)
        kept = loaded.keep(tokens, reuse=self.reuse)
        assimilator = LlamacppAssimilator(
            self.name_of,
            calls=bool(self.tools) and template.calls,
            thinks=template.thinks,
            thinking=template.thinks and prompt.rstrip().endswith(THINK),
        )
        decoder, finder = Decoder(), StopFinder(generation.stop)
        sender = _Sender(job, streaming=self.streaming)
        reason = "stop"
        try:
            with closing(
                loaded.generate(
                    tokens,
                    job.halt,
                    sampling=generation.sampling,
                    seed=generation.seed if generation.seed is not None else self.seed,
                    grammar=grammar,
                )
            ) as pieces:
                for written, piece in enumerate(pieces, 1):
                    sender.send(assimilator.feed(finder.feed(decoder.feed(piece))))
                    if finder.found:
                        break
                    if written == bound:
                        reason = "length"
                        break
        except ReplyCut:
            # Keep the reply so far, including deltas that were not sent yet.
            sender.flush()
            raise
        if job.halt.is_set():
            raise SessionClosed(CLOSED)
        if not finder.found:
            sender.send(assimilator.feed(finder.feed(decoder.conclude()), 0))
            sender.send(assimilator.feed(finder.conclude(), 0))
        sender.send(assimilator.conclude(reason, len(tokens), kept, finder.found))
        sender.flush()

    def _render(
        self, loaded: LlamaModel, template: Template, *, closed: bool = False
    ) -> tuple[str, Sequence[SystemNotice]]:
        """Return the prompt and its notices; `closed` is True if the reply follows a grammar."""
        variables = dict(self.generation.variables)
        if closed:
            # A grammar forces the answer itself.
            variables["enable_thinking"] = False
        prompt, notices = self._apply(loaded, template, variables)
        if template.thinks and (closed or self.generation.think is False):
            bare = prompt.rstrip()
            if bare.endswith(THINK):
                prompt = f"{bare}\n\n{THINK_END}\n\n"
            elif not closed and not bare.endswith(THINK_END):
                # The template has no switch for reasoning, so the model is given an empty thought.
                prompt = f"{prompt}{THINK}\n\n{THINK_END}\n\n"
        return prompt, notices

    def _apply(
        self, loaded: LlamaModel, template: Template, variables: Mapping[str, Any]
    ) -> tuple[str, Sequence[SystemNotice]]:
        """Apply the template to the conversation, without system messages if it refuses them."""
        try:
            return loaded.render(template.text, self.messages, self.tools, variables), ()
        except RequestRefused as refusal:
            if (folded := fold_system(self.messages)) is None:
                raise
            try:
                prompt = loaded.render(template.text, folded, self.tools, variables)
            except RequestRefused:
                raise refusal from refusal.__cause__
            return prompt, (SystemNotice(_NO_SYSTEM),)

    def _produce_grammar(self, loaded: LlamaModel) -> Any:
        generation = self.generation
        control = "extras" if generation.grammar is not None else "response-schema"
        text = generation.grammar or produce_grammar(
            generation.response_schema,
            [tool["function"]["name"] for tool in self.tools],
            generation.tool_choice,
            lambda schema: loaded.convert_schema(schema, control),
        )
        return loaded.produce_grammar(text, control) if text else None

    def _overflow(self, tokens: int, limit: int) -> ContextOverflow:
        error = ContextOverflow(
            f"the conversation has {tokens} tokens, but the model is loaded with room for {limit}, "
            "reply included; compact the conversation, or continue with a larger "
            "context-tokens in the row, or with another model",
            provider=self.provider,
            code="context_overflow",
        )
        error.tokens, error.limit = tokens, limit
        return error


class _Sender:
    """Sender of deltas in timed batches, or in a single batch if the reply is not streamed."""

    def __init__(self, job: Job[GenerationItem], *, streaming: bool) -> None:
        self._job = job
        self._streaming = streaming
        self._gathered: list[Delta] = []
        self._last = 0.0

    def send(self, deltas: Iterable[Delta]) -> None:
        self._gathered += deltas
        since = time.monotonic() - self._last
        if self._gathered and self._streaming and since >= PACE_SECONDS:
            self.flush()
        elif since >= SIGN_SECONDS:
            self._job.send(Signal())
            self._last = time.monotonic()

    def flush(self) -> None:
        self._job.send(*merge_deltas(self._gathered))
        self._gathered = []
        self._last = time.monotonic()
