"""The client against a strict fake server: requests, listing, what is known of models, limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.fakes.ollama import FakeModel, FakeOllama, answer_json, failure
from tests.fakes.ollama_clients import produce_client, produce_model
from tests.fakes.server import HttpAnswer
from tests.pictures import make_png
from vibe_llms import open_session
from vibe_llms.base.credentials import Credential, Secret
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ContentUnsupported,
    ContextOverflow,
    ControlInvalid,
    CredentialMissing,
    CredentialRefused,
    ModelNotFound,
    ModelUnavailable,
    ProviderUnreachable,
    ReplyMalformed,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import AssistantCanister, Usage, UserCanister
from vibe_llms.messages.contents import ImageContent, text_of
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import EmbeddingClient, TurnContext
from vibe_llms.providers.ollama import client as clients
from vibe_llms.providers.ollama.model import OllamaModel
from vibe_llms.testing.wires.ollama_replies import (
    MODEL,
    tools_reply,
)

HI = [UserCanister.from_text("Hi")]
CLOSED = "http://127.0.0.1:9"


SCHEMA = {
    "type": "object",
    "title": "Search",
    "properties": {
        "where": {"$ref": "#/$defs/Place", "description": "Where."},
        "limit": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None},
        "tree": {"$ref": "#/$defs/Tree"},
        "any": True,
        "list": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
    },
    "required": ["where"],
    "additionalProperties": False,
    "$defs": {
        "Place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": ["string", "null"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "Tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}},
    },
}


async def test_the_schema_of_a_tool_arrives_whole(fake_ollama: FakeOllama) -> None:
    async def invoke(arguments: str, context: Any) -> InvocationOutput:
        return InvocationOutput(())

    tool = Invoker(name="a/b", description="Find.", arguments_schema=SCHEMA, invoke=invoke)
    model = await produce_model(fake_ollama.url)
    fake_ollama.replies = [tools_reply(("a__b", "{}"))]
    (reply,) = await model.converse(HI, [tool])
    assert reply.name == "a/b"  # type: ignore[union-attr]
    (sent,) = fake_ollama.chats[0]["tools"]
    function = sent["function"]
    assert (sent["type"], function["name"], function["description"]) == (
        "function",
        "a__b",
        "Find.",
    )
    parameters = function["parameters"]
    place = SCHEMA["$defs"]["Place"]  # type: ignore[index]
    assert parameters["properties"] == {
        "where": {**place, "description": "Where."},
        "limit": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None},
        "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}},
        "any": {},
        "list": {"type": "array", "items": place},
    }
    for name in ("title", "required", "additionalProperties", "$defs"):
        assert parameters[name] == SCHEMA[name]
    await model.client.close()


async def test_controls_become_options(fake_ollama: FakeOllama) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    controls = Controls(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        output_tokens=99,
        stop=("END",),
        seed=7,
        effort="low",
        response_schema=schema,
        extras={"ollama": {"options": {"num_keep": 5}}},
    )
    model = await produce_model(fake_ollama.url, num_ctx=4_096, keep_alive="10m")
    await model.converse(HI, controls=controls)
    (chat,) = fake_ollama.chats
    assert chat == {
        "messages": [{"role": "user", "content": "Hi"}],
        "model": MODEL,
        "truncate": False,
        "shift": False,
        "options": {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "stop": ["END"],
            "seed": 7,
            "num_predict": 99,
            "num_ctx": 4_096,
            "num_keep": 5,
        },
        "format": schema,
        "think": True,
        "keep_alive": "10m",
        "stream": True,
    }
    await model.client.close()


@pytest.mark.parametrize(
    ("family", "capabilities", "controls", "think"),
    [
        ("qwen3", ("completion", "thinking"), Controls(), True),
        ("qwen3", ("completion", "thinking"), Controls(reasoning_tokens=0), False),
        ("qwen3", ("completion", "thinking"), Controls(effort="none"), False),
        ("qwen3", ("completion", "thinking"), Controls(effort="high"), True),
        ("gptoss", ("completion", "thinking"), Controls(), None),
        ("gptoss", ("completion", "thinking"), Controls(effort="high"), "high"),
        ("llama", ("completion",), Controls(), None),
        ("llama", ("completion",), Controls(reasoning_tokens=0), None),
        # Old servers do not say.
        ("llama", None, Controls(), None),
        ("llama", None, Controls(effort="medium"), True),
    ],
)
async def test_models_are_asked_to_think_in_their_own_way(
    fake_ollama: FakeOllama,
    family: str,
    capabilities: Sequence[str] | None,
    controls: Controls,
    think: object,
) -> None:
    fake_ollama.models["some"] = FakeModel(capabilities, family=family)
    model = await produce_model(fake_ollama.url, name="some")
    await model.converse(HI, controls=controls)
    assert fake_ollama.chats[0].get("think") == think
    await model.client.close()


async def test_a_level_goes_to_models_that_are_known_before_they_are_asked() -> None:
    model = await produce_model(name="gpt-oss:20b")
    body = await model.preview(HI, (), Controls(effort="low"), TurnContext())
    assert json.loads(body)["think"] == "low"
    with pytest.raises(ControlInvalid):
        model.check(HI, Controls(reasoning_tokens=0))


@pytest.mark.parametrize(
    ("controls", "words"),
    [
        (Controls(tool_choice="any"), "tool-choice"),
        (Controls(parallel_invocations=False), "parallel-invocations"),
        (Controls(temperature=9), "at most 2"),
        (Controls(effort="max"), "one of none, low"),
        (Controls(reasoning_tokens=100), "at most 0"),
    ],
)
async def test_controls_that_are_not_taken_are_refused(controls: Controls, words: str) -> None:
    model = await produce_model(name="acme/unknown:it")
    with pytest.raises(ControlInvalid, match=words):
        model.check(HI, controls)


async def test_a_model_without_tools_is_offered_none_and_that_is_reported(
    fake_ollama: FakeOllama,
) -> None:
    def now() -> str:
        return "noon"

    fake_ollama.models["some"] = FakeModel(["completion"], family="llama")
    notices: list[Notice] = []
    model = await produce_model(fake_ollama.url, name="some")
    tools = [Invoker.from_function(now)]
    await model.converse(HI, tools, context=TurnContext(notify=notices.append))
    assert "tools" not in fake_ollama.chats[0]
    assert "cannot call tools" in notices[0].text
    await model.client.close()
    model = await produce_model(fake_ollama.url)
    await model.converse(HI, tools, Controls(tool_choice="none"))
    assert "tools" not in fake_ollama.chats[1]
    await model.client.close()


# What is known of models.


async def test_the_server_is_asked_once_what_a_model_can_do(fake_ollama: FakeOllama) -> None:
    fake_ollama.models["some"] = FakeModel(
        ["completion", "vision", "thinking"], trained=9_000, family="odd"
    )
    client = produce_client(fake_ollama.url)
    model = await client.access_model("some")
    assert model.attributes.context_tokens is None
    assert fake_ollama.requests == []
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(model.converse(HI))
    assert [request.path for request in fake_ollama.requests].count("/api/show") == 1
    attributes = model.attributes
    assert (attributes.context_tokens, attributes.tools) == (9_000, "contract")
    assert (attributes.accept("image"), attributes.reasoning) == (True, True)
    await client.close()


async def test_what_the_user_says_of_a_model_goes_over_what_the_server_says(
    fake_ollama: FakeOllama,
) -> None:
    own = {"qwen3.*": {"context-tokens": 10_000, "tools": "none"}}
    model = await produce_model(fake_ollama.url, models=own)
    await model.converse(HI)
    assert (model.attributes.context_tokens, model.attributes.tools) == (10_000, "none")
    assert fake_ollama.chats[0]["options"]["num_ctx"] == 10_000
    await model.client.close()


@pytest.mark.parametrize(
    ("num_ctx", "context"), [(None, 10_000), (0, 10_000), (4_096, 4_096), (32_768, 10_000)]
)
async def test_the_context_of_the_row_bounds_that_of_the_model(
    fake_ollama: FakeOllama, num_ctx: int | None, context: int
) -> None:
    fake_ollama.models["some"] = FakeModel(["completion"], trained=10_000)
    model = await produce_model(fake_ollama.url, name="some", num_ctx=num_ctx)
    assert model.attributes.context_tokens == (num_ctx or None)
    await model.converse(HI)
    await model.client.close()
    assert model.attributes.context_tokens == context


@pytest.mark.parametrize(
    "broken", [failure(500, "x"), answer_json(["odd"]), HttpAnswer(drop="reset")]
)
async def test_a_model_of_which_the_server_says_nothing_works_all_the_same(
    fake_ollama: FakeOllama, broken: HttpAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    respond = fake_ollama.respond
    monkeypatch.setattr(
        fake_ollama,
        "respond",
        lambda request: broken if request.path == "/api/show" else respond(request),
    )
    model = await produce_model(fake_ollama.url)
    (reply,) = await model.converse(HI)
    assert isinstance(reply, AssistantCanister)
    assert reply.text == "Hello."
    await model.client.close()


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (HttpAnswer(404, {}, [b"404 page not found"]), 1),
        (failure(404, "model 'qwen3' not found"), 1),
        (HttpAnswer(405), 1),
        (failure(501, "not implemented"), 1),
        # What may be over by the next turn is asked again.
        (failure(500, "x"), 3),
    ],
)
async def test_a_server_that_describes_no_model_is_not_asked_every_turn(
    fake_ollama: FakeOllama, answer: HttpAnswer, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    respond = fake_ollama.respond
    monkeypatch.setattr(
        fake_ollama,
        "respond",
        lambda request: answer if request.path == "/api/show" else respond(request),
    )
    model = await produce_model(fake_ollama.url)
    for _ in range(3):
        await model.converse(HI)
    assert [one.path for one in fake_ollama.requests].count("/api/show") == asked
    assert not model.client.is_described(model.name)
    await model.client.close()


async def test_a_model_that_is_pulled_later_is_asked_about_again(fake_ollama: FakeOllama) -> None:
    client = produce_client(fake_ollama.url)
    model = await client.access_model("later")
    with pytest.raises(ModelUnavailable):
        await model.converse(HI)
    fake_ollama.models["later"] = FakeModel(["completion"], trained=9_000)
    await model.converse(HI)
    assert model.attributes.context_tokens == 9_000
    await client.close()


async def test_a_server_that_is_slow_to_answer_is_not_waited_for(
    fake_ollama: FakeOllama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "DESCRIBE_SECONDS", 0.05)
    respond = fake_ollama.respond
    monkeypatch.setattr(
        fake_ollama,
        "respond",
        lambda request: HttpAnswer(stall=-1) if request.path == "/api/show" else respond(request),
    )
    model = await produce_model(fake_ollama.url)
    async with asyncio.timeout(20):
        (reply,) = await model.converse(HI)
    assert text_of(reply.contents) == "Hello."
    await model.client.close()


async def check_a_blind_model(server: FakeOllama) -> None:
    """A picture for a model that sees nothing is refused, and neither kept nor sent."""
    server.models["blind"] = FakeModel(["completion"], family="blind")
    picture = ImageContent(make_png(), "image/png")
    configuration = {"providers": {"ollama": {"base-url": server.url}}}
    async with open_session(configuration=configuration) as session:
        conversation = await session.begin("ollama/blind")
        for _ in range(2):
            with pytest.raises(ContentUnsupported, match="ollama/blind does not accept"):
                await conversation.converse(["What is it?", picture])
            assert conversation.canisters == ()
        assert server.chats == []
        assert (await conversation.converse("Hi")).text == "Hello."
        # A model that sees is asked for what it can do just as well, and then shown the picture.
        await conversation.switch(f"ollama/{MODEL}")
        assert (await conversation.converse(["What is it?", picture])).text == "Hello."
    assert len(server.chats[-1]["messages"][-1]["images"]) == 1


async def test_a_picture_for_a_model_not_known_yet_is_refused_before_anything_is_kept(
    fake_ollama: FakeOllama,
) -> None:
    await check_a_blind_model(fake_ollama)


async def test_a_model_that_is_not_asked_about_beforehand_would_be_detected(
    fake_ollama: FakeOllama, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def inquire(self: OllamaModel, canisters: object, controls: object) -> None:
        pass

    monkeypatch.setattr(OllamaModel, "inquire", inquire)
    with pytest.raises(AssertionError):
        await check_a_blind_model(fake_ollama)


async def test_the_models_of_the_server_are_listed(fake_ollama: FakeOllama) -> None:
    fake_ollama.models["phi4:latest"] = FakeModel(family="phi3")
    client = produce_client(fake_ollama.url)
    models = await client.survey_models()
    assert [(model.name, model.attributes.title) for model in models] == [
        (MODEL, "qwen3 8.2B Q4_K_M"),
        ("phi4:latest", "phi3 8.2B Q4_K_M"),
    ]
    assert models[1].attributes.context_tokens == 16_384
    with pytest.raises(ModelNotFound):
        await client.access_model("")
    await client.close()


@pytest.mark.parametrize(
    ("name", "context", "tools", "sees", "thinks"),
    [
        ("llama3.2:3b", 131_072, "native", False, False),
        ("llama3.2-vision", 131_072, "contract", True, False),
        ("hf.co/someone/qwen3:14b", 40_960, "native", False, True),
        ("qwen3-vl:8b", 262_144, "native", True, True),
        ("mistral-small3.2:24b", 131_072, "native", True, False),
        ("gemma3:1b", 32_768, "contract", False, False),
        ("gemma3:27b-it-qat", 131_072, "contract", True, False),
        ("deepseek-r1:8b", 131_072, "native", False, True),
        ("gpt-oss:120b-cloud", 131_072, "native", False, True),
        ("phi4-mini", 131_072, "native", False, False),
        ("acme/unknown:it", None, "native", False, False),
    ],
)
async def test_the_families_are_known(
    name: str, context: int | None, tools: str, sees: bool, thinks: bool
) -> None:
    attributes = (await produce_model(name=name)).attributes
    assert (attributes.context_tokens, attributes.tools) == (context, tools)
    assert (attributes.accept("image"), attributes.reasoning) == (sees, thinks)


# Counting and embedding.


async def test_a_count_is_an_estimate_that_says_so() -> None:
    def look(at: str) -> str:
        """Look at something."""
        return at

    model = await produce_model()
    plain = await model.count_tokens([UserCanister.from_text("word " * 1_000)])
    tools = await model.count_tokens(
        [UserCanister.from_text("word " * 1_000)], [Invoker.from_function(look)]
    )
    assert (plain.estimated, tools.estimated) == (True, True)
    assert 1_000 <= plain.tokens < tools.tokens < 1_500


async def test_texts_are_embedded(fake_ollama: FakeOllama) -> None:
    client = produce_client(fake_ollama.url)
    found = await client.embed(MODEL, ["one", "two words\ud83d"], dimensions=2)
    assert [list(vector) for vector in found.vectors] == [[0.03, 0.5], [0.1, 0.5]]
    assert found.usage == Usage(uncached_input_tokens=4)
    assert isinstance(client, EmbeddingClient)
    assert (await client.embed(MODEL, [])).vectors == ()
    with pytest.raises(ReplyMalformed, match="of 3 dimensions, not the requested 4"):
        await client.embed(MODEL, ["one"], dimensions=4)
    with pytest.raises(ContextOverflow):
        await client.embed(MODEL, ["word " * 600])
    with pytest.raises(ModelUnavailable, match="ollama pull nomic-embed-text"):
        await client.embed("nomic-embed-text", ["x"])
    await client.close()


async def test_vectors_that_are_missing_are_malformed(
    fake_ollama: FakeOllama, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = produce_client(fake_ollama.url)
    bodies: list[Any] = [
        {"embeddings": [[1.0]]},
        {"embeddings": [["x"], [1.0]]},
        {"embeddings": [[1.0], [1.0, 2.0]]},
        {"embeddings": [[], []]},
        {},
    ]
    for body in bodies:
        monkeypatch.setattr(fake_ollama, "respond", lambda request, b=body: answer_json(b))
        with pytest.raises(ReplyMalformed):
            await client.embed(MODEL, ["a", "b"])
    await client.close()


# What goes wrong.


async def test_a_server_that_does_not_run_is_reported_with_a_remedy() -> None:
    model = await produce_model(CLOSED)
    client: Any = model.client
    for work in (model.converse(HI), client.survey_models(), client.embed("m", ["a"])):
        with pytest.raises(ProviderUnreachable, match="ollama serve") as caught:
            await work
        assert caught.value.code == "not_running"
        assert caught.value.__cause__ is not None
    await model.client.close()


async def test_a_hosted_server_wants_a_key(fake_ollama: FakeOllama) -> None:
    fake_ollama.key = "key-0123456789"
    model = await produce_model(fake_ollama.url)
    with pytest.raises(CredentialRefused):
        await model.converse(HI)
    await model.client.close()
    credential = Credential("ollama", given=Secret(fake_ollama.key))
    model = await produce_model(fake_ollama.url, credential=credential)
    await model.converse(HI)
    await model.client.close()


async def test_a_key_that_is_wanted_and_missing_is_found_before_anything_is_kept() -> None:
    model = await produce_model(credential=Credential("ollama", variable="OLLAMA_API_KEY"))
    with pytest.raises(CredentialMissing, match="OLLAMA_API_KEY"):
        model.check(HI, Controls())


async def test_a_key_in_the_environment_is_not_sent_to_a_row_without_one(
    fake_ollama: FakeOllama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", "key-0123456789")
    client = produce_client(fake_ollama.url)
    await (await client.access_model(MODEL)).converse(HI)
    async with client.produce_library() as library:
        await library.list()
    assert not any("authorization" in request.headers for request in fake_ollama.requests)
    await client.close()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"num_ctx": -1}, "num-ctx"),
        ({"keep_alive": "soon"}, "keep-alive"),
        ({"nonesuch": 1}, "nonesuch"),
        ({"base_url": 7}, "base-url"),
    ],
)
def test_a_row_that_is_wrong_is_named(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        produce_client(**settings)


async def test_attributes_that_are_wrong_are_named() -> None:
    client = produce_client(models={".*": {"native": {"thinking": "odd"}}})
    with pytest.raises(ConfigurationError, match="native"):
        await client.access_model("x")
