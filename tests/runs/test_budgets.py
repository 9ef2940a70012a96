"""Budgets: what is reserved before a request, and what is charged after it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.anthropic import FakeAnthropic
from vibe_llms import open_session
from vibe_llms.base.configuration import Budget, BudgetPeriod
from vibe_llms.base.exceptions import BudgetExceeded, ProviderOverloaded, RequestError
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, MessageStartedEvent
from vibe_llms.runs.accounts import Account, Amount, Balance, Claim, Grant, decide, end_of, start_of
from vibe_llms.runs.sqlite_budgets import SqliteBudgetStore
from vibe_llms.session.core import Session
from vibe_llms.testing.wires.anthropic_replies import text_reply

USER = "local"
ONE = Account(USER, Budget(tokens=1000, period="total"))


def claim(
    identity: str = "one", *, base: int = 100, least: int = 10, most: int = 100, hasty: bool = False
) -> Claim:
    return Claim(
        identity=identity,
        user=USER,
        accounts=(ONE,),
        base=Amount(base),
        unit=0,
        least=least,
        most=most,
        hasty=hasty,
    )


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteBudgetStore]:
    store = SqliteBudgetStore(path / "server" / "runs.sqlite")
    try:
        yield store
    finally:
        await store.close()


def reply(text: str = "Hello.", *, output: int = 100, **others: Any) -> dict[str, Any]:
    usage = {"uncached-input-tokens": 50, "output-tokens": output}
    return {"when": ".", "parts": [{"text": text}], "usage": usage, **others}


@asynccontextmanager
async def session(
    home: Path, budgets: Mapping[str, Any], *replies: Mapping[str, Any], **rows: Any
) -> AsyncIterator[Session]:
    import tomli_w

    home.mkdir(exist_ok=True)
    (home / "script.toml").write_text(tomli_w.dumps({"replies": [*(replies or [reply()])]}))
    configuration = {
        "budgets": budgets,
        "providers": {"scripted": {"scripts": {"one": "script.toml"}}},
        **rows,
    }
    async with open_session(home=home, configuration=configuration) as one:
        yield one


async def spent(one: Session, agent: str = "", **budget: Any) -> Balance:
    wanted = Budget(**{"tokens": 1, "period": "total", **budget})
    (balance,) = await one.access_budgets().store.read([Account(USER, wanted, agent)])
    return balance


@pytest.mark.parametrize(
    ("used", "reserved", "hasty", "output", "busy"),
    [
        (0, 0, False, 100, False),
        (800, 0, False, 100, False),
        (801, 0, False, 99, False),
        (890, 0, False, 10, False),
        (891, 0, False, 0, False),
        (0, 800, False, 100, False),
        (0, 801, False, 0, True),
        (0, 801, True, 99, False),
        (0, 891, True, 0, True),
    ],
)
def test_a_claim_gets_what_the_budget_allows(
    used: int, reserved: int, hasty: bool, output: int, busy: bool
) -> None:
    grant = decide(claim(hasty=hasty), [Balance(Amount(used), Amount(reserved))])
    assert (grant.output, grant.busy) == (output, busy)
    assert (grant.account is None) == bool(output)


def test_money_and_tokens_both_limit_a_reply() -> None:
    both = Account(USER, Budget(tokens=1000, money=0.001))
    priced = Claim(
        identity="one",
        user=USER,
        accounts=(both,),
        base=Amount(100, 400_000),
        unit=10_000,
        least=10,
        most=500,
    )
    assert decide(priced, [Balance()]).output == 60
    assert decide(priced, [Balance(Amount(860))]).output == 40
    assert decide(priced, [Balance(Amount(0, 500_000))]).output == 10
    assert decide(priced, [Balance(Amount(0, 500_001))]).account == both


@pytest.mark.parametrize(
    ("period", "start", "end"),
    [
        ("hour", "2026-11-24T05:00", "2026-11-24T06:00"),
        ("day", "2026-11-24T00:00", "2026-11-25T00:00"),
        ("week", "2026-11-23T00:00", "2026-11-30T00:00"),
        ("month", "2026-11-01T00:00", "2026-12-01T00:00"),
        ("total", "1970-01-01T00:00", None),
    ],
)
def test_periods_are_those_of_the_calendar(
    period: BudgetPeriod, start: str, end: str | None
) -> None:
    now = datetime(2026, 11, 24, 5, 59, 59, tzinfo=UTC)
    assert start_of(period, now) == datetime.fromisoformat(start + "+00:00")
    assert end_of(period, now) == (end and datetime.fromisoformat(end + "+00:00"))


async def test_a_held_reservation_of_a_dead_process_is_released_and_a_sent_one_charged(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        await store.reserve(claim("held"), seconds=0)
        await store.reserve(claim("sent"), seconds=60)
        assert await store.send(USER, "sent")
        (balance,) = await store.read([ONE])
        assert balance.reserved == Amount(200)
        # As if its process had not renewed it.
        await store.renew(USER, ["sent"], seconds=-1)
        (balance,) = await store.read([ONE])
        assert (balance.spent, balance.reserved) == (Amount(200), Amount())
        assert not await store.send(USER, "held")
        assert not await store.send(USER, "sent")
        await store.record_usage(USER, "sent", Amount(1))
        (balance,) = await store.read([ONE])
        assert balance.spent == Amount(200)


async def test_a_reservation_lasts_as_long_as_the_lease_of_a_run(tmp_path: Path) -> None:
    async with session(
        tmp_path, {"tokens": 100_000, "period": "total"}, runs={"lease-seconds": 300}
    ) as one:
        store = one.access_budgets().store
        reserve, lasts = store.reserve, []

        async def watch(claim: Claim, seconds: float) -> Grant:
            lasts.append(seconds)
            return await reserve(claim, seconds)

        store.reserve = watch  # type: ignore[method-assign]
        await (await one.begin("scripted/one")).converse("Hello!")
    assert lasts == [300]


async def test_a_claim_that_was_granted_is_granted_again_as_it_was(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        assert (await store.reserve(claim(most=50), seconds=60)).output == 50
        assert (await store.reserve(claim(most=100), seconds=60)).output == 50
        (balance,) = await store.read([ONE])
        assert balance.reserved == Amount(150)


async def test_what_a_reply_used_is_charged(tmp_path: Path) -> None:
    async with session(tmp_path, {"tokens": 100_000, "period": "total"}) as one:
        conversation = await one.begin("scripted/one")
        turn = await conversation.converse("Hello!")
        assert turn.usage.total_tokens == 150
        balance = await spent(one)
        assert (balance.spent.tokens, balance.reserved.tokens) == (150, 0)


async def test_a_request_that_does_not_fit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    budgets = {"tokens": 12_000, "period": "day"}
    async with session(tmp_path, budgets, reply(output=11_000)) as one:
        conversation = await one.begin("scripted/one")
        await conversation.converse("Hello!")
        with pytest.raises(BudgetExceeded, match="11,050 of 12,000 tokens are spent") as caught:
            await conversation.converse("Again!")
        assert 0 < (caught.value.retry_after or 0) <= 86400
        assert (caught.value.user, caught.value.agent) == (USER, "")
        balance = await spent(one, period="day")
        assert (balance.spent.tokens, balance.reserved.tokens) == (11_050, 0)


async def test_what_never_fits_has_no_time_to_wait_for(tmp_path: Path) -> None:
    async with session(tmp_path, {"tokens": 500}) as one:
        conversation = await one.begin("scripted/one")
        with pytest.raises(BudgetExceeded, match="the request alone exceeds it") as caught:
            await conversation.converse("Hello!")
        assert caught.value.retry_after is None


async def test_a_reply_that_is_cut_is_charged_in_full_and_a_refusal_is_free(
    tmp_path: Path,
) -> None:
    cut = {"parts": [{"text": "Hel"}, {"cut": True}]}
    refused = {"parts": [{"error": "refused"}]}
    async with session(tmp_path, {"tokens": 100_000, "period": "total"}, refused, cut) as one:
        conversation = await one.begin("scripted/one")
        controls = Controls(output_tokens=2_000)
        with pytest.raises(Exception, match="as the script says"):
            await conversation.converse("Hello!", controls=controls)
        assert (await spent(one)).spent == Amount()
        with pytest.raises(Exception, match="cuts the reply"):
            await conversation.converse("Hello!", controls=controls)
        balance = await spent(one)
        assert 3_000 < balance.spent.tokens < 5_000
        assert balance.reserved == Amount()


async def test_a_cancelled_reply_is_charged_in_full(tmp_path: Path) -> None:
    stalled = {"when": ".", "parts": [{"text": ["Hel", "lo"]}, {"stall": True}]}
    begun = asyncio.Event()

    def report(event: Event) -> None:
        if isinstance(event, MessageStartedEvent):
            begun.set()

    async with session(tmp_path, {"tokens": 100_000, "period": "total"}, stalled) as one:
        conversation = await one.begin("scripted/one", event_handler=report)
        turn = asyncio.ensure_future(
            conversation.converse("Hello!", controls=Controls(output_tokens=2_000))
        )
        await begun.wait()
        (sent, spent_before) = (await spent(one)).reserved, (await spent(one)).spent
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        balance = await spent(one)
        assert (spent_before, balance.spent, balance.reserved) == (Amount(), sent, Amount())
        assert sent.tokens > 3_000


async def test_each_attempt_is_charged(tmp_path: Path) -> None:
    busy = {"parts": [{"error": "overloaded"}]}
    budgets = {"tokens": 5_000, "period": "total"}
    rows = {"stream": {"retries": 2}}
    async with session(tmp_path, budgets, busy, busy, reply(when="never"), **rows) as one:
        conversation = await one.begin("scripted/one")
        with pytest.raises((BudgetExceeded, ProviderOverloaded)) as caught:
            await conversation.converse("Hello!", controls=Controls(output_tokens=1_500))
        assert isinstance(caught.value, BudgetExceeded)
        balance = await spent(one)
        assert 2_500 < balance.spent.tokens <= 5_000
        assert balance.reserved == Amount()


async def test_an_agents_budget_counts_its_requests_and_those_of_agents_that_it_asks(
    tmp_path: Path,
) -> None:
    call = {
        "when": "Ask",
        "parts": [{"invocation": "agents/inner", "arguments": {"request": "Hello!"}}],
        "usage": {"output-tokens": 10},
    }
    agents = {
        "outer": {
            "model": "scripted/one",
            "agents": ["inner"],
            "budget": {"tokens": 100_000, "period": "total"},
        },
        "inner": {"model": "scripted/one"},
    }
    async with session(tmp_path, {}, call, reply(), agents=agents) as one:
        conversation = await one.begin(agent="outer")
        await conversation.converse("Ask it.")
        assert (await spent(one, "outer")).spent == Amount(310)
        assert (await spent(one)).spent == Amount()


async def test_a_run_counts_against_the_agent_that_answers_wherever_it_is_worked_on(
    tmp_path: Path,
) -> None:
    budget = {"tokens": 100_000, "period": "total"}
    agents = {name: {"model": "scripted/one", "budget": budget} for name in ("first", "second")}
    async with (
        session(tmp_path, {}, agents=agents) as one,
        session(tmp_path, {}, agents=agents) as other,
    ):
        begun = await one.begin(agent="first")
        await begun.converse("Hello!")
        one.access_runs().worker.pause()
        run = await one.start(await one.resume(begun.identity, agent="second"), "Again.")
        other.access_runs().worker.poke()
        await run.result()
        assert (await spent(one, "first")).spent == Amount(150)
        assert (await spent(one, "second")).spent == Amount(150)


async def test_a_request_waits_for_what_others_have_reserved(tmp_path: Path) -> None:
    budgets = {"tokens": 12_000, "period": "total", "wait-seconds": 60}
    async with session(tmp_path, budgets) as one:
        store = one.access_budgets().store
        account = Account(USER, Budget(tokens=12_000, period="total"))
        other = Claim(
            identity="other",
            user=USER,
            accounts=(account,),
            base=Amount(6_000),
            unit=0,
            least=1,
            most=1,
        )
        await store.reserve(other, seconds=60)
        conversation = await one.begin("scripted/one")
        turn = asyncio.ensure_future(conversation.converse("Hello!"))
        async with asyncio.timeout(30):
            while not one.access_budgets()._waiting.locked():
                await asyncio.sleep(0)
        assert not turn.done()
        await store.record_usage(USER, "other", Amount(5))
        assert (await turn).text == "Hello."
        assert (await spent(one)).spent == Amount(155)


async def test_what_does_not_fit_next_to_others_in_time_is_refused(tmp_path: Path) -> None:
    budgets = {"tokens": 12_000, "period": "total", "wait-seconds": 0}
    async with session(tmp_path, budgets) as one:
        account = Account(USER, Budget(tokens=12_000, period="total"))
        other = Claim(
            identity="other",
            user=USER,
            accounts=(account,),
            base=Amount(11_500),
            unit=0,
            least=1,
            most=1,
        )
        await one.access_budgets().store.reserve(other, seconds=60)
        conversation = await one.begin("scripted/one")
        with pytest.raises(BudgetExceeded, match="other requests have reserved") as caught:
            await conversation.converse("Hello!")
        assert caught.value.retry_after == 0


@pytest.mark.parametrize("seed", range(20))
async def test_no_sequence_of_events_exceeds_a_budget(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    open_: dict[str, tuple[int, bool]] = {}
    charged = 0
    async with opened(tmp_path) as store:
        for number in range(60):
            action = chance.choice(["reserve", "reserve", "send", "settle", "leave", "die"])
            name = chance.choice([*open_, ""])
            if action == "reserve":
                wanted = claim(
                    str(number),
                    base=chance.randint(0, 120),
                    least=chance.randint(1, 40),
                    most=chance.randint(40, 90),
                    hasty=chance.random() < 0.5,
                )
                grant = await store.reserve(wanted, seconds=60)
                assert grant.account is not None or wanted.least <= grant.output <= wanted.most
                if grant.account is None:
                    open_[wanted.identity] = wanted.measure(grant.output).tokens, False
            elif name and action == "send":
                assert await store.send(USER, name)
                open_[name] = open_[name][0], True
            elif name:
                worst, sent = open_.pop(name)
                used = chance.randint(0, worst) if sent else 0
                if action == "settle":
                    await store.record_usage(USER, name, Amount(used))
                elif action == "leave":
                    await store.record_usage(USER, name, None)
                else:
                    await store.renew(USER, [name], seconds=-1)
                charged += used if action == "settle" else worst * sent
            (balance,) = await store.read([ONE])
            assert balance.spent == Amount(charged)
            assert balance.reserved == Amount(sum(worst for worst, _ in open_.values()))
            assert 0 <= balance.spent.tokens + balance.reserved.tokens <= 1000


async def test_the_longest_reply_that_fits_is_what_a_provider_is_asked_for(
    tmp_path: Path, fake_anthropic: FakeAnthropic
) -> None:
    fake_anthropic.replies = [text_reply("Hello."), text_reply("Hello.")]
    configuration = {
        "budgets": {"tokens": 5_000, "period": "total"},
        "providers": {"anthropic": {"base-url": fake_anthropic.url}},
    }
    keys = {"anthropic": fake_anthropic.key}
    async with open_session(home=tmp_path, keys=keys, configuration=configuration) as one:
        conversation = await one.begin("anthropic/claude-sonnet-4-5")
        first = await conversation.converse("Hello!")
        (request,) = [one.json for one in fake_anthropic.requests]
        assert 3_000 < request["max_tokens"] < 4_000
        balance = await spent(one)
        assert balance.spent == Amount(first.usage.total_tokens)
        await conversation.converse("Hello!", controls=Controls(output_tokens=300))
        assert fake_anthropic.requests[-1].json["max_tokens"] == 300
        with pytest.raises(BudgetExceeded):
            await conversation.converse("Hello!", controls=Controls(output_tokens=4_500))
        assert len(fake_anthropic.requests) == 2


async def test_money_is_charged_by_the_price_list(
    tmp_path: Path, fake_anthropic: FakeAnthropic
) -> None:
    fake_anthropic.replies = [text_reply("Hello.")]
    configuration = {
        "budgets": {"money": 0.05, "period": "total"},
        "providers": {"anthropic": {"base-url": fake_anthropic.url}},
    }
    keys = {"anthropic": fake_anthropic.key}
    async with open_session(home=tmp_path, keys=keys, configuration=configuration) as one:
        conversation = await one.begin("anthropic/claude-sonnet-4-5")
        turn = await conversation.converse("Hello!")
        (request,) = [one.json for one in fake_anthropic.requests]
        # About 1,200 tokens at 6 $ a million leave 42,800 millionths for those of 15 $.
        assert 2_700 < request["max_tokens"] < 2_900
        balance = await spent(one)
        dollars = one.estimate_cost(turn.canisters).dollars
        assert balance.spent.money == dollars * 10**9


async def test_money_needs_a_price(tmp_path: Path) -> None:
    async with session(tmp_path, {"money": 1.0}) as one:
        conversation = await one.begin("scripted/one")
        with pytest.raises(RequestError, match="has no known price"):
            await conversation.converse("Hello!")


async def test_extras_are_refused(tmp_path: Path) -> None:
    async with session(tmp_path, {"tokens": 100_000}) as one:
        controls = Controls(extras={"scripted": {"max_tokens": 10**6}})
        conversation = await one.begin("scripted/one", controls=controls)
        with pytest.raises(RequestError, match="'extras' cannot be sent under a budget"):
            await conversation.converse("Hello!")


async def test_without_a_budget_nothing_is_kept(tmp_path: Path) -> None:
    async with session(tmp_path, {"users": {"anna": {"tokens": 5}}}) as one:
        conversation = await one.begin("scripted/one")
        await conversation.converse("Hello!")
    assert not (tmp_path / "server").exists()


async def test_a_user_may_be_without_the_budget_of_all(tmp_path: Path) -> None:
    async with session(tmp_path, {"tokens": 5, "users": {USER: {}}}) as one:
        conversation = await one.begin("scripted/one")
        assert (await conversation.converse("Hello!")).text == "Hello."


async def test_a_run_fails_with_the_error(tmp_path: Path) -> None:
    async with session(tmp_path, {"tokens": 5}) as one:
        conversation = await one.begin("scripted/one")
        run = await one.start(conversation, "Hello!")
        async for _ in run.events():
            pass
        (record,) = await one.survey_runs()
        assert record.kind == "BudgetExceeded"
