"""An image is whole, or what is wrong with it is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pictures import make_gif, make_jpeg, make_png, make_webp
from vibe_llms.messages.images import find_damage

MAKERS = [make_png, make_jpeg, make_gif, make_webp]


@pytest.mark.parametrize("make", MAKERS)
def test_a_whole_image_is_whole_whatever_follows_it(make: Callable[[], bytes]) -> None:
    assert find_damage(make()) == ""
    assert find_damage(make() + b"\0 a note of a camera") == ""


@pytest.mark.parametrize("make", MAKERS)
def test_an_image_that_ends_early_is_damaged_wherever_it_ends(make: Callable[[], bytes]) -> None:
    data = make()
    # A GIF may lack its last byte, which marks the end; a WebP file, the one that pads it.
    left = {make_gif: 1, make_webp: 1}.get(make, 0)
    for length in range(12, len(data) - left):
        assert find_damage(data[:length]).startswith("the image is damaged: "), length


def test_changed_bytes_of_a_png_are_found() -> None:
    data = bytearray(make_png(100))
    data[45] ^= 1
    assert find_damage(bytes(data)) == "the image is damaged: some of its bytes were changed"
    data[45] ^= 1
    # What no program needs does not count.
    data[80] ^= 1
    assert find_damage(bytes(data)) == ""


@pytest.mark.parametrize("head", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a"])
def test_a_beginning_and_nonsense_are_damaged(head: bytes) -> None:
    for rest in (b"", b"nonsense" * 9, bytes(200), b"\xff" * 200):
        assert find_damage(head + rest).startswith("the image is damaged: ")


def test_other_formats_are_left_to_their_readers() -> None:
    for data in (b"", b"BM" + bytes(60), b"II*\0", b"RIFF\4\0\0\0WAVE", b"\x89PNG", b"words"):
        assert find_damage(data) == ""
