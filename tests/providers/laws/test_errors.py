"""Answers that are no success, with every interface: which error each is, and what it says to do.

What only one interface says of its errors is tested in its own folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.fakes.interfaces import HttpInterface, Player, every_server_of_clouds_too
from tests.fakes.server import HttpAnswer
from vibe_llms.base.exceptions import (
    CredentialRefused,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.messages.canisters import UserCanister

HI = [UserCanister.from_text("Hi")]
KINDS: dict[str, type[ProviderError]] = {
    "limited": RateLimited,
    "broken": ProviderOverloaded,
    "overloaded": ProviderOverloaded,
    "refused": RequestRefused,
    "unauthorized": CredentialRefused,
}
REMEDIES = {"limited": "try again later", "unauthorized": "vibe-llms keys set"}


async def fail(interface: HttpInterface, answers: Sequence[HttpAnswer]) -> list[Any]:
    """The errors that answers become, each with the `size` of its request."""
    errors: list[Any] = []
    with Player(answers) as server:
        model = await interface.produce_model(server)
        for _ in answers:
            with pytest.raises(ProviderError) as caught:
                await model.converse(HI)
            errors.append(caught.value)
        await model.client.close()
        for error, request in zip(errors, server.asked, strict=True):
            error.size = len(request.body)
    return errors


@every_server_of_clouds_too
async def test_a_failure_is_the_error_of_its_kind_and_says_what_to_do(
    interface: HttpInterface,
) -> None:
    answers = [produce() for produce in interface.failures.values()]
    for name, error in zip(interface.failures, await fail(interface, answers), strict=True):
        assert type(error) is KINDS[name]
        assert REMEDIES.get(name, "") in str(error)
        assert error.status is not None


STATUSES: dict[int, type[ProviderError]] = {
    400: RequestRefused,
    401: CredentialRefused,
    418: RequestRefused,
    429: RateLimited,
    500: ProviderOverloaded,
    520: ProviderOverloaded,
}
BODIES = (b"", b"nonsense", b"<html>bad gateway</html>", b"[" * 5000, b"\xff", b'{"error": {}}')


@every_server_of_clouds_too
async def test_an_answer_that_is_no_error_object_is_classified_by_its_status(
    interface: HttpInterface,
) -> None:
    answers = [HttpAnswer(status, {}, [body]) for status in STATUSES for body in BODIES]
    for answer, error in zip(answers, await fail(interface, answers), strict=True):
        assert type(error) is STATUSES[answer.status], (answer.status, answer.chunks)
        assert f"status {answer.status}" in str(error)
        assert error.status == answer.status


@every_server_of_clouds_too
async def test_a_wrong_address_is_reported_as_such(interface: HttpInterface) -> None:
    location = {"location": "https://user:secret-word@example.org/v1?key=abcdefgh"}
    moved = [HttpAnswer(status, location, [b""]) for status in (301, 302, 303, 307, 308)]
    lost, gateway, elsewhere, *redirected = await fail(
        interface,
        [
            HttpAnswer(404, {}, [b"not here"]),
            HttpAnswer(502, {"content-type": "text/html"}, [b"Sorry"]),
            HttpAnswer(301, {}, [b""]),
            *moved,
        ],
    )
    assert type(lost) is ReplyMalformed
    assert "is base-url right?" in str(lost)
    assert type(gateway) is ProviderOverloaded
    assert "status 502 and a web page; try again later" in str(gateway)
    assert "elsewhere" in str(elsewhere)
    for error in redirected:
        assert type(error) is ReplyMalformed
        assert "redirects to https://user:[secret]@example.org/v1?key=[secret]" in str(error)


ADVICE = [
    ({"retry-after": "7"}, 7.0),
    ({"retry-after": " 0.5 "}, 0.5),
    ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
    ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ({"retry-after": "inf"}, None),
    ({"retry-after": "soon"}, None),
    ({}, None),
]


@every_server_of_clouds_too
@pytest.mark.parametrize("kind", ["limited", "overloaded"])
async def test_the_servers_advice_when_to_come_again_is_kept(
    interface: HttpInterface, kind: str
) -> None:
    answers = [interface.failures[kind](headers=headers) for headers, _ in ADVICE]
    errors = await fail(interface, answers)
    assert [error.retry_after for error in errors] == [seconds for _, seconds in ADVICE]
    (refused,) = await fail(interface, [interface.failures["refused"](headers=ADVICE[0][0])])
    assert not hasattr(refused, "retry_after")


@every_server_of_clouds_too
async def test_the_error_of_an_oversized_request_has_its_size(interface: HttpInterface) -> None:
    (error,) = await fail(interface, [HttpAnswer(413, {}, [b'{"error":"Too large"}'])])
    assert f"it has {error.size} bytes" in str(error)
    assert type(error) is RequestTooLarge


@every_server_of_clouds_too
async def test_lone_surrogates_in_an_error_do_no_harm(interface: HttpInterface) -> None:
    for words in ("a\ud800b", "\udfff"):
        (error,) = await fail(interface, [interface.refuse(words)])
        assert type(error) is RequestRefused
        json.dumps(str(error), ensure_ascii=False).encode()
