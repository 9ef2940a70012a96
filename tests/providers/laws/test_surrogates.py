"""T6: lone surrogates, by whatever entry they come in, are replaced and never refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.backends import Interface
from tests.fakes.interfaces import (
    ANTHROPIC,
    EVERY,
    GEMINI,
    RESPONSES,
    SHOUT,
    VERTEX,
    HttpInterface,
    every_vendor,
    slow_if_repeated,
)
from vibe_llms.base.exceptions import RequestRefused
from vibe_llms.conversations import prompts
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import FileContent, ImageContent, Location, TextualContent, Upload
from vibe_llms.messages.controls import Controls
from vibe_llms.providers import conversions, pieces, requests
from vibe_llms.providers.anthropic import history as anthropic_history
from vibe_llms.providers.anthropic import messages as anthropic_messages
from vibe_llms.providers.bedrock import history as bedrock_history
from vibe_llms.providers.bedrock import messages as bedrock_messages
from vibe_llms.providers.bedrock import model as bedrock_model
from vibe_llms.providers.ollama import history as ollama_history
from vibe_llms.providers.ollama import messages as ollama_messages
from vibe_llms.providers.openai import contents as openai_contents
from vibe_llms.providers.openai.chat_completions import messages as chat_messages
from vibe_llms.providers.openai.responses import messages as response_messages
from vibe_llms.session.core import Session

#: Where text is made fit for the wire.
MODULES = (
    *(conversions, pieces, requests, anthropic_messages, anthropic_history),
    *(openai_contents, chat_messages, response_messages),
    *(ollama_history, ollama_messages, bedrock_history, bedrock_messages, bedrock_model),
)
#: The rows whose requests have members for whatever a program wants to note.
METADATA = ("anthropic", "openai", "openai-chat")
#: The example plugin takes no files and no such controls, and no JSON that is wrong.
UNFIT = {(SHOUT, entry) for entry in ("names_of_files", "controls", "what_the_model_says")}
LONE = ("\ud800", "\udbff", "\udc00", "\udfff", "\ud83d\ud83d", "\ude00\ud83d")


class Case:
    """One conversation into which text with surrogates comes by one entry."""

    def __init__(self, interface: Interface, session: Session, server: Any, text: str) -> None:
        self.interface, self.session = interface, session
        self.server, self.text = server, text

    async def begin(self, **options: Any) -> Conversation:
        return await self.session.begin(self.interface.address, **options)

    async def prompt(self) -> None:
        await (await self.begin()).converse(self.text + ".")

    async def parts_of_a_prompt(self) -> None:
        document = DocumentCanister.from_text(self.text)
        await (await self.begin()).converse([self.text, document, self.text, "."])

    async def supervisor(self) -> None:
        conversation = await self.begin(supervisor=self.text + ".")
        await conversation.converse("Hi")
        await conversation.add(SupervisorCanister.from_text(self.text))
        await conversation.converse("Hi")

    async def documents(self) -> None:
        contents = (TextualContent(self.text),)
        document = DocumentCanister(contents=contents, title=self.text, source=self.text)
        await (await self.begin()).converse([document, "Hi"])

    async def names_of_files(self) -> None:
        file = FileContent(b"x", "text/plain", self.text)
        await (await self.begin()).converse([file, "Hi"])

    async def addresses(self) -> None:
        picture = ImageContent(Location("https://example.org/" + self.text))
        upload = FileContent(Upload("file_" + self.text, "x"), "application/pdf", self.text)
        history = [UserCanister((picture, upload))]
        await (await self.begin(history=history)).converse("Hi")

    async def history(self) -> None:
        """As a program has put it together, or another library's archive held it."""
        call = InvocationCanister(
            name="f" + self.text, arguments=json.dumps({"a": self.text}), call=self.text
        )
        odd = InvocationCanister(name="g", arguments=f'{{"a":"{self.text}"}}')
        history = [
            UserCanister.from_text(self.text), AssistantCanister.from_text(self.text), call,
            ResultCanister((TextualContent(self.text),), invocation=call.identity), odd,
        ]  # fmt: skip
        await (await self.begin(history=history)).converse("Hi")

    async def results_of_tools(self) -> None:
        def speak() -> str:
            return self.text

        def fail() -> str:
            raise LookupError(self.text)

        async def mix() -> list[Any]:
            return [{"a": self.text}, self.text]

        calls = (("speak", "{}"), ("fail", "{}"), ("mix", "{}"))
        self.server.replies = [self.interface.tools(*calls)]
        await (await self.begin(invokers=[speak, fail, mix])).converse("Hi")

    async def descriptions_of_tools(self) -> None:
        def speak(word: str = self.text) -> str:
            return word

        speak.__doc__ = f"Speak {self.text}."
        tool = Invoker.from_function(speak, description=f"Speak {self.text}.")
        await (await self.begin(invokers=[tool])).converse("Hi")

    async def what_the_model_says(self) -> None:
        arguments = json.dumps({"word": self.text})
        reply = self.interface.thoughts(self.text, self.text, arguments)
        if self.interface in (RESPONSES, GEMINI, VERTEX["vertex"]):
            self.interface.remember(self.server, reply)
        self.server.replies = [self.interface.escape(reply)]

        def speak(word: str) -> str:
            return word

        conversation = await self.begin(invokers=[speak])
        await conversation.converse("Hi")
        await conversation.converse("Go on")

    async def controls(self) -> None:
        schema = {"type": "object", "description": self.text, "additionalProperties": False}
        row = self.interface.row
        extras = {row: {"metadata": {"user_id": self.text}}} if row in METADATA else {}
        stop = None if self.interface is not ANTHROPIC else (self.text + ".",)
        controls = Controls(stop=stop, response_schema=schema, extras=extras)
        await (await self.begin()).converse("Hi", controls=controls)

    async def errors(self) -> None:
        conversation = await self.begin()
        if isinstance(self.interface, HttpInterface):
            self.server.replies = [self.interface.refuse(self.text)]
            with pytest.raises(RequestRefused) as caught:
                await conversation.converse("Hi")
            str(caught.value).encode()
        await conversation.converse("Hi")

    async def names_and_tags(self) -> None:
        conversation = await self.begin(name=self.text, tags=[self.text])
        await conversation.converse("Hi")
        await conversation.rename(self.text + ".")
        await (await conversation.fork(name=self.text)).converse("Hi")


ENTRIES = sorted(name for name in vars(Case) if not name.startswith("_") and name != "begin")


def place(chance: random.Random) -> str:
    """Text with lone surrogates somewhere, and sound text around them."""
    words = ["", "a", "é", "😀", " ", "\u2028", "\n"]
    return "".join(
        chance.choice(words) + chance.choice(LONE) + chance.choice(words)
        for _ in range(chance.randint(1, 3))
    )


async def check_entry(interface: Interface, home: Path, entry: str, texts: Sequence[str]) -> None:
    """Nothing fails, and the strict server takes every request."""
    with interface.serve() as server:
        await _check_entry(interface, server, home, entry, texts)


async def _check_entry(
    interface: Interface, server: Any, home: Path, entry: str, texts: Sequence[str]
) -> None:
    async with interface.open_session(server, home) as session:
        for text in texts:
            case = Case(interface, session, server, text)
            try:
                await getattr(case, entry)()
            except UnicodeEncodeError as error:
                raise AssertionError(f"{text!r} came through") from error
            assert not server.refusals, (entry, text)
            server.replies = []
    for body in interface.sent(server):
        if isinstance(interface, HttpInterface):
            json.dumps(json.loads(body), ensure_ascii=False).encode()


@pytest.mark.storm
@pytest.mark.parametrize(
    ("interface", "entry"),
    [
        pytest.param(one, entry, id=f"{one.name}-{entry}", marks=slow_if_repeated(one.row))
        for one, entry in product(EVERY.values(), ENTRIES)
        if (one, entry) not in UNFIT
    ],
)
async def test_lone_surrogates_do_no_harm_by_any_entry(
    interface: Interface, entry: str, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    chance = random.Random(entry)
    texts = [*LONE, *(place(chance) for _ in range(rounds(1, 200)))]
    await check_entry(interface, tmp_path, entry, texts)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["prompt", "history", "descriptions_of_tools"])
@every_vendor
async def test_surrogates_that_come_through_would_be_detected(
    interface: Interface, entry: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prompts, "repair_canister", lambda canister: canister)
    for module in MODULES:
        for name, careless in (("repair_text", str), ("encode_json", encode_as_it_is)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, careless)
    with pytest.raises((AssertionError, RequestRefused)):
        await check_entry(interface, tmp_path, entry, LONE)


def encode_as_it_is(value: object) -> bytes:
    """The seeded bug: JSON in which a lone surrogate is escaped, which no server accepts."""
    return json.dumps(value, default=lambda raw: json.loads(bytes(raw))).encode()
