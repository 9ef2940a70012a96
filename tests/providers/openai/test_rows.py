"""The included rows of compatible servers load, and send nothing that their server refuses."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from genai_prices.data_snapshot import get_snapshot

from vibe_llms import NoticeEvent, open_session
from vibe_llms.base.configuration import read_toml, shipped_folder
from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.messages.canisters import SupervisorCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event
from vibe_llms.providers.attributes import find_problem

SHIPPED = read_toml(shipped_folder() / "configuration" / "general.toml")["providers"]
KEYS = {"moonshot": "key-0123456789abcdef", "cerebras": "key-0123456789abcdef"}
COMPATIBLE = [
    name
    for name, row in SHIPPED.items()
    if ".openai." in row["module"] and "openai" not in name and "azure" not in name
]


@pytest.mark.parametrize("name", COMPATIBLE)
async def test_a_row_loads_and_has_valid_attributes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = SHIPPED[name]
    # Azure's address is that of the user's resource.
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com")
    assert re.match(r"(\$\{[A-Z_]+:-)?https?://", row["base-url"])
    for pattern, attributes in row.get("models", {}).items():
        assert re.compile(pattern)
        assert find_problem(attributes) == ""
    keys = row.get("api-key-environment", ())
    for variable in [keys] if isinstance(keys, str) else keys:
        with monkeypatch.context() as patch:
            patch.setenv(variable, "key-0123456789abcdef")
            async with open_session() as session:
                status = {one.name: one for one in session.survey_providers()}[name]
                assert (status.problem, status.present) == ("", True)
                conversation = await session.begin(f"{name}/some-model")
                assert json.loads(await conversation.preview("Hello"))["model"] == "some-model"


def test_the_price_lists_of_the_rows_exist() -> None:
    known = {provider.id for provider in get_snapshot().providers}
    assert {row["prices"] for row in SHIPPED.values() if "prices" in row} <= known


async def test_the_account_is_part_of_cloudflares_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for account, shown in (("", "set-CLOUDFLARE_ACCOUNT_ID"), ("abc123", "abc123")):
        monkeypatch.setenv("CLOUDFLARE_ACCOUNT_ID", account)
        async with open_session() as session:
            status = {one.name: one for one in session.survey_providers()}["cloudflare"]
        assert status.address.endswith(f"/accounts/{shown}/ai/v1")


@pytest.mark.parametrize(
    ("model", "refused", "taken"),
    [
        ("moonshot/kimi-k2.6", {"temperature": 0.5}, {"seed": 1}),
        ("moonshot/kimi-k3", {"top_p": 0.5}, {"effort": "low"}),
        ("moonshot/kimi-k2.6", {"temperature": 1.0}, {}),
        ("moonshot/moonshot-v1-8k", {}, {"temperature": 0.5}),
        ("cerebras/gpt-oss-120b", {"parallel_invocations": False}, {"seed": 1}),
        ("cerebras/zai-glm-4.7", {"top_k": 40}, {"parallel_invocations": False}),
        ("cerebras/llama3.1-8b", {"temperature": 1.7}, {"temperature": 1.5}),
    ],
)
async def test_what_a_server_refuses_is_not_sent(
    model: str, refused: dict[str, Any], taken: dict[str, Any]
) -> None:
    async with open_session(keys=KEYS) as session:
        conversation = await session.begin(model)
        body = json.loads(await conversation.preview("Hi", controls=Controls(**taken)))
        assert body["model"] == model.partition("/")[2]
        if refused:
            with pytest.raises(ControlInvalid):
                await conversation.preview("Hi", controls=Controls(**refused))


async def test_a_default_that_a_server_refuses_is_left_out() -> None:
    events: list[Event] = []
    configuration = {"controls": {"temperature": 0.5}}
    async with open_session(
        configuration=configuration, keys=KEYS, event_handler=events.append
    ) as session:
        kimi = await session.begin("moonshot/kimi-k2.6")
        assert "temperature" not in json.loads(await kimi.preview("Hi"))
        other = await session.begin("moonshot/moonshot-v1-8k")
        assert json.loads(await other.preview("Hi"))["temperature"] == 0.5
    (note,) = [one.notice.text for one in events if isinstance(one, NoticeEvent)]
    assert note.startswith("moonshot/kimi-k2.6: the configured control temperature = 0.5 is not")


async def test_roles_alternate_for_servers_that_want_it() -> None:
    # Perplexity and MiniMax refuse two messages of one role in a row:
    # https://github.com/perplexityai/api-discussion/issues/265 (2025-04),
    # https://github.com/can1357/oh-my-pi/pull/954 (2026-05).
    async with open_session(keys=KEYS) as session:
        conversation = await session.begin("cerebras/llama3.1-8b", supervisor="Be brief.")
        await conversation.add("One.")
        await conversation.add(SupervisorCanister.from_text("Be kind."))
        body = json.loads(await conversation.preview("Two."))
    assert [one["role"] for one in body["messages"]] == ["system", "user"]
    assert all(words in str(body["messages"]) for words in ("One.", "Two.", "Be kind."))
