"""Every imported conversation goes on with every provider, before strict servers.

Contents that only an importer's own program understands are sent to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.interfaces import slow_if_repeated
from tests.fakes.llamacpp import FakePackage
from tests.importing.fixtures import FIXTURES
from tests.test_switching import ROWS, LocalServer, LocalSpeaker, Speaker, speakers
from vibe_llms import open_session
from vibe_llms.base.exceptions import ProviderError
from vibe_llms.importing.core import import_conversations
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.providers.conversions import Conversion

#: Words that are in hidden messages and in native contents only.
_SECRETS = (
    b"SECRET",
    b"c2lnbmVk",
    b"encrypted-by-openai",
    b"novelty",
    b"widget",
    b"server_tool_use",
)


@pytest.fixture
def serve(fake_llamacpp: FakePackage, tmp_path: Path) -> Iterator[Callable[[str], Speaker]]:
    """Any provider by its row, before a server of its own."""
    with ExitStack() as stack:

        def start(row: str) -> Speaker:
            if row == "llamacpp":
                return LocalSpeaker(
                    *("llamacpp", "model.gguf", lambda: None, str, str, str, str),
                    server=LocalServer(fake_llamacpp),
                    folder=tmp_path,
                )
            (speaker,) = (one for one in speakers() if one.row == row)
            speaker.server = stack.enter_context(speaker.produce())
            return speaker

        yield start


def survey_bodies(speaker: Speaker) -> Iterator[bytes]:
    """The bodies of the requests that a server received; llama.cpp has none."""
    for request in getattr(speaker.server, "requests", ()):
        yield bytes(getattr(request, "body", b"") or b"")


@pytest.mark.parametrize("row", [pytest.param(row, marks=slow_if_repeated(row)) for row in ROWS])
@pytest.mark.parametrize("source", FIXTURES)
async def test_an_imported_conversation_goes_on(
    source: str, row: str, serve: Callable[[str], Speaker], tmp_path: Path
) -> None:
    (tmp_path / "export").mkdir()
    path = FIXTURES[source](tmp_path / "export")
    speaker = serve(row)
    keys = {row: speaker.server.key} if speaker.server.key else {}
    rows: dict[str, Any] = {row: dict(speaker.settings, retries=0)}
    async with open_session(keys=keys, configuration={"providers": rows}) as session:
        report = await import_conversations(path, session.archive)
        imported = [one for one in report.conversations if one.status != "refused"]
        assert len(imported) == len(report.conversations) > 0
        for identity in (one for each in imported for one in (each.conversation, *each.forks)):
            conversation = await session.resume(identity, model=speaker.address)
            before = [encode_canister(one) for one in conversation.canisters]
            # A model with a small window is asked for a summary first.
            speaker.server.replies = [speaker.say("Yes.")] * 2
            turn = await conversation.converse("Go on.")
            assert turn.text == "Yes."
            assert speaker.server.refusals == []
            kept = [encode_canister(one) for one in conversation.canisters]
            assert kept[: len(before)] == before, "what was imported has changed"
    bodies = [*survey_bodies(speaker)]
    assert bodies or row == "llamacpp"
    for body in bodies:
        assert not [secret for secret in _SECRETS if secret in body]


async def test_sending_what_only_an_importer_understands_would_be_detected(
    serve: Callable[[str], Speaker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conversion, "issued", lambda self, native: True)
    with pytest.raises((AssertionError, ProviderError)):
        await test_an_imported_conversation_goes_on("codex", "openai", serve, tmp_path)
