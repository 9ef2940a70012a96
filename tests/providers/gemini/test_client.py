"""The client and the controls of Gemini: models, counts, embeddings, choices, errors, addresses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes.gemini import (
    KEY,
    FakeGemini,
    failure,
    reason,
)
from tests.fakes.gemini_clients import assemble, produce_client, produce_model
from tests.fakes.server import HttpAnswer
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ContentUnsupported,
    ContextOverflow,
    ControlInvalid,
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    RateLimited,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, SupervisorCanister, UserCanister
from vibe_llms.messages.contents import ImageContent
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.gemini.controls import fit_response

HI = [UserCanister.from_text("Hi")]


def now() -> str:
    """Tell the time."""
    return "noon"


NOW = Invoker.from_function(now, name="time/now")


async def config(name: str = "gemini-3.8-flash", **controls: Any) -> dict[str, Any]:
    model = await produce_model(name=name)
    body, _ = await assemble(model, HI, controls=Controls(**controls))
    found: dict[str, Any] = body.get("generationConfig", {})
    return found


async def test_the_key_is_in_a_header_and_the_method_in_the_path(fake_gemini: FakeGemini) -> None:
    model = await produce_model(fake_gemini.url, name="models/gemini-2.5-pro")
    await model.converse(HI)
    (request,) = fake_gemini.requests
    assert request.path == "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
    assert request.headers["x-goog-api-key"] == KEY
    assert "authorization" not in request.headers
    await model.client.close()


async def test_the_version_of_the_api_is_in_the_row(fake_gemini: FakeGemini) -> None:
    model = await produce_model(fake_gemini.url, api_version="v1")
    assert model.locate("generateContent") == "/v1/models/gemini-3.8-flash:generateContent"
    await model.client.close()


async def test_all_pages_of_the_models_that_answer_are_listed(fake_gemini: FakeGemini) -> None:
    fake_gemini.page_size = 2
    fake_gemini.models = [
        {
            "name": "models/gemini-9",
            "displayName": "Nine",
            "inputTokenLimit": 99,
            "outputTokenLimit": 9,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
            "thinking": True,
            "maxTemperature": 1.5,
        },
        {"name": "models/embedding-9", "supportedGenerationMethods": ["embedContent"]},
        {"name": "models/gemini-8", "thinking": False},
    ]
    client = produce_client(fake_gemini.url)
    nine, eight = await client.survey_models()
    assert (nine.name, nine.attributes.title) == ("gemini-9", "Nine")
    assert (nine.attributes.context_tokens, nine.attributes.output_tokens) == (99, 9)
    with pytest.raises(ControlInvalid, match="temperature"):
        nine.check(HI, Controls(temperature=1.6))
    assert eight.name == "gemini-8"
    assert not eight.attributes.reasoning
    await client.close()


async def test_tokens_are_counted_by_the_server(fake_gemini: FakeGemini) -> None:
    fake_gemini.count = 31
    model = await produce_model(fake_gemini.url)
    said: list[Canister] = [SupervisorCanister.from_text("Be brief."), *HI]
    count = await model.count_tokens(said, (NOW,))
    assert (count.tokens, count.estimated) == (31, False)
    (request,) = fake_gemini.requests
    assert request.path == "/v1beta/models/gemini-3.8-flash:countTokens"
    inner = json.loads(request.body)["generateContentRequest"]
    assert {*inner} == {"model", "contents", "systemInstruction", "tools"}
    await model.client.close()


async def test_texts_become_vectors(fake_gemini: FakeGemini) -> None:
    client = produce_client(fake_gemini.url)
    made = await client.embed("gemini-embedding-2", ["a", "b"], dimensions=2)
    assert [list(vector) for vector in made.vectors] == [[0.5, 0.25]] * 2
    assert (await client.embed("gemini-embedding-2", [])).vectors == ()
    await client.close()


async def test_thinking_is_a_level_or_a_budget_and_is_shown() -> None:
    thinking = "thinkingConfig"
    assert (await config())[thinking] == {"includeThoughts": True}
    assert (await config(effort="low"))[thinking] == {
        "includeThoughts": True,
        "thinkingLevel": "LOW",
    }
    older = "gemini-2.5-flash"
    assert (await config(older, effort="medium"))[thinking]["thinkingBudget"] == 8192
    assert (await config(older, reasoning_tokens=0))[thinking] == {
        "includeThoughts": False,
        "thinkingBudget": 0,
    }
    assert thinking not in await config("gemini-2.0-flash")
    for name, controls in (
        ("gemini-3.8-flash", Controls(effort="minimal")),
        ("gemini-2.5-pro", Controls(reasoning_tokens=0)),
        ("gemini-3.8-flash", Controls(effort="low", reasoning_tokens=9)),
        ("gemini-3.8-flash", Controls(temperature=1.0)),
        ("gemini-4-argon", Controls(top_p=0.5)),
    ):
        model = await produce_model(name=name)
        with pytest.raises(ControlInvalid):
            model.check(HI, controls)


async def test_other_controls_have_their_names_on_the_wire() -> None:
    found = await config(
        "gemini-3.5-flash",
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        output_tokens=77,
        stop=("\n",),
        seed=4,
    )
    assert {name: found[name] for name in found if name != "thinkingConfig"} == {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 3,
        "maxOutputTokens": 77,
        "stopSequences": ["\n"],
        "seed": 4,
    }
    model = await produce_model()
    body, _ = await assemble(model, HI, controls=Controls(service_tier="flex"))
    assert body["serviceTier"] == "flex"


async def test_a_schema_of_the_reply_keeps_what_json_schema_can_say() -> None:
    schema = {
        "type": "object",
        "properties": {
            "$ref": {"type": "string"},
            "const": {"const": 1},
            "place": {"$ref": "#/$defs/Place", "description": "Where."},
            "days": {"type": "array", "prefixItems": [{"type": "string"}]},
        },
        "$defs": {"Place": {"enum": ["a", {"const": 2}]}},
        "additionalProperties": False,
    }
    found = await config(response_schema=schema)
    assert found["responseMimeType"] == "application/json"
    assert found["responseJsonSchema"] == {
        **schema,
        "properties": {
            **schema["properties"],  # type: ignore[dict-item]
            "const": {"enum": [1]},
            "place": {"$ref": "#/$defs/Place"},
        },
    }
    assert fit_response(schema) == found["responseJsonSchema"]


async def test_images_are_asked_of_the_models_that_make_them() -> None:
    found = await config("gemini-2.5-flash-image")
    assert found["responseModalities"] == ["TEXT", "IMAGE"]
    model = await produce_model(name="gemini-3-pro-image-preview")
    body, notices = await assemble(model, HI, NOW)
    assert "tools" not in body
    assert any("cannot call tools" in notice for notice in notices)


async def test_a_choice_of_a_tool_is_sent_only_with_functions() -> None:
    model = await produce_model()
    for choice, expected in (
        ("any", {"mode": "ANY"}),
        ("none", {"mode": "NONE"}),
        ("auto", {"mode": "AUTO"}),
        ("time/now", {"mode": "ANY", "allowedFunctionNames": ["time__now"]}),
    ):
        body, _ = await assemble(model, HI, NOW, controls=Controls(tool_choice=choice))
        assert body["toolConfig"] == {"functionCallingConfig": expected}
    for choice in ("auto", "none"):
        body, _ = await assemble(model, HI, controls=Controls(tool_choice=choice))
        assert "toolConfig" not in body
    for choice in ("any", "other"):
        with pytest.raises(ControlInvalid, match="cannot be required"):
            await assemble(model, HI, controls=Controls(tool_choice=choice))


async def test_googles_own_tools_and_settings_are_extras() -> None:
    model = await produce_model(name="gemini-3.5-flash")
    extras = {
        "tools": [{"googleSearch": {}}],
        "safetySettings": [
            {"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_ONLY_HIGH"}
        ],
        "generationConfig": {"mediaResolution": "MEDIA_RESOLUTION_LOW"},
    }
    controls = Controls(temperature=1, extras={"gemini": extras})
    body, _ = await assemble(model, HI, NOW, controls=controls)
    assert body["tools"][0] == {"googleSearch": {}}
    assert "functionDeclarations" in body["tools"][1]
    assert body["generationConfig"]["temperature"] == 1
    assert body["generationConfig"]["mediaResolution"] == "MEDIA_RESOLUTION_LOW"
    wrong: list[dict[str, Any]] = [
        {"tools": {}},
        {"generationConfig": []},
        {"generationConfig": {"candidateCount": 2}},
    ]
    for bad in wrong:
        with pytest.raises(ControlInvalid, match="must be"):
            model.check(HI, Controls(extras={"gemini": bad}))


async def test_a_cache_of_ones_own_is_named_in_extras_and_reported(fake_gemini: FakeGemini) -> None:
    model = await produce_model(fake_gemini.url)
    controls = Controls(extras={"gemini": {"cachedContent": "cachedContents/x"}})
    await model.converse(HI, controls=controls)
    assert json.loads(fake_gemini.requests[0].body)["cachedContent"] == "cachedContents/x"
    await model.client.close()


async def test_errors_are_told_by_their_reasons_and_say_when_to_come_again(
    fake_gemini: FakeGemini,
) -> None:
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37.5s"}
    billing = failure(403, "PERMISSION_DENIED", details=[reason("BILLING_DISABLED")])
    long = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
    gone = "You do not have permission to access the File x1 or it may not exist."
    cases = [
        (
            failure(400, "INVALID_ARGUMENT", "bad key", details=[reason("API_KEY_INVALID")]),
            CredentialRefused,
        ),
        (failure(429, "RESOURCE_EXHAUSTED", "quota", details=[retry]), RateLimited),
        (billing, PaymentRequired),
        (failure(400, "INVALID_ARGUMENT", long), ContextOverflow),
        (failure(403, "PERMISSION_DENIED", gone), RequestRefused),
        (
            failure(400, "INVALID_ARGUMENT", "Request payload size exceeds the limit"),
            RequestTooLarge,
        ),
    ]
    model = await produce_model(fake_gemini.url)
    for answer, kind in cases:
        # A file that is gone is looked up once more.
        fake_gemini.replies = [answer, answer]
        with pytest.raises(kind) as caught:
            await model.converse(HI)
        error: Any = caught.value
        if kind is RateLimited:
            assert error.retry_after == 37.5
        if kind is ContextOverflow:
            assert (error.tokens, error.limit) == (1_200_000, 1_048_576)
    await model.client.close()


#: What Google says, the error that it is, and the next step that it names. Sources: reports of
#: users, and https://ai.google.dev/gemini-api/docs/troubleshooting (2026-11).
NEXT_STEPS: Mapping[str, tuple[HttpAnswer, type[ProviderError], str]] = {
    "a wrong region": (
        failure(400, "FAILED_PRECONDITION", "User location is not supported for the API use."),
        RequestRefused,
        "another provider may: vibe-llms providers",
    ),
    "an expired key": (
        failure(
            400,
            "INVALID_ARGUMENT",
            "API key expired. Please renew the API key.",
            details=[reason("API_KEY_INVALID")],
        ),
        CredentialRefused,
        "set another key: vibe-llms keys set gemini",
    ),
    "an API that is not enabled": (
        failure(
            403,
            "PERMISSION_DENIED",
            "Generative Language API has not been used in project 1 before or it is disabled.",
            details=[reason("SERVICE_DISABLED")],
        ),
        CredentialRefused,
        "allow the Generative Language API for the project",
    ),
    "a model without access": (
        failure(
            404,
            "NOT_FOUND",
            "models/gemini-9 is not found for API version v1beta, or is not supported for "
            "generateContent.",
        ),
        ModelUnavailable,
        "vibe-llms models gemini",
    ),
    "a quota of zero": (
        failure(
            429,
            "RESOURCE_EXHAUSTED",
            "You exceeded your current quota, please check your plan and billing details.\n* Quota "
            "exceeded for metric: generativelanguage.googleapis.com/"
            "generate_content_free_tier_requests, limit: 0, model: gemini-3.8-pro\n"
            "Please retry in 37.5s.",
        ),
        PaymentRequired,
        "enable billing at https://aistudio.google.com",
    ),
    "a quota that is used up": (
        failure(
            429,
            "RESOURCE_EXHAUSTED",
            "* Quota exceeded for metric: generativelanguage.googleapis.com/"
            "generate_content_free_tier_requests, limit: 20, model: gemini-3.8-flash\n"
            "Please retry in 37.5s.",
        ),
        RateLimited,
        "try again later",
    ),
    "a type of image that the model refuses": (
        failure(400, "INVALID_ARGUMENT", "Unsupported MIME type: image/x-portable-pixmap"),
        RequestRefused,
        "convert the file, such as an image to PNG",
    ),
    "an image that cannot be read": (
        failure(400, "INVALID_ARGUMENT", "Unable to process input image."),
        RequestRefused,
        "convert the file, such as an image to PNG",
    ),
    "a file over the limit": (
        failure(
            400,
            "INVALID_ARGUMENT",
            "Request payload size exceeds the limit: 20971520 bytes.",
        ),
        RequestTooLarge,
        "leave images and files out",
    ),
}


@pytest.mark.parametrize("name", NEXT_STEPS)
async def test_a_refusal_is_one_clear_error_with_the_next_step(
    name: str, fake_gemini: FakeGemini
) -> None:
    answer, kind, step = NEXT_STEPS[name]
    fake_gemini.replies = [answer]
    model = await produce_model(fake_gemini.url)
    with pytest.raises(ProviderError) as caught:
        await model.converse(HI)
    await model.client.close()
    assert type(caught.value) is kind
    assert step in str(caught.value)
    assert len(fake_gemini.requests) == 1


async def test_an_image_that_the_model_does_not_take_is_refused_before_it_is_sent(
    fake_gemini: FakeGemini,
) -> None:
    model = await produce_model(fake_gemini.url)
    said = [UserCanister((ImageContent(b"P6", "image/x-portable-pixmap"),))]
    with pytest.raises(ContentUnsupported, match="does not accept an image image/x-portable"):
        model.check(said, Controls())
    await model.client.close()
    assert fake_gemini.requests == []


def test_the_address_of_the_other_api_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="chat_completions") as caught:
        produce_client("https://generativelanguage.googleapis.com/v1beta/openai/")
    assert "base-url" in str(caught.value)
