"""Pictures: what is sent, what comes back, what is refused, and what is never sent twice."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.images import KEY, PNG, FakeImages, error_answer, picture_answer
from tests.fakes.models import model_of, says
from tests.fakes.server import HttpAnswer, ReceivedRequest
from vibe_llms import open_session
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ConfigurationError, CredentialMissing, RequestForbidden
from vibe_llms.conversations.hosts import EnsembleConfiguration
from vibe_llms.ensembles.images.ensemble import ImagesEnsemble
from vibe_llms.invocation.approval import ApprovalRequest, Decision
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import ImageContent, Reference
from vibe_llms.testing import Part, ScriptedReply, forbid_requests


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeImages]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with FakeImages() as server:
        yield server


def rows(fake: FakeImages, **settings: Any) -> dict[str, Any]:
    return {
        "providers": {"openai": {"base-url": f"{fake.url}/v1"}},
        "stream": {"retry-wait-seconds": 5},
        "ensembles": {"images": settings},
    }


@asynccontextmanager
async def produce(tree: dict[str, Any]) -> AsyncIterator[ImagesEnsemble]:
    configuration = load_configuration(overrides=tree)
    row = configuration.row("ensembles", "images")
    ensemble = ImagesEnsemble("images", EnsembleConfiguration(configuration, row.settings))
    await ensemble.open()
    try:
        yield ensemble
    finally:
        await ensemble.close()


async def make(ensemble: ImagesEnsemble, **arguments: Any) -> InvocationOutput:
    (tool,) = ensemble.invokers
    text = msgspec.json.encode({"prompt": "a cat", **arguments}).decode()
    invocation = InvocationCanister(name=tool.name, arguments=text)
    return await tool.invoke(text, InvocationContext("", invocation, lambda *_, **__: None))


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_picture_is_a_content_kept_by_its_hash_and_shown_to_the_model(
    fake: FakeImages, keeps: bool
) -> None:
    fake.keeps = keeps
    asked: list[str] = []

    async def approve(request: ApprovalRequest) -> Decision:
        asked.append(request.invocation.name)
        return Decision.ALLOW

    call = Part(invocation="images/generate_image", arguments={"prompt": "a cat"})
    async with open_session(configuration=rows(fake), approver=approve) as session:
        conversation = await session.begin(
            model_of(ScriptedReply(parts=(call,)), says("Done.")), ensembles=["images"]
        )
        turn = await conversation.converse("Draw a cat.")
        (result,) = (one for one in turn.canisters if isinstance(one, ResultCanister))
        restored = await session.archive.restore(conversation.identity)
        (kept,) = (one for one in restored.canisters if isinstance(one, ResultCanister))
        (picture,) = (one for one in kept.contents if isinstance(one, ImageContent))
        assert isinstance(picture.data, Reference)
        assert await session.load(picture.data) == PNG
    assert asked == ["images/generate_image"]
    assert not result.failed
    assert result.contents[1] == ImageContent(PNG, "image/png")
    assert fake.refusals == []


async def test_only_chosen_options_are_sent(fake: FakeImages) -> None:
    async with produce(rows(fake, extras={"moderation": "low"})) as ensemble:
        await make(ensemble)
        await make(
            ensemble,
            size="1536x864",
            quality="high",
            background="transparent",
            format="webp",
        )
    first, second = (request.json for request in fake.requests)
    model = {"model": "gpt-image-2.5-flare", "prompt": "a cat", "moderation": "low"}
    assert first == model
    assert second == {
        **model,
        "size": "1536x864",
        "quality": "high",
        "background": "transparent",
        "output_format": "webp",
    }
    assert fake.refusals == []


async def test_the_tool_asks_sends_and_has_its_time(fake: FakeImages) -> None:
    async with produce(rows(fake)) as ensemble:
        (tool,) = ensemble.invokers
        assert (tool.name, tool.approval, tool.sends) == ("images/generate_image", "ask", True)
        assert tool.timeout_seconds == 245
        assert tool.arguments_schema["required"] == ["prompt"]
        assert "costs the person money" in tool.description
    assert list(ensemble.invokers) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            error_answer("Your request was rejected.", "moderation_blocked"),
            "rejected. (the provider's policy forbids this image; request another)",
        ),
        (error_answer("You exceeded your quota.", "insufficient_quota", 429), "Do not retry."),
        (error_answer("Bad key.", "invalid_api_key", 401), "The user must fix this."),
        (HttpAnswer(500, {}, [b"oh"]), "may still have been charged"),
        (HttpAnswer(200, {"content-type": "application/json"}, [b"{]"]), "answer is not valid"),
        (
            HttpAnswer(200, {"content-type": "application/json"}, [b'{"data": []}']),
            "contains no image",
        ),
        (HttpAnswer(200, {"content-type": "text/html"}, [b"<p>"]), "a web page"),
        (HttpAnswer(302, {"location": "http://elsewhere/"}, []), "keys are not sent there"),
        (HttpAnswer(400, {}, [b'{"error": "no such thing"}']), "no such thing"),
        (HttpAnswer(400, {}, [b"[1]"]), "status 400"),
        (HttpAnswer(404, {}, [b'{"error": {}}']), "status 404"),
        (picture_answer({"b64_json": "!!!"}), "not valid base64"),
        (
            picture_answer({"b64_json": base64.b64encode(b"hello").decode()}),
            "did not return an image",
        ),
        (
            picture_answer({"b64_json": base64.b64encode(bytes(9)).decode()}),
            "did not return an image",
        ),
        (
            picture_answer({"b64_json": base64.b64encode(bytes(6000)).decode()}),
            "more than 4,000 bytes",
        ),
    ],
)
async def test_the_reason_why_no_picture_is_made_is_reported_to_the_model(
    fake: FakeImages, answer: HttpAnswer, words: str
) -> None:
    fake.replies = [answer]
    async with produce(rows(fake, **{"picture-bytes": 4000})) as ensemble:
        output = await make(ensemble)
        assert output.failed
        assert words in output.text
        assert KEY not in output.text
        assert len(fake.requests) == 1
        assert not (await make(ensemble)).failed


@pytest.mark.parametrize("size", ["huge", "1x1000", "1000x1001"])
async def test_an_unknown_size_is_reported_in_the_servers_words(
    fake: FakeImages, size: str
) -> None:
    async with produce(rows(fake)) as ensemble:
        output = await make(ensemble, size=size)
    assert output.failed
    assert f"Invalid size '{size}'" in output.text


async def test_an_invalid_prompt_is_not_sent(fake: FakeImages) -> None:
    async with produce(rows(fake)) as ensemble:
        for prompt in (" ", "x" * 32_001):
            assert (await make(ensemble, prompt=prompt)).failed
    assert fake.requests == []


async def test_what_was_refused_for_now_is_sent_again(fake: FakeImages) -> None:
    fake.replies = [error_answer("Slow down.", "rate_limit_exceeded", 429, retry_after="0.01")]
    async with produce(rows(fake)) as ensemble:
        assert not (await make(ensemble)).failed
    assert len(fake.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [HttpAnswer(drop="reset"), HttpAnswer(drop="close"), HttpAnswer(200, {}, [b"{"], cut=1)],
)
async def test_an_image_that_may_have_been_made_is_not_requested_twice(
    fake: FakeImages, answer: HttpAnswer
) -> None:
    fake.replies = [answer]
    async with produce(rows(fake)) as ensemble:
        output = await make(ensemble)
    assert output.failed
    assert "may still have been charged" in output.text
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("HERE/kept/2.png", "answers with status 404"),
        ("HERE/kept/large.png", "more than 4,000 bytes"),
        ("http://192.168.0.1/1.png", "it is not https"),
        ("https://10.0.0.1/1.png", "10.0.0.1 is 10.0.0.1, which is not on the internet"),
        ("https://[fe80::1]/1.png", "not on the internet"),
        ("https://user:word@example.com/1.png", "a user name and password"),
        ("file:///etc/passwd", "it has no host"),
        ("https://[::1", "it is not a valid URL"),
        ("gopher://example.com/", "it is not https"),
    ],
)
async def test_an_address_that_leads_elsewhere_is_not_read(
    fake: FakeImages, url: str, words: str
) -> None:
    fake.kept = {"/kept/large.png": HttpAnswer(200, {}, [bytes(5000)])}
    fake.replies = [picture_answer({"url": url.replace("HERE", fake.url)})]
    async with produce(rows(fake, **{"picture-bytes": 4000})) as ensemble:
        output = await make(ensemble)
    assert output.failed
    assert words in output.text


async def test_a_key_sent_along_would_be_detected(fake: FakeImages) -> None:
    request = ReceivedRequest("GET", "/kept/1.png", {"authorization": f"Bearer {KEY}"}, b"")
    with pytest.raises(AssertionError, match="a key was sent"):
        fake.respond(request)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": ""}, "no model is set"),
        ({"provider": "nonesuch"}, "provider 'nonesuch' not found"),
        ({"sise": "1x1"}, "sise"),
        ({"picture-bytes": 0}, "picture-bytes"),
    ],
)
async def test_errors_of_a_row_are_reported(
    fake: FakeImages, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        async with produce(rows(fake, **settings)):
            pass


async def test_a_row_that_leaves_its_key_to_a_package_is_refused(fake: FakeImages) -> None:
    tree = rows(fake)
    tree["providers"]["openai"]["credential"] = "package"
    with pytest.raises(ConfigurationError, match="use a row with an API key"):
        async with produce(tree):
            pass


async def test_without_a_key_it_does_not_open(
    fake: FakeImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(CredentialMissing, match="vibe-llms keys set openai"):
        async with produce(rows(fake)):
            pass


async def test_others_work_while_the_key_is_looked_up(
    fake: FakeImages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    worked = tmp_path / "worked"
    script = f"while [ ! -e '{worked}' ]; do sleep 0.01; done; echo {KEY}"
    tree = rows(fake)
    tree["providers"]["openai"]["api-key-command"] = ["sh", "-c", script]
    asyncio.get_running_loop().call_soon(worked.touch)
    async with produce(tree) as ensemble:
        assert ensemble.invokers


async def test_where_requests_are_forbidden_none_is_made() -> None:
    with forbid_requests(), pytest.raises(RequestForbidden, match=r"api\.openai\.com"):
        async with produce({}):
            pass
