"""Requests put together: what is encoded once, what is reported, and what gives way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from tests.fakes.clients import produce_model
from vibe_llms.base.exceptions import ContentUnsupported, ControlInvalid, RequestTooLarge
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.contents import Reference
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import TurnContext, refuse_loading
from vibe_llms.providers.pieces import Fragment, Slot
from vibe_llms.providers.requests import (
    HistoryCache,
    Request,
    apply_controls,
    fit_request,
    send_notice,
)


class Listing:
    """A history that writes down what it is given."""

    def __init__(self) -> None:
        self.added: list[Canister] = []

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        self.added.append(canister)
        return [Notice("conversion", f"number {len(self.added)}", canister.identity)]


def say(*texts: str) -> list[Canister]:
    return [UserCanister.from_text(text) for text in texts]


async def extend(
    cache: HistoryCache[Listing], canisters: Sequence[Canister], **context: Any
) -> tuple[Listing, list[str], list[Canister]]:
    """The history, what was reported, and what was checked."""
    reported: list[Notice] = []
    checked: list[Canister] = []
    history = await cache.extend(
        canisters, TurnContext(notify=reported.append, **context), Listing, checked.append
    )
    return history, [notice.text for notice in reported], checked


async def test_a_history_that_grows_is_looked_at_only_where_it_is_new() -> None:
    cache: HistoryCache[Listing] = HistoryCache()
    said = say("a", "b")
    history, reported, _ = await extend(cache, said)
    assert (history.added, reported) == (said, ["number 1", "number 2"])
    said += say("c")
    fresh = frozenset({said[2].identity})
    again, reported, checked = await extend(cache, said, fresh=fresh)
    assert again is history
    assert (reported, checked) == (["number 3"], said[2:])
    same, reported, checked = await extend(cache, said, fresh=fresh)
    assert (same is history, reported, checked) == (True, [], [])


@pytest.mark.parametrize("other", ["shorter", "another end"])
async def test_a_history_that_is_another_is_begun_anew(other: str) -> None:
    cache: HistoryCache[Listing] = HistoryCache()
    said = say("a", "b")
    first, _, _ = await extend(cache, said)
    changed = said[:1] if other == "shorter" else [said[0], *say("c")]
    second, _, _ = await extend(cache, changed)
    assert second is not first
    assert second.added == changed


async def test_what_cannot_be_taken_is_an_error_before_anything_is_added() -> None:
    def refuse(canister: Canister) -> None:
        raise ContentUnsupported("no")

    cache: HistoryCache[Listing] = HistoryCache()
    said = say("a")
    context = TurnContext(fresh=frozenset({said[0].identity}))
    with pytest.raises(ContentUnsupported):
        await cache.extend(said, context, Listing, refuse)
    history, reported, _ = await extend(cache, said)
    assert (history.added, reported) == (said, ["number 1"])


def test_tools_are_encoded_once_until_they_change() -> None:
    def one() -> None: ...

    calls: list[int] = []

    def nativize(invokers: Sequence[Invoker]) -> list[Any]:
        calls.append(len(invokers))
        return [{"name": invoker.name} for invoker in invokers]

    cache: HistoryCache[Listing] = HistoryCache()
    tools = [Invoker.from_function(one)]
    native = [{"type": "search"}]
    first = cache.encode_tools(tools, native, nativize)
    assert cache.encode_tools(list(tools), native, nativize) is first
    assert b"".join(part for part in first if isinstance(part, bytes)) == (
        b'{"type":"search"},{"name":"one"}'
    )
    cache.encode_tools(tools, [], nativize)
    cache.encode_tools([Invoker.from_function(one)], [], nativize)
    assert calls == [1, 1, 1]


async def test_a_body_is_the_history_and_the_members_after_it() -> None:
    request = Request([b'{"messages":[', b"1", b"]"], {"model": "m", "n": 1}, refuse_loading)
    assert json.loads(b"".join(await request.produce_body())) == {
        "messages": [1],
        "model": "m",
        "n": 1,
    }
    named = b"".join(await request.produce_body(["model"]))
    assert json.loads(named) == {"messages": [1], "model": "m"}
    bare = b"".join(await request.produce_body(["none"]))
    assert json.loads(bare) == {"messages": [1]}


async def test_a_notice_names_the_model() -> None:
    reported: list[Notice] = []
    model = await produce_model()
    send_notice(model, TurnContext(notify=reported.append), "no", "c")
    assert reported == [Notice("conversion", "anthropic/claude-opus-5: no", "c")]


async def test_a_control_of_the_call_is_refused_and_a_configured_one_left_out() -> None:
    model = await produce_model()
    reported: list[Notice] = []

    def nativize(settled: Controls) -> list[str]:
        if settled.seed is not None:
            raise ControlInvalid("no seed", control="seed", model=model.name)
        return sorted(settled.given())

    extras = {"anthropic": {"x": 1}, "other": {"y": 2}}
    defaults = Controls(seed=1, output_tokens=99, extras=extras)
    context = TurnContext(notify=reported.append, default_controls=defaults)
    members, given = apply_controls(model, Controls(), context, nativize)
    assert ("seed" not in members, dict(given)) == (True, {"x": 1})
    assert any("seed" in notice.text for notice in reported)
    with pytest.raises(ControlInvalid, match="seed"):
        apply_controls(model, Controls(seed=1), TurnContext(), nativize)


def slot(number: int, size: int) -> Slot:
    instead = b'"left out"'
    return Slot(
        Reference(f"h{number}", size), "base64", b"", b"", instead, f"image {number}", f"c{number}"
    )


async def test_the_oldest_media_give_way_and_that_is_reported() -> None:
    model = await produce_model()
    fragments: list[Fragment] = [b"[", slot(1, 300), b",", slot(2, 300), b",", slot(3, 300), b"]"]
    reported: list[Notice] = []
    context = TurnContext(notify=reported.append, fresh=frozenset({"c3"}))

    def bounded(limit: int | None) -> Any:
        model.attributes = msgspec.structs.replace(model.attributes, request_bytes=limit)
        return model

    assert fit_request(fragments, bounded(None), context) is fragments
    assert fit_request(fragments, bounded(5_000), context) == fragments
    fitted = fit_request(fragments, bounded(1_000), context)
    assert [isinstance(part, Slot) for part in fitted[1::2]] == [False, True, True]
    assert [notice.canister for notice in reported] == ["c1"]
    assert "image 1 is left out: the request would have more than 1000 bytes" in reported[0].text
    assert fit_request(fragments, bounded(1_000), context, room=400)[3] == b'"left out"'
    # What this very call adds stays, and is too large.
    with pytest.raises(RequestTooLarge, match="takes 300"):
        fit_request(fragments, bounded(300), context)
