"""What is known of models agrees with the packages, and an unknown name works everywhere."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.anthropic import FakeAnthropic
from tests.fakes.azure import FakeAzure, FakeFoundry
from tests.fakes.bedrock import FakeBedrock
from tests.fakes.gemini import FakeGemini
from tests.fakes.ollama import FakeModel, FakeOllama
from tests.fakes.openai import FakeOpenAI
from vibe_llms import open_session
from vibe_llms.base.configuration import read_toml, shipped_folder

SCRIPT = Path(__file__).parents[2] / ".auxiliary" / "scripts" / "models"
ROWS = read_toml(shipped_folder() / "configuration" / "general.toml")["providers"]


@pytest.fixture
def script() -> dict[str, Any]:
    """The names of the script that compares."""
    return runpy.run_path(str(SCRIPT))


async def report(script: dict[str, Any], *rows: str) -> Sequence[str]:
    lines: Sequence[str] = await script["compare"](rows)
    return lines


async def test_what_is_known_of_models_agrees_with_the_packages(script: dict[str, Any]) -> None:
    rows = script["list_rows"]()
    assert {"anthropic", "openai", "gemini", "bedrock", "xai", "mistral"} <= set(rows)
    assert await report(script, *rows) == [], "run .auxiliary/scripts/models"


async def test_a_new_model_a_new_date_and_a_new_window_are_reported(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = script["compare"].__globals__
    names = {"openai": ["gpt-6-luna", "omega-1"], "anthropic": ["claude-opus-5"]}
    monkeypatch.setitem(inner, "list_packaged", lambda: names)
    retired = {"anthropic": {"claude-opus-5": "2099-01-01"}}
    monkeypatch.setitem(inner, "list_retirements", lambda: retired)
    windows = {"openai": {"gpt-6-luna": 5}, "anthropic": {"claude-opus-5": 1_048_576}}
    monkeypatch.setitem(inner, "list_windows", lambda row: windows[row])
    found = await report(script, "openai", "anthropic")
    assert found[:3] == [
        "openai/gpt-6-luna: the window is 1,050,000, in genai-prices 5",
        "openai/omega-1: no window is known",
        "anthropic/claude-opus-5: it retires on no day, not on 2099-01-01",
    ]
    # What is excused and is not there any more has to go.
    assert found[3:]
    assert all(line.startswith("openai: no model needs the exception") for line in found[3:])


def test_names_and_dates_are_read_from_the_packages(script: dict[str, Any]) -> None:
    packaged, retired = script["list_packaged"](), script["list_retirements"]()
    for row, name in (
        ("anthropic", "claude-opus-5-5"),
        ("openai", "gpt-6-luna"),
        ("openai", "gpt-5.5-pro"),
        ("gemini", "gemini-3.8-flash"),
    ):
        assert name in packaged[row]
    assert retired["anthropic"]["claude-opus-4-5"] == "2027-01-22"
    assert retired["openai"]["o1-mini"] == "2025-10-27"
    assert "gpt-5.1-mini" not in retired["openai"]
    assert script["list_windows"]("xai")["grok-4.7"] == 500_000


PROFILE = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/global.{}"


@pytest.mark.parametrize(
    ("row", "names", "context", "reply"),
    [
        (
            "bedrock",
            [name.format("anthropic.claude-opus-5-5") for name in ("{}", "us.{}", PROFILE)],
            1_000_000,
            128_000,
        ),
        ("bedrock", ["us.anthropic.claude-haiku-4-5-20251001-v1:0"], 200_000, 64_000),
        ("bedrock", ["eu.moonshotai.kimi-k3", "global.moonshotai.kimi-k3.1"], 1_000_000, 131_072),
        ("openai", ["gpt-4o-2024-08-06", "ft:gpt-4o-2024-08-06:acme::abc123"], 128_000, 16_384),
        ("openrouter", ["openai/gpt-6-luna"], 1_050_000, 128_000),
        (
            "openrouter",
            ["anthropic/claude-opus-5.5", "anthropic/claude-sonnet-4.6"],
            1_000_000,
            None,
        ),
        ("anthropic", ["claude-opus-4-1@20250805", "claude-4-opus-20250514"], 200_000, 32_000),
        ("groq", ["qwen/qwen3.8-27b"], 131_072, 16_384),
        ("together", ["Qwen/Qwen3.8-27B"], 262_144, 262_144),
        ("xai", ["grok-4.7", "grok-4.5-latest"], 500_000, None),
    ],
)
async def test_a_model_is_known_by_any_of_its_names(
    row: str, names: list[str], context: int, reply: int | None
) -> None:
    settings = {"providers": {"bedrock": {"region": "us-east-1"}}}
    async with open_session(keys={row: "key-0123456789"}, configuration=settings) as session:
        for name in names:
            attributes = (await session.access_model(f"{row}/{name}")).attributes
            assert (attributes.context_tokens, attributes.output_tokens) == (context, reply), name
            if "opus-5-5" in name:
                assert attributes.controls is not None
                assert attributes.controls["tool-choice"].choices == ("auto", "none")
                assert not attributes.takes("temperature")


FAKES: dict[str, type] = {
    "vibe_llms.providers.anthropic": FakeAnthropic,
    "vibe_llms.providers.anthropic.azure": FakeFoundry,
    "vibe_llms.providers.bedrock": FakeBedrock,
    "vibe_llms.providers.gemini": FakeGemini,
    "vibe_llms.providers.ollama": FakeOllama,
    "vibe_llms.providers.openai.azure": FakeAzure,
    "vibe_llms.providers.openai.chat_completions": FakeOpenAI,
    "vibe_llms.providers.openai.responses": FakeOpenAI,
}
#: Members of a request of a row that has no other settings, besides the conversation.
CAREFUL = {
    "model", "messages", "input", "contents", "stream", "stream_options", "store", "include",
    "options", "keep_alive", "truncate", "shift", "cache_control",
}  # fmt: skip


@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row]["module"] in FAKES])
async def test_an_unknown_name_works_with_careful_defaults(row: str) -> None:
    with FAKES[ROWS[row]["module"]]() as server:
        settings = {"base-url": server.url}
        if isinstance(server, FakeBedrock):
            settings["region"] = "us-east-1"
        if isinstance(server, FakeOllama):
            server.models["brand-new-7"] = FakeModel(capabilities=("completion",))
        elif "credential" in ROWS[row]:
            # The fake wants a key, which these servers need not.
            settings["credential"] = "key"
        overrides = {"providers": {row: settings}}
        async with open_session(
            keys={row: server.key or "unused"}, configuration=overrides
        ) as session:
            attributes = (await session.access_model(f"{row}/brand-new-7")).attributes
            assert attributes.context_tokens is None
            assert attributes.tools == "native"
            conversation = await session.begin(f"{row}/brand-new-7")
            turn = await conversation.converse("Hi")
        assert turn.text == "Hello."
        assert server.refusals == []
        body = server.requests[-1].json
        members = set(body) - CAREFUL
        if "anthropic" in row:
            # The interface demands a limit.
            assert body["max_tokens"] == 8_192
            members.remove("max_tokens")
        assert members == set()
