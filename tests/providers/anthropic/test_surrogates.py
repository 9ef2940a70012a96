"""T6: lone surrogates, by whatever entry they come in, are replaced and refused by nobody."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.anthropic import (
    FakeAnthropic,
    failure,
    reply,
    stream_bytes,
    text_block,
    thinking_block,
    tool_block,
    tools_reply,
)
from vibe_llms import prompts
from vibe_llms.configuration import StorageSettings
from vibe_llms.controls import Controls
from vibe_llms.conversation import Conversation
from vibe_llms.exceptions import RequestRefused
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
from vibe_llms.providers import conversions, pieces
from vibe_llms.providers import requests as shared
from vibe_llms.providers.anthropic import messages, requests
from vibe_llms.session import Session, open_session
from vibe_llms.storage.archive import DirectoryArchive

MODEL = "anthropic/claude-opus-5"
LONE = ("\ud800", "\udbff", "\udc00", "\udfff", "\ud83d\ud83d", "\ude00\ud83d")


class Case:
    """One conversation into which text with surrogates comes by one entry."""

    def __init__(self, session: Session, server: FakeAnthropic, text: str) -> None:
        self.session, self.server, self.text = session, server, text

    async def begin(self, **options: Any) -> Conversation:
        return await self.session.begin(MODEL, **options)

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
        upload = FileContent(Upload("file_" + self.text, "anthropic"), "application/pdf", self.text)
        await (await self.begin()).converse([picture, upload, "Hi"])

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
        self.server.replies = [tools_reply(*calls)]
        await (await self.begin(invokers=[speak, fail, mix])).converse("Hi")

    async def descriptions_of_tools(self) -> None:
        def speak(word: str = self.text) -> str:
            return word

        speak.__doc__ = f"Speak {self.text}."
        tool = Invoker.from_function(speak, description=f"Speak {self.text}.")
        await (await self.begin(invokers=[tool])).converse("Hi")

    async def what_the_model_says(self) -> None:
        events = reply(
            thinking_block(0, self.text, "."),
            text_block(1, "a", self.text, "b"),
            tool_block(2, "speak", json.dumps({"word": self.text})),
            stop_reason="tool_use",
        )
        lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
        self.server.replies = [stream_bytes(lines)]

        def speak(word: str) -> str:
            return word

        conversation = await self.begin(invokers=[speak])
        await conversation.converse("Hi")
        await conversation.converse("Go on")

    async def controls(self) -> None:
        schema = {"type": "object", "description": self.text, "additionalProperties": False}
        controls = Controls(
            stop=(self.text + ".",),
            response_schema=schema,
            extras={"anthropic": {"metadata": {"user_id": self.text}}},
        )
        await (await self.begin()).converse("Hi", controls=controls)

    async def errors(self) -> None:
        conversation = await self.begin()
        self.server.replies = [failure(400, "invalid_request_error", self.text)]
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


async def check_entry(server: FakeAnthropic, home: Path, entry: str, texts: Sequence[str]) -> None:
    """Nothing fails, and the strict server takes every request."""
    configuration = {"providers": {"anthropic": {"base-url": server.url, "retries": 0}}}
    archive = DirectoryArchive(home, StorageSettings(durability="fast"))
    async with open_session(
        configuration=configuration, archive=archive, keys={"anthropic": server.key}
    ) as session:
        for text in texts:
            case = Case(session, server, text)
            try:
                await getattr(case, entry)()
            except UnicodeEncodeError as error:
                raise AssertionError(f"{text!r} came through") from error
            assert server.refusals == [], (entry, text)
            server.replies = []
    for request in server.requests:
        json.dumps(request.json, ensure_ascii=False).encode()


@pytest.mark.storm
@pytest.mark.parametrize("entry", ENTRIES)
async def test_lone_surrogates_do_no_harm_by_any_entry(
    entry: str, fake_anthropic: FakeAnthropic, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    chance = random.Random(entry)
    texts = [*LONE, *(place(chance) for _ in range(rounds(10, 200)))]
    await check_entry(fake_anthropic, tmp_path, entry, texts)


@pytest.mark.parametrize("entry", ["prompt", "history", "descriptions_of_tools", "controls"])
async def test_surrogates_that_come_through_would_be_found_out(
    entry: str, monkeypatch: pytest.MonkeyPatch, fake_anthropic: FakeAnthropic, tmp_path: Path
) -> None:
    monkeypatch.setattr(prompts, "repair_canister", lambda canister: canister)
    for module in (conversions, messages):
        monkeypatch.setattr(module, "repair_text", lambda text: text)
    for module in (pieces, messages, requests, shared):
        monkeypatch.setattr(module, "encode_json", encode_as_it_is)
    with pytest.raises((AssertionError, RequestRefused)):
        await check_entry(fake_anthropic, tmp_path, entry, LONE)


def encode_as_it_is(value: object) -> bytes:
    """The seeded bug: JSON in which a lone surrogate is escaped, which no server accepts."""
    return json.dumps(value, default=lambda raw: json.loads(bytes(raw))).encode()
