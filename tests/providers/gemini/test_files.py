"""Large media: uploaded once under the name of their hash, waited for, and looked up again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.fakes.gemini import KEY, FakeGemini
from tests.fakes.gemini_clients import produce_model
from vibe_llms.base.exceptions import ReplyTimeout, RequestRefused
from vibe_llms.messages.canisters import (
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import AudioContent, ImageContent, Reference, VideoContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
from vibe_llms.providers.gemini import files
from vibe_llms.providers.interfaces import TurnContext

FILM = VideoContent(b"film" * 100, "video/mp4")
LOOK = UserCanister((FILM,))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "POLL_SECONDS", 0.001)


def sent(server: FakeGemini, method: str = "generateContent") -> list[dict[str, Any]]:
    found = [one for one in server.requests if one.path.lower().find(method.lower()) > 0]
    return [json.loads(one.body) for one in found]


def commands(server: FakeGemini) -> list[str]:
    return [
        request.headers.get("x-goog-upload-command", request.method)
        for request in server.requests
        if "files" in request.path
    ]


async def test_a_large_film_is_uploaded_once_and_sent_by_its_address(
    fake_gemini: FakeGemini,
) -> None:
    notices: list[Notice] = []
    fake_gemini.polls = 3
    model = await produce_model(fake_gemini.url, upload_bytes=100)
    for _ in range(2):
        await model.converse([LOOK], context=TurnContext(notify=notices.append))
    (name,) = fake_gemini.files
    uri = f"https://generativelanguage.googleapis.com/v1beta/{name}"
    part = {"fileData": {"mimeType": "video/mp4", "fileUri": uri}}
    assert [body["contents"][0]["parts"] for body in sent(fake_gemini)] == [[part], [part]]
    # Looked for, uploaded, and looked at until it was ready.
    assert commands(fake_gemini) == ["GET", "start", "upload, finalize", "GET", "GET", "GET"]
    assert [notice.subject for notice in notices] == ["upload"]
    assert "48 hours" in notices[0].text
    assert not [one for one in fake_gemini.requests if KEY in one.path]
    await model.client.close()


async def test_another_process_finds_the_file_by_its_hash(fake_gemini: FakeGemini) -> None:
    for data in (FILM.data, Reference.from_bytes(b"film" * 100)):
        model = await produce_model(fake_gemini.url, upload_bytes=100)
        film = VideoContent(data, "video/mp4")
        await model.converse([UserCanister((film,))])
        await model.client.close()
    assert len(fake_gemini.files) == 1
    assert commands(fake_gemini).count("start") == 1


async def test_a_file_that_expires_soon_is_uploaded_again(fake_gemini: FakeGemini) -> None:
    model = await produce_model(fake_gemini.url, upload_bytes=100)
    await model.converse([LOOK])
    (kept,) = fake_gemini.files.values()
    kept["expirationTime"] = datetime.now(UTC) + timedelta(minutes=5)
    again = await produce_model(fake_gemini.url, upload_bytes=100)
    await again.converse([LOOK])
    # Its name is still taken.
    assert len(fake_gemini.files) == 2
    for one in (model, again):
        await one.client.close()


async def test_a_file_that_is_gone_is_uploaded_again_within_the_turn(
    fake_gemini: FakeGemini,
) -> None:
    model = await produce_model(fake_gemini.url, upload_bytes=100)
    await model.converse([LOOK])
    fake_gemini.files.clear()
    await model.converse([LOOK])
    assert commands(fake_gemini).count("start") == 2
    # That is how the fake said that it was gone.
    assert len(fake_gemini.refusals) == 1
    fake_gemini.refusals.clear()
    await model.client.close()


async def test_a_file_that_cannot_be_read_is_an_error_that_names_it(
    fake_gemini: FakeGemini,
) -> None:
    model = await produce_model(fake_gemini.url, upload_bytes=100)
    broken = VideoContent(b"broken" * 100, "video/mp4")
    with pytest.raises(RequestRefused, match=r"a video video/mp4.*could not be decoded"):
        await model.converse([UserCanister((broken,))])
    await model.client.close()


async def test_a_file_that_is_never_ready_is_not_waited_for_for_ever(
    fake_gemini: FakeGemini,
) -> None:
    fake_gemini.polls = 10_000
    model = await produce_model(fake_gemini.url, upload_bytes=100, file_seconds=0.01)
    with pytest.raises(ReplyTimeout, match="file-seconds"):
        await model.converse([LOOK])
    await model.client.close()


async def test_small_media_are_sent_inline_unless_the_request_is_too_large(
    fake_gemini: FakeGemini,
) -> None:
    small = [ImageContent(bytes([number]) * 3000, "image/png") for number in range(4)]
    model = await produce_model(fake_gemini.url, models={".*": {"request-bytes": 10_000}})
    await model.converse([UserCanister((*small, AudioContent(b"a" * 3100, "audio/mpeg")))])
    (body,) = sent(fake_gemini)
    parts = body["contents"][0]["parts"]
    # The largest go first.
    assert [next(iter(part)) for part in parts].count("fileData") == 3
    assert "fileData" in parts[-1]
    await model.client.close()


async def test_media_in_results_are_uploaded_too(fake_gemini: FakeGemini) -> None:
    call = InvocationCanister(name="film")
    result = ResultCanister((FILM,), invocation=call.identity)
    model = await produce_model(fake_gemini.url, upload_bytes=100)
    await model.converse([UserCanister.from_text("Hi"), call, result])
    (body,) = sent(fake_gemini)
    (part,) = body["contents"][-1]["parts"]
    assert set(part["functionResponse"]["parts"][0]["fileData"]) == {"mimeType", "fileUri"}
    await model.client.close()


async def test_a_preview_uploads_nothing(fake_gemini: FakeGemini) -> None:
    model = await produce_model(fake_gemini.url, upload_bytes=100)
    body = await model.preview([LOOK], (), Controls(), TurnContext())
    assert b"uploaded-when-sent" in body
    assert fake_gemini.requests == []
    await model.client.close()


async def test_the_bytes_of_a_reference_are_loaded_only_to_be_uploaded(
    fake_gemini: FakeGemini,
) -> None:
    loads: list[int] = []

    async def load(references: Sequence[Reference]) -> Mapping[str, bytes]:
        loads.append(len(references))
        return {one.hash: b"film" * 100 for one in references}

    film = VideoContent(Reference.from_bytes(b"film" * 100), "video/mp4")
    model = await produce_model(fake_gemini.url, upload_bytes=100)
    for _ in range(3):
        await model.converse([UserCanister((film,))], context=TurnContext(load=load))
    assert loads == [1]
    await model.client.close()
