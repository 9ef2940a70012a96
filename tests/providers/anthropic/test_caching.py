"""What Anthropic's cache holds of a conversation, and for how long it is asked to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.fakes.anthropic_cache import AnthropicCache, Counted
from tests.fakes.clients import assemble, produce_model
from tests.fakes.strict import Refused
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    Ending,
    InvocationCanister,
    Provenance,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.anthropic.model import AnthropicModel, AnthropicSettings

BEGUN = datetime(2026, 11, 1, tzinfo=UTC)
OWN = Provenance("vibe_llms.providers.anthropic", "anthropic", "claude-opus-5")
OTHER = Provenance("vibe_llms.providers.anthropic", "anthropic", "claude-haiku-5-5")
SYSTEM = SupervisorCanister.from_text("Be brief.")
LONG = "a word " * 300


def weather(city: str) -> str:
    """Forecast."""
    return city


WEATHER = Invoker.from_function(weather)


class Talk:
    """A conversation that grows; `body` is its next request."""

    def __init__(self, model: AnthropicModel) -> None:
        self.model = model
        self.said: list[Canister] = [SYSTEM]
        self.now = 0.0
        self.server = AnthropicCache()
        self._cache = model.produce_cache()
        self._number = 0

    def tell(self, text: str, after: float = 0) -> None:
        self.now += after
        self.said.append(UserCanister.from_text(text))
        self._date()

    def reply(self, *parts: Canister, origin: Provenance = OWN, tokens: int = 0) -> None:
        self._number += 1
        common: dict[str, Any] = {"reply": f"r{self._number}", "provenance": origin}
        self.said += [msgspec.structs.replace(part, **common) for part in parts]
        ending = Ending(StopReason.FINISHED, Usage(uncached_input_tokens=tokens))
        self.said[-1] = msgspec.structs.replace(self.said[-1], ending=ending)
        self._date()

    def call(self, number: int, *, origin: Provenance = OWN, tokens: int = 0) -> None:
        calls = [InvocationCanister(name="weather", call=f"c{n}") for n in range(number)]
        self.reply(*calls, origin=origin, tokens=tokens)
        for one in self.said[-number:]:
            self.said.append(ResultCanister((TextualContent(LONG),), invocation=one.identity))
            self._date()

    async def body(self, **options: Any) -> dict[str, Any]:
        members, _ = await assemble(self.model, self.said, WEATHER, cache=self._cache, **options)
        return members

    async def ask(self) -> Counted:
        return self.server.ask(await self.body(), self.now)

    def _date(self) -> None:
        moment = BEGUN + timedelta(seconds=self.now)
        self.said[-1] = msgspec.structs.replace(self.said[-1], created=moment)


def hours_in(body: Any) -> set[str]:
    """The lives of all marks of a request."""
    marks: list[Any] = []

    def look(one: dict[str, Any]) -> dict[str, Any]:
        marks.append(one.get("cache_control"))
        return one

    json.loads(json.dumps(body), object_hook=look)
    return {mark.get("ttl", "5m") for mark in marks if mark}


# Where the marks are.


@pytest.mark.parametrize("calls", [1, 12, 40])
async def test_a_turn_with_many_parallel_calls_is_read_from_the_cache(calls: int) -> None:
    talk = Talk(await produce_model())
    talk.tell(LONG)
    before = await talk.ask()
    for _ in range(4):
        talk.call(calls)
        counted = await talk.ask()
        assert counted.read == before.size
        before = counted


async def test_a_model_finds_its_cache_after_another_one_has_answered() -> None:
    talk = Talk(await produce_model())
    talk.tell(LONG)
    before = await talk.ask()
    talk.call(3)
    before = await talk.ask()
    talk.reply(AssistantCanister.from_text("Rain."))
    talk.tell("And in other cities?")
    for _ in range(4):
        talk.call(8, origin=OTHER)
    talk.reply(AssistantCanister.from_text("Done."), origin=OTHER)
    talk.tell("And now?")
    counted = await talk.ask()
    assert counted.read == before.size
    talk.reply(AssistantCanister.from_text("Well."))
    talk.tell("Really?")
    assert (await talk.ask()).read == counted.size


async def test_the_message_that_is_marked_is_baked_in_the_end() -> None:
    talk = Talk(await produce_model())
    talk.tell("a")
    talk.reply(AssistantCanister.from_text("b"))
    for number in range(300):
        talk.tell(f"u{number}")
        talk.reply(AssistantCanister.from_text("b"), origin=OTHER)
    talk.tell("c")
    await talk.body()
    history = talk._cache.history
    assert history is not None
    assert len(history.recent) == history.unbaked
    marked = [
        block["text"]
        for message in (await talk.body())["messages"]
        for block in message["content"]
        if "cache_control" in block
    ]
    assert marked == ["u299", "c"]


async def test_marks_of_the_extras_leave_fewer_of_ours() -> None:
    talk = Talk(await produce_model())
    for _ in range(3):
        talk.tell("a")
        talk.reply(AssistantCanister.from_text("b"))
    talk.tell("c")
    mark = {"type": "ephemeral"}
    for number in range(5):
        tools = [
            {"type": "web_search_20250305", "name": "web_search"},
            *(
                {"name": f"t{n}", "input_schema": {"type": "object"}, "cache_control": mark}
                for n in range(number)
            ),
        ]
        # The strict fake refuses more than four marks.
        await talk.body(controls=Controls(extras={"anthropic": {"tools": tools}}))
    automatic = Controls(extras={"anthropic": {"cache_control": mark}})
    body = await talk.body(controls=automatic)
    assert body.pop("cache_control") == mark
    assert "cache_control" not in json.dumps(body)


# For how long.


async def talk_with_pauses(pauses: Sequence[float], cache: str = "auto") -> tuple[Talk, list[str]]:
    """A conversation with such pauses, and the lives that its requests ask for."""
    talk = Talk(await produce_model(cache=cache))
    talk.tell(LONG * 20)
    lives: list[str] = []
    for pause in pauses:
        body = await talk.body()
        (life,) = hours_in(body)
        lives.append(life)
        size = talk.server.ask(body, talk.now).size
        talk.reply(AssistantCanister.from_text(LONG), tokens=size // 4)
        talk.tell("Go on.", pause)
    return talk, lives


async def test_pauses_of_some_minutes_make_the_cache_live_for_an_hour() -> None:
    _, lives = await talk_with_pauses([600] * 6)
    assert lives == ["5m", "5m", "1h", "1h", "1h", "1h"]


@pytest.mark.parametrize("pause", [5, 120, 230, 4000, 90_000])
async def test_other_pauses_do_not(pause: float) -> None:
    _, lives = await talk_with_pauses([pause] * 8)
    assert set(lives) == {"5m"}


async def test_the_life_changes_only_when_the_cache_has_expired() -> None:
    _, lives = await talk_with_pauses([600, 600, 600, 10, 10, 250, 290, 600, 4000, 4000, 4000, 10])
    changes = [n for n in range(1, len(lives)) if lives[n] != lives[n - 1]]
    assert changes == [2, 10]
    assert lives[2] == "1h"
    assert lives[10] == "5m"


@pytest.mark.parametrize("seconds", [235, 240, 245, 295, 300, 305, 3550, 3600, 3650])
async def test_pauses_near_a_limit_do_not_flip_it(seconds: float) -> None:
    pauses = [seconds + (-8 if n % 2 else 8) for n in range(24)]
    _, lives = await talk_with_pauses(pauses)
    assert sum(lives[n] != lives[n - 1] for n in range(1, len(lives))) <= 1


async def test_a_conversation_that_is_read_again_decides_the_same() -> None:
    talk, _ = await talk_with_pauses([600, 600, 20, 700])
    again = Talk(talk.model)
    again.said = talk.said
    assert await again.body() == await talk.body()
    assert hours_in(await again.body()) == {"1h"}


async def test_a_request_that_is_built_twice_decides_the_same() -> None:
    talk, _ = await talk_with_pauses([600, 600])
    assert [hours_in(await talk.body()) for _ in range(5)] == [{"1h"}] * 5


@pytest.mark.parametrize(
    ("pauses", "share"),
    [
        ([600] * 12, 0.4),
        ([5, 5, 5, 600] * 4, 0.95),
        ([5, 5, 5, 600] * 12, 0.65),
        ([900, 5000] * 5, 1.05),
        ([280, 310] * 6, 1),
        ([5] * 12, 1),
        ([4000] * 6, 1),
    ],
    ids=lambda one: str(one)[:20],
)
async def test_the_choice_saves_where_there_are_pauses_and_costs_little_elsewhere(
    pauses: Sequence[float], share: float
) -> None:
    prices = {}
    for cache in ("auto", "5m", "1h"):
        talk = Talk(await produce_model(cache=cache))
        talk.tell(LONG * 20)
        prices[cache] = 0.0
        for pause in pauses:
            counted = await talk.ask()
            prices[cache] += counted.price
            talk.reply(AssistantCanister.from_text(LONG), tokens=counted.size // 4)
            talk.tell("Go on.", pause)
    assert prices["auto"] <= share * prices["5m"]


async def test_only_anthropics_own_address_is_asked_for_an_hour_by_itself() -> None:
    assert AnthropicSettings(base_url="https://api.anthropic.com").cache_duration == "auto"
    assert AnthropicSettings(base_url="https://api.anthropic.com/").cache_duration == "auto"
    assert AnthropicSettings(base_url="https://gateway.example/anthropic").cache_duration == "5m"
    settings = AnthropicSettings(base_url="https://gateway.example/anthropic", cache="auto")
    assert settings.cache_duration == "auto"
    assert (
        AnthropicSettings(base_url="https://api.anthropic.com", cache="1h").cache_duration == "1h"
    )


@pytest.mark.parametrize("cache", ["5m", "1h", "off"])
async def test_a_given_life_stays(cache: str) -> None:
    talk = Talk(await produce_model(cache=cache))
    talk.tell(LONG)
    for pause in (600, 600, 600):
        assert hours_in(await talk.body()) == ({cache} if cache != "off" else set())
        talk.reply(AssistantCanister.from_text(LONG), tokens=9000)
        talk.tell("Go on.", pause)


@pytest.mark.parametrize(("ttl", "expected"), [("", {"5m"}), ("5m", {"5m"}), ("1h", {"1h"})])
async def test_long_marks_come_before_short_ones(ttl: str, expected: set[str]) -> None:
    talk = Talk(await produce_model(cache="1h"))
    talk.tell("a")
    mark = {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}
    tool = {"name": "t", "input_schema": {"type": "object"}, "cache_control": mark}
    body = await talk.body(controls=Controls(extras={"anthropic": {"tools": [tool]}}))
    talk.server.ask(body)
    assert hours_in(body) == expected


async def test_the_fake_refuses_a_long_mark_after_a_short_one() -> None:
    talk = Talk(await produce_model(cache="1h"))
    talk.tell("a")
    body = await talk.body()
    body["tools"][0]["cache_control"] = {"type": "ephemeral"}
    with pytest.raises(Refused, match="must not come after"):
        talk.server.ask(body)
