"""Rows written into the configuration file: the rest of the file stays as it is."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path

import pytest

from vibe_llms.base.configuration_file import add_rows, remove_row, set_value
from vibe_llms.base.exceptions import ConfigurationError

ROW = {"module": "m", "command": ["a", "b c"], "environment": {"K": 'x"y'}}
WRITTEN = """\
# mine
default-model = "a/b"   # the best

[ensembles.old]
# of the old one
module = "m"

[ensembles.old.limits.slow]
timeout-seconds = 3

# of the aliases
[aliases]
x = "a/b"
"""


def test_a_row_is_written_at_the_end_and_taken_out_again(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "config.toml"
    file.parent.mkdir()
    file.write_text(WRITTEN)
    add_rows(file, "ensembles", {"new": ROW, "two words": {"module": "n"}})
    text = file.read_text()
    assert text.startswith(WRITTEN)
    assert tomllib.loads(text)["ensembles"]["new"] == ROW
    assert file.stat().st_mode & 0o777 == 0o600
    remove_row(file, "ensembles", "two words")
    remove_row(file, "ensembles", "new")
    assert file.read_text().rstrip() == WRITTEN.rstrip()


def test_a_file_is_made_where_there_is_none(tmp_path: Path) -> None:
    file = tmp_path / "home" / "config.toml"
    add_rows(file, "ensembles", {"new": ROW})
    assert tomllib.loads(file.read_text()) == {"ensembles": {"new": ROW}}
    remove_row(file, "ensembles", "new")
    assert tomllib.loads(file.read_text()) == {}


def test_a_row_takes_the_place_of_its_namesake_and_comments_stay(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(WRITTEN)
    add_rows(file, "ensembles", {"old": ROW})
    text = file.read_text()
    assert tomllib.loads(text)["ensembles"] == {"old": ROW}
    assert "# mine" in text
    assert "# the best" in text
    assert "# of the aliases\n[aliases]" in text
    assert "slow" not in text


@pytest.mark.parametrize(
    "header", ["[ensembles.old]", '[ensembles."old"]', "[ ensembles . 'old' ]  # so"]
)
def test_a_header_may_be_written_in_any_way(tmp_path: Path, header: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'a = 1\n{header}\nmodule = "m"\n')
    remove_row(file, "ensembles", "old")
    assert file.read_text() == "a = 1\n"


@pytest.mark.parametrize(
    ("before", "removed"),
    [
        ("ensembles = { old = { a = 1 } }\n", "ensembles = {  }\n"),
        ("[ensembles]\nold = { a = 1 }\n", "[ensembles]\n"),
        ("ensembles.old.a = 1\n", ""),
        ('x = """\n[ensembles.old]\n"""\n[ensembles.old]\n', 'x = """\n[ensembles.old]\n"""\n'),
        ("[ensembles.old]\n[x]\n[ensembles.old.y]\n", "[x]\n"),
    ],
)
def test_a_row_may_be_written_in_any_way(tmp_path: Path, before: str, removed: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(before)
    remove_row(file, "ensembles", "old")
    assert file.read_text() == removed


def test_what_would_damage_the_rest_of_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(inline := "ensembles = { other = { a = 1 } }\n")
    with pytest.raises(ConfigurationError, match="by hand"):
        add_rows(file, "ensembles", {"new": ROW})
    assert file.read_text() == inline


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, 'default-model = "a/b"\n'),
        ("", 'default-model = "a/b"\n'),
        ('default-model = "x"\n', 'default-model = "a/b"\n'),
        (
            '# mine\nother = 1 # kept\n\n[aliases] # all\nx = "y"\n',
            '# mine\nother = 1 # kept\ndefault-model = "a/b"\n\n[aliases] # all\nx = "y"\n',
        ),
        ('[aliases]\nx = "y"', 'default-model = "a/b"\n\n[aliases]\nx = "y"'),
        ("x = [\n[1],\n]\n", 'x = [\n[1],\n]\ndefault-model = "a/b"\n'),
        ('"default-model" = "x"\n', '"default-model" = "a/b"\n'),
        (
            'x = """\ndefault-model = "y"\n"""\n',
            'x = """\ndefault-model = "y"\n"""\ndefault-model = "a/b"\n',
        ),
        (
            '[x]\ndefault-model = "not this one"\n',
            'default-model = "a/b"\n\n[x]\ndefault-model = "not this one"\n',
        ),
    ],
)
def test_a_value_is_set_and_all_else_stays(tmp_path: Path, before: str | None, after: str) -> None:
    path = tmp_path / "config.toml"
    if before is not None:
        path.write_text(before)
    set_value(path, "default-model", "a/b")
    assert path.read_text() == after


def test_a_file_that_does_not_parse_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("a = = 1")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        add_rows(file, "ensembles", {"new": ROW})
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        set_value(file, "default-model", "a/b")
    assert file.read_text() == "a = = 1"


@pytest.mark.slow
def test_many_comments_take_as_long_as_they_are(tmp_path: Path) -> None:
    def measure(count: int) -> float:
        file = tmp_path / "config.toml"
        file.write_text("[ensembles.old]\n" + "#\n" * count + "a = 1\n[other]\n")
        begun = time.process_time()
        remove_row(file, "ensembles", "old")
        return time.process_time() - begun

    measure(10)
    # The best of some runs: another process may slow down one of them.
    few, many = (min(measure(count) for _ in range(3)) for count in (2_000, 20_000))
    assert many < 40 * max(few, 0.01)
