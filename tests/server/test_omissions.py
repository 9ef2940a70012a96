"""What is left out of a request is named in a header and in the log."""

from __future__ import annotations

from vibe_llms.server.omissions import Omissions


def test_each_omission_is_named_once_in_the_header() -> None:
    omissions = Omissions()
    for name in ("web_search", "image_generation", "web_search"):
        omissions.add("tool", name)
    assert omissions.headers == ((b"x-left-out", b"tool web_search, tool image_generation"),)


def test_nothing_left_out_sends_no_header() -> None:
    assert not Omissions()
    assert Omissions().headers == ()


def test_a_name_from_a_client_cannot_end_the_header_or_fill_it() -> None:
    omissions = Omissions()
    omissions.add("tool", "a\r\nset-cookie: b\N{SNOWMAN}")
    omissions.add("tool", "x" * 10_000)
    for number in range(100):
        omissions.add("item", f"kind{number}")
    ((_, value),) = omissions.headers
    assert value.isascii()
    assert not {*b"\r\n"} & {*value}
    assert len(value) < 1_500
    assert value.endswith(b", 86 more")
