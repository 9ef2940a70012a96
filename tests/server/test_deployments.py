"""The path of DIAL and Azure, as OpenAI's client for Azure sees it, from a real server."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.pictures import make_png
from tests.server.conftest import Served, serving
from vibe_llms.messages.canisters import ResultCanister, role_of
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    TextualContent,
)

PATH = "/openai/deployments/clerk/chat/completions"
HELLO: dict[str, Any] = {"role": "user", "content": "What time is it?"}
SCRIPT = """
[[replies]]
when = "What time"
parts = [
  { text = "Let me look." },
  { invocation = "clock/tell", arguments = { zone = "CET" } },
  { invocation = "clock/wind", arguments = { turns = 2 } },
  { invocation = "clock/smash" },
  { invocation = "clock/whisper", arguments = { secret = "swordfish" } },
  { invocation = "clock/sell", arguments = { price = 3 } },
]

[[replies]]
when = "noon in CET|wound|steel|hush|not allowed"
parts = [{ text = "It is noon." }]

[[replies]]
when = ".*"
parts = [{ text = "You are welcome." }]
"""


def configure(home: Path) -> Any:
    """An agent with tools of all kinds."""
    home.mkdir(exist_ok=True)
    (home / "clerk.toml").write_text(SCRIPT)
    return {
        "providers": {"scripted": {"scripts": {"clerk": str(home / "clerk.toml")}}},
        "agents": {"clerk": {"model": "scripted/clerk", "ensembles": ["clock"]}},
        "ensembles": {"clock": {"module": "tests.server.clock"}},
    }


@pytest.fixture
async def clerk(home: Path) -> AsyncIterator[Served]:
    """A server with that agent."""
    async with serving(home, **configure(home)) as served:
        yield served


def azure(served: Served, user: str = "local") -> openai.AsyncAzureOpenAI:
    return openai.AsyncAzureOpenAI(
        azure_endpoint=served.url,
        api_key=served.key(user),
        api_version="2024-10-21",
        max_retries=0,
        timeout=30,
    )


def merge(chunks: list[Any]) -> dict[str, Any]:
    """A message from the chunks of a stream, put together as DIAL's clients do."""
    message: dict[str, Any] = {"content": ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["role"] = delta.get("role", message.get("role"))
            message["content"] += delta.get("content") or ""
            custom = message.setdefault("custom_content", {"stages": []})
            for piece in (delta.get("custom_content") or {}).get("stages", ()):
                stages = custom["stages"]
                if piece["index"] == len(stages):
                    stages.append({"content": ""})
                stage = stages[piece["index"]]
                assert "status" not in stage, "it is closed"
                content = stage["content"] + piece.get("content", "")
                stage.update({**piece, "content": content})
            if state := (delta.get("custom_content") or {}).get("state"):
                custom["state"] = state
    return message


async def converse(served: Served, messages: list[Any], *, stream: bool, **options: Any) -> Any:
    """One turn; the message of the reply."""
    async with azure(served) as client:
        if not stream:
            reply = await client.chat.completions.create(
                model="clerk", messages=messages, **options
            )
            return reply.choices[0].message.to_dict()
        chunks = await client.chat.completions.create(
            model="clerk", messages=messages, stream=True, **options
        )
        return merge([chunk.to_dict() async for chunk in chunks])


@pytest.mark.parametrize("stream", [True, False])
async def test_each_call_of_a_tool_is_a_stage(clerk: Served, stream: bool) -> None:
    message = await converse(clerk, [HELLO], stream=stream)
    assert message["content"] == "Let me look.\n\nIt is noon."
    stages = {stage["name"]: stage for stage in message["custom_content"]["stages"]}
    assert {name: stage["status"] for name, stage in stages.items()} == {
        "clock/tell": "completed",
        "clock/wind": "completed",
        "clock/smash": "failed",
        "clock/whisper": "completed",
        # No user can be asked here.
        "clock/sell": "failed",
    }
    assert stages["clock/tell"]["content"] == (
        '## Request arguments:\n\n```json\n{\n  "zone": "CET"\n}\n```\n\n'
        "## Response:\n\nnoon in CET\n"
    )
    progress = "turn 1\n\nturn 2\n\n" if stream else ""
    assert f"```\n\n{progress}## Response:\n\nwound\n" in stages["clock/wind"]["content"]
    assert "made of steel" in stages["clock/smash"]["content"]
    assert not stages["clock/whisper"].get("content")
    assert "not allowed" in stages["clock/sell"]["content"]


async def test_plain_chat_completions_show_stages_only_if_they_are_asked_for(
    clerk: Served,
) -> None:
    body = {"model": "clerk", "messages": [HELLO]}
    async with clerk.http() as client:
        for stream in (True, False):
            plain = await client.post("/v1/chat/completions", json={**body, "stream": stream})
            assert "custom_content" not in plain.text
            more = {**body, "stream": stream, "stages": True}
            asked = (await client.post("/v1/chat/completions", json=more)).text
            assert "clock/tell" in asked
            assert '"state"' not in asked


@pytest.mark.parametrize("stream", [True, False])
async def test_another_server_goes_on_from_the_state_alone(home: Path, stream: bool) -> None:
    async with serving(home, **configure(home)) as served:
        first = await converse(served, [HELLO], stream=stream, extra_body={"store": False})
        thanks = {"role": "user", "content": "Thanks."}
        second = await converse(served, [HELLO, first, thanks], stream=stream)
        assert second["content"] == "You are welcome."
        async with served.session() as session:
            (summary,) = await session.survey_conversations()
            stored = (await session.archive.restore(summary.identity)).canisters
    assert [role_of(one) for one in stored] == [
        *("user", "assistant", *["invocation"] * 5, *["result"] * 5),
        *("assistant", "user", "assistant"),
    ]
    texts = {one.text for one in stored if isinstance(one, ResultCanister)}
    assert {"noon in CET", "wound", "hush"} < texts


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said[0].update(content="What time is it there?"),
        lambda said: said[1].update(content="It is midnight."),
        lambda said: said[1]["custom_content"]["state"]["tool_call_history"].pop(),
        lambda said: said[1]["custom_content"]["state"].update(signature="0" * 64),
        lambda said: said[1]["custom_content"]["state"].update(signature="é"),
        lambda said: said[1]["custom_content"]["state"].pop("signature"),
        lambda said: said.insert(1, {"role": "user", "content": "Well?"}),
    ],
)
async def test_a_state_of_another_history_is_refused(clerk: Served, change: Any) -> None:
    said = [HELLO, await converse(clerk, [HELLO], stream=False), {"role": "user", "content": "?"}]
    said = json.loads(json.dumps(said))
    async with clerk.http() as client:
        assert (await client.post(PATH, json={"messages": said})).status_code == 200
        change(said)
        refused = await client.post(PATH, json={"messages": said})
    assert refused.status_code == 400
    assert "custom_content.state" in refused.json()["error"]["param"]


async def test_a_state_of_another_user_or_agent_is_refused(home: Path) -> None:
    tables = configure(home)
    tables["agents"]["other"] = tables["agents"]["clerk"]
    async with serving(home, **tables) as served:
        reply = await converse(served, [HELLO], stream=False)
        body = {"messages": [HELLO, reply, {"role": "user", "content": "?"}]}
        async with served.http("eve") as eve, served.http() as client:
            assert (await eve.post(PATH, json=body)).status_code == 400
            other = PATH.replace("clerk", "other")
            assert (await client.post(other, json=body)).status_code == 400
            assert (await client.post(PATH, json=body)).status_code == 200


async def test_attachments_reach_the_model(clerk: Served) -> None:
    picture = {"type": "image/png", "data": base64.b64encode(make_png()).decode()}
    note = {"type": "text/markdown", "title": "note.md", "data": "# Note"}
    message = {**HELLO, "custom_content": {"attachments": [picture]}}
    body = {"messages": [message], "custom_content": {"attachments": [note]}}
    async with clerk.http() as client:
        response = await client.post(f"{PATH}?api-version=2023-12-01-preview", json=body)
        assert response.status_code == 200, response.text
        async with clerk.session() as session:
            (summary,) = await session.survey_conversations()
            user = (await session.archive.restore(summary.identity)).canisters[0]
        kinds = [type(one).__name__ for one in user.contents]
        assert kinds == ["TextualContent", "ImageContent", "FileContent"]
        for status, attachment in (
            (400, {"type": "application/pdf"}),
            (404, {"type": "application/pdf", "url": "files/abc.pdf"}),
            (400, {"type": "application/pdf", "url": "file:///etc/passwd"}),
            (400, {"type": "application/pdf", "url": "https://example.org/a.pdf"}),
            (400, {"type": "application/pdf", "data": "%"}),
        ):
            bad = {"messages": [{**HELLO, "custom_content": {"attachments": [attachment]}}]}
            refused = await client.post(PATH, json=bad)
            assert refused.status_code == status, attachment


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_state_has_the_images_and_files_that_the_tools_made(
    home: Path, stream: bool, store: bool
) -> None:
    tables = configure(home)
    (home / "clerk.toml").write_text(
        '[[replies]]\nwhen = "time"\nparts = [{ invocation = "clock/record" }]\n'
        '[[replies]]\nwhen = ".*"\nparts = [{ text = "There." }]\n'
    )
    async with serving(home, **tables) as served:
        reply = await converse(served, [HELLO], stream=stream, extra_body={"store": store})
        first = json.loads(json.dumps(reply))
    # Another server, which knows nothing of the first turn but the secret.
    other = home.parent / "other"
    (other / "server").mkdir(parents=True, mode=0o700)
    (other / "server" / "state.key").write_bytes((home / "server" / "state.key").read_bytes())
    (other / "server" / "state.key").chmod(0o600)
    async with serving(other, **tables) as served:
        thanks = {"role": "user", "content": "Thanks."}
        await converse(served, [HELLO, first, thanks], stream=stream)
        async with served.session() as session:
            (summary,) = await session.survey_conversations()
            stored = (await session.archive.restore(summary.identity)).canisters
        (result,) = [one for one in stored if isinstance(one, ResultCanister)]
        text, image, audio, video, papers = result.contents
        assert text == TextualContent("ticking")
        assert image == ImageContent(b"\x89PNG\r\n\x1a\n", "image/png")
        assert audio == AudioContent(b"RIFF", "audio/wav")
        # Chat Completions has no form for it of its own.
        assert video == FileContent(b"\x1aE", "video/webm")
        assert papers == FileContent(b"%PDF-1.7", "application/pdf", "papers.pdf")

        (said,) = [
            one
            for one in first["custom_content"]["state"]["tool_call_history"]
            if one["role"] == "tool"
        ]
        other_image = base64.b64encode(b"\x89PNG other").decode()
        said["content"][1]["image_url"]["url"] = f"data:image/png;base64,{other_image}"
        async with served.http() as client:
            changed = await client.post(PATH, json={"messages": [HELLO, first, thanks]})
        assert changed.status_code == 400


async def test_images_that_tools_make_are_attachments(home: Path) -> None:
    tables = configure(home)
    (home / "clerk.toml").write_text(
        '[[replies]]\nwhen = "time"\nparts = [{ invocation = "clock/draw" }]\n'
        '[[replies]]\nwhen = ".*"\nparts = [{ text = "There." }]\n'
    )
    async with serving(home, **tables) as served:
        message = await converse(served, [HELLO], stream=False)
    (attachment,) = message["custom_content"]["attachments"]
    assert attachment["type"] == "image/png"
    assert base64.b64decode(attachment["data"]).startswith(b"\x89PNG")


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLED: dict[str, Any] = {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "blue"}
HURRY = {"role": "user", "content": "Hurry."}


@pytest.mark.parametrize(
    "said", [[CALLED, HURRY, RESULT], [RESULT, CALLED, HURRY]], ids=["between", "before"]
)
async def test_results_belong_to_their_calls_wherever_they_are(
    clerk: Served, said: list[Any]
) -> None:
    async with clerk.http() as client:
        body = {"messages": [HURRY, *said], "tools": [LOOK]}
        first = await client.post(PATH, json=body)
        assert first.status_code == 200, first.text
        reply = first.json()["choices"][0]["message"]
        # The state was signed with the results in their places.
        again = {**body, "messages": [*body["messages"], reply, HURRY]}
        assert (await client.post(PATH, json=again)).status_code == 200


@pytest.mark.parametrize(
    "more",
    [
        {"content": [{"type": "image_url", "image_url": {"url": "files/a.png"}}]},
        {"content": [{"type": "file", "file": {"file_id": "f"}}]},
        {"custom_content": {"attachments": [{"type": "image/png", "url": "files/a.png"}]}},
    ],
)
async def test_a_file_that_cannot_be_read_is_refused_only_in_new_input(
    clerk: Served, more: dict[str, Any]
) -> None:
    said = {**HURRY, **more}
    async with clerk.http() as client:
        earlier = [said, {"role": "assistant", "content": "Well."}, HURRY]
        assert (await client.post(PATH, json={"messages": earlier})).status_code == 200
        assert (await client.post(PATH, json={"messages": [said]})).status_code in (400, 404)
