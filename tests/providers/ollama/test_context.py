"""T7: what is too long is said, not hidden, also by a server that cuts it and says nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.fakes.ollama import FakeModel, FakeOllama, count_tokens
from tests.fakes.ollama_clients import produce_client, produce_model
from vibe_llms import open_session
from vibe_llms.base.exceptions import ContextOverflow
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice, NoticeEvent
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.ollama import model as models
from vibe_llms.providers.ollama.context import PICTURE, Verdict, choose_window, judge
from vibe_llms.providers.token_estimates import Measure, measure_text
from vibe_llms.testing.wires.ollama_replies import call, end, line, text_reply

DENSE = "".join(random.Random(1).choices("abcdefgh", k=32_000))
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 24
TEXT = (
    "the of and a to in is it you that he was for on are with as his they be at one have this from "
    "or had by hot but some what there we can out other were all your when up use word how said an "
    "each she which do their time if will way about many then them would write like so these her "
    "long make thing see him two has look more day could go come did my sound no most number who "
    "over know water than call first people may down side been now find any new work part take get "
    "place made live where after back little only round man year came show every good me give our "
    "under name very through just form much great think say help low line before turn cause same "
    "mean differ move right boy old too does tell sentence set three want air well also play small "
    "international responsibility characterization misunderstanding electromagnetic"
)
WORDS = TEXT.split()
#: The ways in which a server may count, from the newest to the oldest.
SERVERS = (
    {"reports_cached": True, "counts_cached": True},
    {"reports_cached": False, "counts_cached": True},
    {"reports_cached": False, "counts_cached": False},
)


def write(chance: random.Random, words: int) -> str:
    """Prose of so many words."""
    ends = chance.choices([" ", " ", " ", " ", ", ", ". "], k=words)
    return "".join(map(str.__add__, chance.choices(WORDS, k=words), ends)).rstrip()


def long_text(chance: random.Random, words: int) -> list[Canister]:
    return [UserCanister.from_text(write(chance, words))]


def many_messages(chance: random.Random, words: int) -> list[Canister]:
    said: list[Canister] = []
    for _ in range(words // 100):
        said.append(UserCanister.from_text(write(chance, 40)))
        said.append(AssistantCanister.from_text(write(chance, 60)))
    return [*said, UserCanister.from_text("And now?")]


def many_results(chance: random.Random, words: int) -> list[Canister]:
    said: list[Canister] = [UserCanister.from_text("Look it up.")]
    for _ in range(words // 150):
        made = InvocationCanister(name="look", arguments='{"at": "it"}')
        result = ResultCanister((TextualContent(write(chance, 150)),), invocation=made.identity)
        said += [made, result]
    return said


def many_pictures(chance: random.Random, words: int) -> list[Canister]:
    said: list[Canister] = []
    for _ in range(words // 60):
        said.append(UserCanister((ImageContent(PNG, "image/png"), TextualContent("What is it?"))))
        said.append(AssistantCanister.from_text(write(chance, 10)))
    return [*said, UserCanister.from_text("And all together?")]


def dense_results(chance: random.Random, words: int) -> list[Canister]:
    said: list[Canister] = [UserCanister.from_text("Read the table.")]
    for _ in range(words // 150):
        made = InvocationCanister(name="read")
        rows = [{"id": chance.randbytes(6).hex(), "n": chance.random()} for _ in range(8)]
        result = ResultCanister((TextualContent(json.dumps(rows)),), invocation=made.identity)
        said += [made, result]
    return said


SHAPES: Sequence[Callable[[random.Random, int], list[Canister]]] = (
    long_text,
    many_messages,
    many_results,
    many_pictures,
    dense_results,
)


async def ask(
    server: FakeOllama, said: Sequence[Canister], window: int, **options: Any
) -> tuple[BaseException | None, list[Notice]]:
    """One request with a context of so many tokens: how it failed, and what was reported."""
    notices: list[Notice] = []
    model = await produce_model(server.url, num_ctx=window, **options)
    try:
        await model.converse(said, context=TurnContext(notify=notices.append))
    except ContextOverflow as error:
        return error, notices
    finally:
        await model.client.close()
    return None, notices


def cutting(server: FakeOllama, number: int) -> None:
    """Make it a server that cuts what is too long, and counts in one of the known ways."""
    server.refuses_long = False
    for name, value in SERVERS[number % len(SERVERS)].items():
        setattr(server, name, value)


@pytest.mark.storm
async def test_a_server_that_cuts_the_prompt_is_detected(
    fake_ollama: FakeOllama, rounds: Callable[[int, int], int]
) -> None:
    number = rounds(50, 1000)
    sent = 0
    for seed in range(number):
        chance = random.Random(seed)
        cutting(fake_ollama, seed)
        fake_ollama.served.clear()
        said = SHAPES[seed % len(SHAPES)](chance, chance.randrange(6_500, 30_000))
        error, _ = await ask(fake_ollama, said, 4_096)
        assert all(served.read < served.whole for served in fake_ollama.served), seed
        assert isinstance(error, ContextOverflow), f"{seed}: {fake_ollama.served}"
        assert error.limit == 4_096
        assert (error.tokens or 0) > 3_000
        sent += len(fake_ollama.served)
    # Most of them are refused before they are sent.
    assert 0 < sent < number


@pytest.mark.storm
async def test_a_server_that_has_less_room_than_was_asked_for_is_detected(
    fake_ollama: FakeOllama, rounds: Callable[[int, int], int]
) -> None:
    number = rounds(50, 1000)
    fake_ollama.largest = 4_096
    failed = reported = 0
    for seed in range(number):
        chance = random.Random(seed)
        cutting(fake_ollama, seed)
        fake_ollama.served.clear()
        said = SHAPES[seed % len(SHAPES)](chance, chance.randrange(6_500, 14_000))
        error, notices = await ask(fake_ollama, said, 40_960)
        (served,) = fake_ollama.served
        assert served.read < served.whole
        failed += error is not None
        reported += error is None and any("may not have read" in notice.text for notice in notices)
    # What looks like a cached prompt is reported as a doubt; pictures have no least number.
    assert (failed > number // 5, failed + reported >= number * 4 // 5) == (True, True)


async def test_a_server_whose_count_is_not_looked_at_would_be_detected(
    fake_ollama: FakeOllama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "judge", lambda *_: "whole")
    with pytest.raises(AssertionError):
        await test_a_server_that_cuts_the_prompt_is_detected(fake_ollama, lambda few, many: few)


@pytest.mark.storm
async def test_no_whole_prompt_is_taken_for_a_cut_one(
    fake_ollama: FakeOllama, rounds: Callable[[int, int], int]
) -> None:
    # Each conversation grows, so that what the server has cached is most of it.
    for seed in range(rounds(30, 300)):
        chance = random.Random(seed)
        cutting(fake_ollama, seed)
        notices: list[Notice] = []
        client = produce_client(fake_ollama.url, num_ctx=32_768 if seed % 2 else None)
        model = await client.access_model("qwen3:8b")
        context = TurnContext(notify=notices.append, cache=model.produce_cache())
        said: list[Canister] = []
        for _ in range(6):
            shape = SHAPES[chance.randrange(len(SHAPES))]
            said += shape(chance, chance.randrange(40, 500))
            thinks = [line("", thinking=write(chance, 100))] if chance.random() < 0.5 else []
            fake_ollama.replies = [[*thinks, *text_reply(write(chance, 50))]]
            said += await model.converse(said, context=context)
        assert all(served.read == served.whole for served in fake_ollama.served), seed
        doubts = [notice for notice in notices if "may not have read" in notice.text]
        # A server that does not count what it had cached looks like one that cuts a
        # little, so then there is a notice, but never an error.
        assert not doubts or not fake_ollama.counts_cached, seed
        await client.close()


async def test_a_server_that_does_not_count_what_it_had_cached_is_reported_once_at_most(
    fake_ollama: FakeOllama,
) -> None:
    cutting(fake_ollama, 2)
    events: list[Any] = []
    configuration = {"providers": {"ollama": {"base-url": fake_ollama.url}}}
    async with open_session(configuration=configuration, event_handler=events.append) as session:
        conversation = await session.begin("ollama/qwen3:8b")
        for _ in range(4):
            await conversation.converse("Tell me about the sky, please. " * 20)
    doubts = [e for e in events if isinstance(e, NoticeEvent) and "may not" in e.notice.text]
    assert len(doubts) == 1


async def test_a_newer_server_refuses_what_is_too_long(fake_ollama: FakeOllama) -> None:
    # One word of many tokens, of which it cannot be known before it is sent.
    text = DENSE
    assert count_tokens(text) > 4_096 > measure_text(text).least
    error, _ = await ask(fake_ollama, [UserCanister.from_text(text)], 4_096)
    assert isinstance(error, ContextOverflow)
    assert error.status == 400
    assert fake_ollama.served == []
    assert (fake_ollama.chats[0]["truncate"], fake_ollama.chats[0]["shift"]) == (False, False)


async def test_the_context_that_is_asked_for_grows_with_the_conversation(
    fake_ollama: FakeOllama,
) -> None:
    model = await produce_model(fake_ollama.url)
    context = TurnContext(cache=model.produce_cache())
    said: list[Canister] = []
    chance = random.Random(1)
    for words in (10, 8_000, 8_000, 10):
        said.append(UserCanister.from_text(write(chance, words)))
        said += await model.converse(said, context=context)
    asked = [chat["options"]["num_ctx"] for chat in fake_ollama.chats]
    assert asked == [16_384, 32_768, 40_960, 40_960]
    assert all(served.read == served.whole for served in fake_ollama.served)
    await model.client.close()


async def test_the_context_is_left_to_the_server_where_the_row_says_so(
    fake_ollama: FakeOllama,
) -> None:
    await ask(fake_ollama, [UserCanister.from_text("Hi")], 0)
    assert fake_ollama.chats[0]["options"] == {}
    # Then only a count that is surely too small shows that the prompt was cut.
    cutting(fake_ollama, 0)
    error, _ = await ask(fake_ollama, many_messages(random.Random(1), 9_000), 0)
    assert isinstance(error, ContextOverflow)


async def test_a_machine_with_less_memory_than_was_asked_for_is_detected(
    fake_ollama: FakeOllama,
) -> None:
    cutting(fake_ollama, 0)
    fake_ollama.largest = 2_048
    error, _ = await ask(fake_ollama, many_messages(random.Random(1), 6_000), 16_384)
    assert isinstance(error, ContextOverflow)


async def test_who_wants_the_prompt_cut_can_have_it(fake_ollama: FakeOllama) -> None:
    cutting(fake_ollama, 0)
    model = await produce_model(fake_ollama.url, num_ctx=0)
    controls = Controls(extras={"ollama": {"truncate": True}})
    await model.converse(many_messages(random.Random(1), 9_000), controls=controls)
    assert fake_ollama.served[0].read < fake_ollama.served[0].whole
    await model.client.close()


async def test_a_server_that_has_more_room_than_was_asked_for_is_believed(
    fake_ollama: FakeOllama,
) -> None:
    # A hosted model has its own context.
    model = await produce_model(fake_ollama.url, num_ctx=4_096)
    context = TurnContext(cache=model.produce_cache())
    said: list[Canister] = [UserCanister.from_text("word " * 3_000)]
    fake_ollama.replies = [[line("So."), end(prompt_eval_count=6_000)]]
    said += await model.converse(said, context=context)
    said.append(UserCanister.from_text("word " * 3_000))
    fake_ollama.count = lambda message: 100
    fake_ollama.replies = [[line("So."), end(prompt_eval_count=9_100)]]
    assert await model.converse(said, context=context)
    await model.client.close()


async def test_other_tools_do_not_look_like_a_cut(fake_ollama: FakeOllama) -> None:
    async def invoke(arguments: str, context: Any) -> InvocationOutput:
        return InvocationOutput(())

    def produce(number: int) -> Invoker:
        schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(30)}}
        return Invoker(
            name=f"tool{number}", description="d " * 50, arguments_schema=schema, invoke=invoke
        )

    notices: list[Notice] = []
    model = await produce_model(fake_ollama.url)
    context = TurnContext(notify=notices.append, cache=model.produce_cache())
    tools = [produce(number) for number in range(20)]
    said: list[Canister] = [UserCanister.from_text("Hi")]
    said += await model.converse(said, tools, context=context)
    said.append(UserCanister.from_text("And without?"))
    await model.converse(said, context=context)
    assert notices == []
    await model.client.close()


async def test_the_thinking_of_a_run_of_calls_may_vanish_afterwards(
    fake_ollama: FakeOllama,
) -> None:
    # As the templates have it: thinking counts until the person speaks again.
    model = await produce_model(fake_ollama.url, num_ctx=8_192)
    notices: list[Notice] = []
    context = TurnContext(notify=notices.append, cache=model.produce_cache())
    chance = random.Random(3)
    thought = write(chance, 3_000)
    said: list[Canister] = [UserCanister.from_text("Look it up.")]
    fake_ollama.replies = [[line("", thinking=thought, tool_calls=[call("look", {})]), end()]]
    reply = await model.converse(said, context=context)
    said += reply
    said.append(ResultCanister((TextualContent("It is."),), invocation=reply[-1].identity))
    fake_ollama.replies = [[line("So."), end(prompt_eval_count=count_tokens(thought) + 60)]]
    said += await model.converse(said, context=context)
    said.append(UserCanister.from_text("Thanks."))
    await model.converse(said, context=context)
    assert notices == []
    await model.client.close()


async def test_a_small_model_is_asked_for_what_it_has(fake_ollama: FakeOllama) -> None:
    fake_ollama.models["tiny"] = FakeModel(["completion"], trained=2_048, family="tiny")
    model = await produce_model(fake_ollama.url, name="tiny")
    await model.converse([UserCanister.from_text("Hi")])
    assert fake_ollama.chats[0]["options"] == {"num_ctx": 2_048}
    with pytest.raises(ContextOverflow, match="at least 3000 tokens"):
        await model.converse([UserCanister.from_text("word " * 3_000)])
    assert len(fake_ollama.chats) == 1
    await model.client.close()


LARGE = Measure(4_000, 5_000, 9_000)


@pytest.mark.parametrize(
    ("measure", "window", "reported", "cached", "verdict"),
    [
        # All of it was read.
        (LARGE, 8_192, 5_100, 0, "whole"),
        (LARGE, 8_192, 4_100, None, "whole"),
        (Measure(), 8_192, 1, None, "whole"),
        # A full context has no room for a reply.
        (LARGE, 4_096, 4_096, None, "cut"),
        (LARGE, 4_096, 4_100, 0, "cut"),
        # The server has a larger context than was asked for: a hosted one.
        (LARGE, 4_096, 5_000, None, "whole"),
        # Less than there surely is: cut, or cached on a server that does not count that.
        (LARGE, 8_192, 2_000, 0, "cut"),
        (LARGE, 8_192, 2_000, None, "doubtful"),
        (LARGE, 4_096, 2_000, None, "cut"),
        (LARGE, None, 2_000, None, "doubtful"),
        (LARGE, None, 2_000, 1_000, "cut"),
        # Far less than there probably is, where it probably does not fit.
        (Measure(2_000, 8_000, 16_000), 4_096, 3_900, None, "cut"),
        (Measure(2_000, 8_000, 16_000), 16_384, 3_900, None, "whole"),
        # Nearly full, on a server that may have cut a little.
        (Measure(3_000, 4_000, 8_000), 4_096, 3_800, None, "doubtful"),
        (Measure(3_000, 4_000, 8_000), 4_096, 3_800, 0, "whole"),
        # Nothing is reported where all was cached on the oldest servers.
        (LARGE, 8_192, None, None, "whole"),
        (LARGE, 8_192, 0, None, "whole"),
        (LARGE, 4_096, None, None, "doubtful"),
    ],
)
def test_what_a_count_proves(
    measure: Measure, window: int | None, reported: int | None, cached: int | None, verdict: Verdict
) -> None:
    assert judge(measure, window, reported, cached) == verdict


@pytest.mark.parametrize(
    "text",
    [
        "The sky is blue. It's what they say, isn't it?",
        "def f(x: int) -> str:\n    return foo.bar[x](1, 2)\n" * 20,
        json.dumps({"a": [1, 2.5, {"b": None}]}) * 30,
        "x = 0x7f; // " + "=" * 400 + " " * 400,
        "天空是蓝色的。" * 40,
        "",
        " \n\t",
    ],
)
def test_a_measure_is_in_order(text: str) -> None:
    measure = measure_text(text)
    assert 0 <= measure.least <= measure.likely <= measure.ample
    assert measure.least <= count_tokens(text) or not text.strip()


def test_repetition_is_not_taken_for_many_tokens() -> None:
    assert measure_text("=" * 10_000).likely < 10
    assert measure_text("a" + " " * 10_000 + "b").ample < 10


@pytest.mark.parametrize(
    ("ample", "context", "fixed", "window"),
    [
        (100, None, None, 8_192),
        (100, 2_048, None, 2_048),
        (10_000, 131_072, None, 16_384),
        (10_000, None, None, 16_384),
        (500_000, 131_072, None, 131_072),
        (500_000, 131_072, 4_096, 4_096),
        (100, 131_072, 0, None),
    ],
)
def test_a_context_is_chosen(
    ample: int, context: int | None, fixed: int | None, window: int | None
) -> None:
    assert choose_window(Measure(ample=ample), context, 4_096, fixed) == window


def test_a_picture_may_be_small_or_large() -> None:
    assert (PICTURE.least, PICTURE.likely < PICTURE.ample) == (0, True)
