"""Bad input with every interface: a typed error that names who, what and what to do.

What can be known before a request is said before it; nothing that was said is lost or kept twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.backends import Interface
from tests.fakes.interfaces import (
    AZURE,
    NOWHERE,
    OLLAMA,
    HttpInterface,
    every,
    every_interface,
    every_server,
)
from tests.fakes.server import HttpAnswer
from vibe_llms import open_session
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ContentUnsupported,
    ControlInvalid,
    CredentialMissing,
    CredentialRefused,
    InvokerInvalid,
    ModelUnavailable,
    ProviderError,
    ProviderOverloaded,
    ProviderUnreachable,
    ReplyMalformed,
    RequestRefused,
    VibeLlmsError,
)
from vibe_llms.messages.contents import AudioContent, ImageContent, TextualContent, VideoContent
from vibe_llms.messages.controls import Controls

every_interface_with_a_key = every(
    lambda one: isinstance(one, HttpInterface) and bool(one.lost), clouds=True
)
PAGE = b"<html><body>Welcome to nginx!</body></html>"
WRONG_KEY = "sk-wrong-0123456789-0123456789"


NOTHING = Controls()


@dataclass
class Case:
    """What is wrong, the error, words that its message must have, and how many requests it took."""

    error: type[VibeLlmsError]
    words: Sequence[str]
    requests: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    contents: Sequence[Any] = ()
    controls: Controls = NOTHING
    key: str | None = None
    answer: HttpAnswer | None = None


def page(status: int) -> HttpAnswer:
    return HttpAnswer(status, {"content-type": "text/html"}, [PAGE])


CASES = {
    "a control out of range": Case(
        ControlInvalid, ["temperature", "-1"], controls=Controls(temperature=-1.0)
    ),
    "an effort that there is not": Case(
        ControlInvalid, ["effort", "cannot be 'herculean'"], controls=Controls(effort="herculean")
    ),
    "a choice of a tool that is not offered": Case(
        ControlInvalid, ["nonesuch"], controls=Controls(tool_choice="nonesuch")
    ),
    "a film": Case(
        ContentUnsupported, ["does not accept a video"], contents=[VideoContent(b"x", "video/ogg")]
    ),
    "a sound": Case(
        ContentUnsupported, ["does not accept a sound"], contents=[AudioContent(b"x", "audio/midi")]
    ),
    "a picture of an unknown kind": Case(
        ContentUnsupported, ["image/tiff"], contents=[ImageContent(b"II*\0", "image/tiff")]
    ),
}
#: What is wrong with an address, or with what answers there.
ADDRESSES = {
    "an address that is none": Case(
        ConfigurationError, ["base-url", "not a url"], settings={"base_url": "not a url"}
    ),
    "an address where nothing listens": Case(
        ProviderUnreachable, ["127.0.0.1:9"], settings={"base_url": NOWHERE}
    ),
    "a web page": Case(ReplyMalformed, ["a web page", "base-url"], 1, answer=page(200)),
    "a web page that nothing is there": Case(
        ReplyMalformed, ["404", "a web page", "base-url"], 1, answer=page(404)
    ),
    "a web page of a gateway": Case(
        ProviderOverloaded, ["502", "a web page", "try again"], 1, answer=page(502)
    ),
    # Of Ollama's lines, one that is not whole looks like one that was cut.
    "words instead of JSON": Case(
        ProviderError,
        [],
        1,
        answer=HttpAnswer(200, {"content-type": "application/json"}, [b"oops"]),
    ),
}


async def converse(interface: Interface, server: Any, case: Case) -> VibeLlmsError:
    """The error of a turn; what the archive then has of it is looked at."""
    row = interface.row
    configuration = interface.configure(server, **case.settings)
    if case.answer is not None:
        server.replies = [case.answer]
    keys = dict(interface.keys(server))
    if case.key is not None and keys:
        keys[row] = case.key
    async with open_session(keys=keys, configuration=configuration) as session:

        async def say() -> None:
            conversation = await session.begin(interface.address)
            said = [TextualContent("Look."), *case.contents]
            await conversation.converse(said, controls=case.controls)

        with pytest.raises(case.error) as caught:
            await say()
        kept = await session.survey_conversations()
    # Refused before it was sent, nothing of it is kept; sent, what was said is.
    assert len(kept) == (1 if case.requests or issubclass(case.error, ProviderError) else 0)
    error = caught.value
    if isinstance(error, ProviderError):
        assert (error.provider, error.model) == (row, interface.model)
        assert str(error).startswith(f"{row}: ")
    return error


@every(lambda one: one.checks, clouds=True)
@pytest.mark.parametrize("name", CASES)
async def test_bad_input_is_reported_early_and_clearly(name: str, interface: Interface) -> None:
    await check_case(interface, CASES[name])


@every_server
@pytest.mark.parametrize("name", ADDRESSES)
async def test_a_bad_address_is_reported_clearly(name: str, interface: HttpInterface) -> None:
    await check_case(interface, ADDRESSES[name])


async def check_case(interface: Interface, case: Case) -> None:
    with interface.serve() as server:
        error = await converse(interface, server, case)
        assert len(interface.sent(server)) == case.requests
    for words in case.words:
        assert words in str(error), str(error)


@every_interface_with_a_key
async def test_an_invalid_key_is_reported_with_the_command_that_sets_another(
    interface: Interface,
) -> None:
    with interface.serve() as server:
        case = Case(CredentialRefused, (), 1, key=WRONG_KEY)
        error = await converse(interface, server, case)
    assert f"vibe-llms keys set {interface.row}" in str(error)
    assert WRONG_KEY not in str(error)


@every_interface_with_a_key
async def test_without_a_key_nothing_is_kept_or_sent(interface: Interface) -> None:
    with interface.serve() as server:
        async with open_session(configuration=interface.configure(server)) as session:
            conversation = await session.begin(interface.address)
            with pytest.raises(CredentialMissing, match=f"keys set {interface.row}"):
                await conversation.converse("Hi")
            assert await session.survey_conversations() == []
        assert server.requests == []


@every_server
async def test_a_refusal_is_reported_in_the_servers_words_and_the_next_turn_works(
    interface: HttpInterface,
) -> None:
    refusal = interface.refuse("tools.0: this schema is beyond me")
    with interface.serve() as server:
        server.replies = [refusal, interface.texts("Works.")]
        async with interface.open_session(server) as one:
            conversation = await one.begin(interface.address)
            with pytest.raises(RequestRefused, match="this schema is beyond me") as caught:
                await conversation.converse("Hi")
            assert caught.value.model == interface.model
            assert (await conversation.converse("Again")).text == "Works."


@every_server
async def test_an_unknown_model_is_reported_with_a_remedy(interface: HttpInterface) -> None:
    with interface.serve() as server:
        server.replies = [interface.lost] if interface.lost else []
        async with interface.open_session(server) as one:
            conversation = await one.begin(f"{interface.row}/nonesuch")
            with pytest.raises(ModelUnavailable) as caught:
                await conversation.converse("Hi")
    remedy = "ollama pull nonesuch" if interface is OLLAMA else f"vibe-llms models {interface.row}"
    if interface.row in AZURE:
        remedy = "is 'nonesuch' a deployment of this resource"
    assert remedy in str(caught.value)
    assert caught.value.model == "nonesuch"


@every_interface
async def test_a_tool_that_has_no_schema_is_refused_before_anything_is_said(
    interface: Interface, tmp_path: Path
) -> None:
    def shapeless(anything: object = ..., *more: int) -> None:
        """There is no schema for this."""

    with interface.serve() as server:
        async with interface.open_session(server) as one:
            with pytest.raises(InvokerInvalid, match="shapeless"):
                await one.begin(interface.address, invokers=[shapeless])
        assert server.requests == []
