"""Controls of Converse, and those of the families of models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.bedrock import Issued, check_request
from tests.fakes.bedrock_clients import MODEL, produce_model
from tests.fakes.server import ReceivedRequest
from vibe_llms.base.exceptions import ConfigurationError, ControlInvalid
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import TurnContext

HI = UserCanister.from_text("Hi")
OLDER = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA, NOVA2 = "us.amazon.nova-pro-v1:0", "us.amazon.nova-2-lite-v1:0"
GPT = "openai.gpt-oss-120b-1:0"
SCHEMA = {"type": "object", "title": "city", "properties": {}, "additionalProperties": False}


async def send(name: str, controls: Controls, **models: Any) -> dict[str, Any]:
    """The members of a request with these controls, which the strict fake takes."""
    model = await produce_model(name=name, **models)
    body = await model.preview([HI], (), controls, TurnContext())
    check_request(ReceivedRequest("POST", "", {}, body), name, Issued(), streamed=True)
    members: dict[str, Any] = json.loads(body)
    del members["messages"]
    return members


CASES: list[tuple[str, Controls, dict[str, Any]]] = [
    (MODEL, Controls(), {}),
    (
        OLDER,
        Controls(temperature=0.5, output_tokens=99, stop=("x",), top_k=5),
        {
            "inferenceConfig": {"temperature": 0.5, "maxTokens": 99, "stopSequences": ["x"]},
            "additionalModelRequestFields": {"top_k": 5},
        },
    ),
    (
        NOVA,
        Controls(top_p=0.5, top_k=5),
        {
            "inferenceConfig": {"topP": 0.5},
            "additionalModelRequestFields": {"inferenceConfig": {"topK": 5}},
        },
    ),
    (
        MODEL,
        Controls(effort="xhigh"),
        {
            "outputConfig": {"effort": "xhigh"},
            "additionalModelRequestFields": {
                "thinking": {"type": "adaptive", "display": "summarized"}
            },
        },
    ),
    (
        MODEL,
        Controls(reasoning_tokens=0),
        {"additionalModelRequestFields": {"thinking": {"type": "disabled"}}},
    ),
    (
        OLDER,
        Controls(reasoning_tokens=2048),
        {
            "inferenceConfig": {"maxTokens": 2048 + 8192},
            "additionalModelRequestFields": {
                "thinking": {"type": "enabled", "budget_tokens": 2048}
            },
        },
    ),
    (GPT, Controls(effort="low"), {"additionalModelRequestFields": {"reasoning_effort": "low"}}),
    (
        NOVA2,
        Controls(effort="medium"),
        {
            "additionalModelRequestFields": {
                "reasoningConfig": {"type": "enabled", "maxReasoningEffort": "medium"}
            }
        },
    ),
    (MODEL, Controls(service_tier="flex"), {"serviceTier": {"type": "flex"}}),
    (
        MODEL,
        Controls(response_schema=SCHEMA),
        {
            "outputConfig": {
                "textFormat": {
                    "type": "json_schema",
                    "structure": {
                        "jsonSchema": {
                            "schema": json.dumps(SCHEMA, separators=(",", ":")),
                            "name": "city",
                        }
                    },
                }
            }
        },
    ),
]


@pytest.mark.parametrize(("name", "controls", "sent"), CASES)
async def test_controls_go_where_the_model_takes_them(
    name: str, controls: Controls, sent: dict[str, Any]
) -> None:
    assert await send(name, controls) == sent


@pytest.mark.parametrize(
    ("name", "controls", "words"),
    [
        (MODEL, Controls(temperature=0.5), "temperature"),
        (MODEL, Controls(reasoning_tokens=2048), "reasoning-tokens"),
        (NOVA, Controls(effort="low"), "effort"),
        (NOVA, Controls(response_schema=SCHEMA), "response-schema"),
        (GPT, Controls(stop=("x",)), "stop"),
        (MODEL, Controls(stop=(" ",)), "white space"),
        (MODEL, Controls(seed=1), "seed"),
        (MODEL, Controls(parallel_invocations=False), "parallel-invocations"),
        (OLDER, Controls(reasoning_tokens=512), "at least 1024"),
        (OLDER, Controls(reasoning_tokens=4096, output_tokens=4096), "less than the output"),
        (OLDER, Controls(reasoning_tokens=2048, tool_choice="any"), "demands a call"),
        (MODEL, Controls(tool_choice="any"), "a call cannot be required"),
        (MODEL, Controls(tool_choice="look"), "'look' cannot be required"),
        (MODEL, Controls(extras={"bedrock": {"system": []}}), "'system' cannot be set"),
        (MODEL, Controls(extras={"bedrock": {"toolConfig": {"tools": [1]}}}), "list of tables"),
    ],
)
async def test_controls_that_the_model_does_not_take_are_refused(
    name: str, controls: Controls, words: str
) -> None:
    with pytest.raises(ControlInvalid, match=words):
        await send(name, controls)


async def test_extras_go_deep_into_the_request() -> None:
    extras = {
        "additionalModelRequestFields": {"anthropic_beta": ["x"]},
        "requestMetadata": {"a": "b"},
    }
    sent = await send(MODEL, Controls(effort="low", extras={"bedrock": extras}))
    assert sent["requestMetadata"] == {"a": "b"}
    fields = sent["additionalModelRequestFields"]
    assert fields["anthropic_beta"] == ["x"]
    assert fields["thinking"]["type"] == "adaptive"


def look(where: str) -> str:
    """Look somewhere."""
    return where


async def test_thinking_is_not_enabled_within_calls_that_began_without_it() -> None:
    call = InvocationCanister(name="look", arguments='{"where":"up"}')
    result = ResultCanister((TextualContent("sky"),), invocation=call.identity)
    notices: list[Notice] = []
    model = await produce_model(name=OLDER)
    context = TurnContext(notify=notices.append)
    controls = Controls(reasoning_tokens=2048)
    body = await model.preview([HI, call, result], [Invoker.from_function(look)], controls, context)
    check_request(ReceivedRequest("POST", "", {}, body), OLDER, Issued(), streamed=True)
    assert b"thinking" not in body
    assert "reasoning-tokens is not sent until" in notices[0].text
    # With the next question it is.
    said: list[Canister] = [HI, call, result, AssistantCanister.from_text("Blue."), HI]
    body = await model.preview(said, [Invoker.from_function(look)], controls, TurnContext())
    assert b'"budget_tokens":2048' in body


async def test_wrong_attributes_are_reported() -> None:
    with pytest.raises(ConfigurationError, match="native"):
        await produce_model(models={".*": {"native": {"cache-points": ["nowhere"]}}})
