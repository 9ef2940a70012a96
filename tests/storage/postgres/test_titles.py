"""Tests for the patterns that find titles: no title that contains a text is left out."""

from __future__ import annotations

import sys

from vibe_llms.storage.postgres.titles import encode_patterns, is_unique


def test_nothing_else_folds_to_a_character_that_is_compared_in_all_titles() -> None:
    folded = {
        part
        for character in map(chr, range(128, sys.maxunicode + 1))
        if (text := character.casefold()) != character
        for part in (*text, character)
    }
    assert not [character for character in folded if is_unique(character)]
    # It is what most texts consist of.
    assert all(map(is_unique, "bcdegmopqruvxz 0123456789-日の한א"))


def test_what_a_pattern_means_is_escaped() -> None:
    patterns = encode_patterns("5%_\\ OFF\0\ud800")
    assert patterns["ascii"] == "%5\\%\\_\\\\ off\ufffd\ufffd%"
    assert patterns["every"] == "%5\\%\\_\\\\ o%%%%%"
