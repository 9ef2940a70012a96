"""Counting by an endpoint: the number, or an error that quotes what came instead."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.clients import produce_model
from vibe_llms.exceptions import ReplyMalformed
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.providers.interfaces import TokenCount
from vibe_llms.providers.tokenizers import AskingTokenizer

HI = [UserCanister.from_text("Hi")]


def answering(body: bytes) -> AskingTokenizer:
    async def ask(*asked: Any) -> bytes:
        assert asked[0] is HI
        return body

    return AskingTokenizer(ask)


async def test_the_count_of_the_server_is_no_estimate() -> None:
    model = await produce_model()
    counted = await answering(b'{"input_tokens": 7, "more": 1}').count(HI, (), model)
    assert counted == TokenCount(7, estimated=False)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"input_tokens": "7"}', b"<html>", b"null"])
async def test_an_answer_without_a_count_is_malformed(body: bytes) -> None:
    model = await produce_model()
    with pytest.raises(ReplyMalformed, match="the count of tokens is not in"):
        await answering(body).count(HI, (), model)
