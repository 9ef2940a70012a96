"""Counting by an endpoint: the number, or an error that quotes what came instead."""

from __future__ import annotations

import pytest

from vibe_llms.base.exceptions import ReplyMalformed
from vibe_llms.providers.interfaces import TokenCount
from vibe_llms.providers.tokenizers import read_count


def test_the_count_of_the_server_is_no_estimate() -> None:
    counted = read_count(b'{"input_tokens": 7, "more": 1}', "row")
    assert counted == TokenCount(7, estimated=False)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"input_tokens": "7"}', b"<html>", b"null"])
def test_an_answer_without_a_count_is_malformed(body: bytes) -> None:
    with pytest.raises(ReplyMalformed, match="row: the count of tokens is not in"):
        read_count(body, "row")
