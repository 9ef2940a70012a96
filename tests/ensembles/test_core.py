"""The ensembles of a session: opened together when they are named, reported when one fails."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from tests.fakes.models import model_of, says
from vibe_llms import open_session
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ConfigurationError, EnsembleFailed, RegistrationError
from vibe_llms.conversations.hosts import EnsembleConfiguration, register_ensemble
from vibe_llms.ensembles.core import Ensembles
from vibe_llms.invocation.ensembles import EnsembleRules
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.events import Event, NoticeEvent


class Settings(EnsembleRules, frozen=True):
    """The keys of a row of this test."""

    fails: bool = False


class Probe:
    """An ensemble that waits for all others to begin opening too."""

    gate: asyncio.Barrier
    opened: list[str]
    closed: list[str]

    def __init__(self, name: str, configuration: EnsembleConfiguration) -> None:
        self._name = name
        self._settings = configuration.configuration.read(
            Settings, configuration.settings, "ensembles", name
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def invokers(self) -> Sequence[Invoker]:
        invoker = Invoker.from_function(lambda: None, name=f"{self._name}/look")
        return [self._settings.apply(invoker, reads_only=False)]

    async def open(self) -> None:
        await asyncio.wait_for(Probe.gate.wait(), 30)
        if self._settings.fails:
            raise EnsembleFailed("it does not want to", ensemble=self._name)
        Probe.opened.append(self._name)

    async def close(self) -> None:
        Probe.closed.append(self._name)


@pytest.fixture(autouse=True)
def probe(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("probing")
    exec("def announce(register, factory): register('probe', factory)", vars(module))
    monkeypatch.setitem(sys.modules, "probing", module)
    vars(module)["announce"](register_ensemble, Probe)
    Probe.opened, Probe.closed = [], []


def configure(**rows: Any) -> dict[str, Any]:
    return {"ensembles": {name: {"module": "probing", **row} for name, row in rows.items()}}


async def test_ensembles_are_opened_at_the_same_time_and_closed_with_the_session() -> None:
    Probe.gate = asyncio.Barrier(3)
    async with open_session(configuration=configure(a={}, b={}, c={})) as session:
        conversation = await session.begin(
            model_of(says("Hi.")), ensembles=["a", "b", "c"], save=False
        )
        assert sorted(Probe.opened) == ["a", "b", "c"]
        assert list(conversation.invokers) == ["a/look", "b/look", "c/look"]
        assert Probe.closed == []
    assert sorted(Probe.closed) == ["a", "b", "c"]


async def test_an_ensemble_that_fails_is_reported_and_left_out() -> None:
    Probe.gate = asyncio.Barrier(2)
    events: list[Event] = []
    rows = configure(good={}, bad={"fails": True})
    async with open_session(configuration=rows, event_handler=events.append) as session:
        conversation = await session.begin(
            model_of(says("Hi.")), ensembles=["good", "bad"], save=False
        )
        assert list(conversation.invokers) == ["good/look"]
        assert (await conversation.converse("Hi")).text == "Hi."
    (notice,) = (one.notice for one in events if isinstance(one, NoticeEvent))
    assert notice.subject == "ensemble"
    assert notice.text == "bad: it does not want to; its tools are left out"


async def test_what_is_named_twice_is_opened_once() -> None:
    Probe.gate = asyncio.Barrier(1)
    async with open_session(configuration=configure(a={})) as session:
        conversation = await session.begin(model_of(), ensembles=["a", "a"], save=False)
        assert list(conversation.invokers) == ["a/look"]
    assert (Probe.opened, Probe.closed) == (["a"], ["a"])


async def test_two_of_one_name_are_both_closed() -> None:
    Probe.gate = asyncio.Barrier(1)
    async with open_session(configuration=configure(a={})) as session:
        other = Probe("a", EnsembleConfiguration(session.configuration, {}))
        for one in ("a", other):
            await session.begin(model_of(), ensembles=[one], save=False)
    assert Probe.closed == ["a", "a"]


async def test_an_ensemble_that_is_required_is_an_error() -> None:
    Probe.gate = asyncio.Barrier(1)
    rows = configure(bad={"fails": True, "required": True})
    async with open_session(configuration=rows) as session:
        with pytest.raises(EnsembleFailed, match="bad: it does not want to"):
            await session.begin(model_of(), ensembles=["bad"], save=False)


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ({}, ConfigurationError, "ensemble 'a' not found; known ensembles: python"),
        (
            {"b": {"module": "probing"}},
            ConfigurationError,
            "known ensembles: python, images, documents, web, memory, user, b",
        ),
        ({"a": {"module": "nonesuch"}}, RegistrationError, "module 'nonesuch' not found"),
        ({"a": {"module": "probing", "fial": 1}}, ConfigurationError, "fial"),
        ({"a": {"module": "probing", "approval": "perhaps"}}, ConfigurationError, "approval"),
    ],
)
async def test_errors_of_a_row_are_reported(
    rows: dict[str, Any], error: type[Exception], words: str
) -> None:
    async with open_session(configuration={"ensembles": rows}) as session:
        with pytest.raises(error, match=words):
            await session.begin(model_of(), ensembles=["a"], save=False)


@pytest.mark.parametrize(
    ("rules", "reads_only", "approval"),
    [
        ({}, False, "ask"),
        ({}, True, "allow"),
        ({"approval": "deny"}, True, "deny"),
        ({"approval": "allow"}, False, "allow"),
        ({"approval": "allow", "approvals": {"look": "ask"}}, True, "ask"),
        ({"approvals": {"other": "allow"}}, False, "ask"),
    ],
)
def test_tools_ask_unless_they_only_read_or_their_row_says_otherwise(
    rules: Any, reads_only: bool, approval: str
) -> None:
    invoker = Invoker.from_function(lambda: None, name="a/look")
    assert EnsembleRules(**rules).apply(invoker, reads_only=reads_only).approval == approval


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ({}, []),
        ({"python": {"call-seconds": 90}}, ["python"]),
        ({"a": {"module": "probing"}}, ["a"]),
        ({"python": {"enabled": False}}, []),
    ],
)
def test_shipped_plugins_are_off_until_they_are_named(
    rows: dict[str, Any], names: list[str]
) -> None:
    ensembles = Ensembles(load_configuration(overrides={"ensembles": rows}))
    assert ensembles.survey_names() == names
    assert "images" in ensembles.survey_names(shipped=True)
