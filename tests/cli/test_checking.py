"""Everything that is wrong with the configuration, each with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import invoke
from vibe_llms.cli.checking import find_line
from vibe_llms.configuration import ROW_KEYS
from vibe_llms.providers.rows import _COMMON

#: A line of the file, and what is said of it; nothing of the others.
_WRONG = """\
default-modl = "x"                                # did you mean 'default-model'?
aliases.fast = "scripted/demo"
colour = 1                                        # this key is not known

[storage]
durability = "saef"                               # 'saef' is not one of 'fast', 'safe'
inline-bytes = 10
line-bytes = -3                                   # Expected `int` >= 1

[strem]                                           # did you mean 'stream'?
retries = 1

[controls]
temprature = 1                                    # did you mean 'temperature'?
seed = 3

[providers.mine]
module = "vibe_llms.providers.openai.chat_completions"
base-ulr = "http://127.0.0.1"                     # did you mean 'base-url'?
credentail = "none"                               # did you mean 'credential'?
reply-seconds = "long"                            # Expected `float`, got `str`

[providers.other]
module = "nonesuch"                               # there is no module 'nonesuch'

[providers.empty]                                 # a row needs a module
enabled = true

[providers.off]
enabled = false

[ensembles.clock]
module = "vibe_llms.ensembles.mcp"
command = ["x"]
approval = "alow"                                 # 'alow' is not one of 'allow', 'ask', 'deny'

[memory]
mode = "automatc"                                 # 'automatc' is not one of 'automatic', 'tools'
[memory.recall]
seconds = [                                       # Expected `float`, got `array`
    1,
]
limt = 3                                          # did you mean 'limit'?
"""


def test_all_that_is_wrong_is_told_with_its_line(home: Path) -> None:
    home.mkdir()
    file = home / "config.toml"
    file.write_text(_WRONG)
    expected = [
        (number, line.partition("# ")[2])
        for number, line in enumerate(_WRONG.splitlines(), 1)
        if "# " in line
    ]
    outcome = invoke("config", "check")
    assert outcome.status == 78
    lines = outcome.errors.splitlines()
    assert len(lines) == len(expected), outcome.errors
    for line, (number, words) in zip(lines, expected, strict=True):
        assert line.startswith(f"vibe-llms: {file}:{number}: "), (line, number, words)
        assert words in line
    told = invoke("doctor", "--json").json
    assert [one["path"] for one in told] == [f"{file}:{number}" for number, _ in expected]


def test_the_place_is_told_once(home: Path) -> None:
    home.mkdir()
    file = home / "config.toml"
    for text in ("x = \n", "[stream]\nretries = -1\n", "x = 1\n"):
        file.write_text(text)
        for command in (("config", "check"), ("doctor",)):
            outcome = invoke(*command)
            assert (outcome.output + outcome.errors).count(str(file)) == 1, outcome
    file.unlink()
    (home / "keys.toml").write_text("x = \n")
    (home / "keys.toml").chmod(0o600)
    assert invoke("doctor").output.count(str(home / "keys.toml")) == 1


def test_the_environment_is_named_as_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBE_LLMS_STREAM__RETRIES", "many")
    monkeypatch.setenv("VIBE_LLMS_COLOUR", "1")
    outcome = invoke("config", "check")
    assert outcome.status == 78
    assert {line.partition(": ")[2].partition(":")[0] for line in outcome.errors.splitlines()} == {
        "environment VIBE_LLMS_STREAM__RETRIES",
        "environment VIBE_LLMS_COLOUR",
    }


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("x = 1\ny = 2\n", ["y"], 2),
        ("x = 1", ["x"], 1),
        ("[a]\n\n[a.b]\nc = 1\n", ["a", "b", "c"], 4),
        ("[a]\n\n[a.b]\nc = 1\n", ["a", "b"], 3),
        ('[a]\n"x.y" = """\none\n"""\nz = 1\n', ["a", "x.y"], 2),
        ('[a]\n"x.y" = """\none\n"""\nz = 1\n', ["a", "z"], 5),
        ("a.b.c = 1\n", ["a", "b", "c"], 1),
        ("x = 1\n", ["y"], 0),
        ("", ["y"], 0),
    ],
)
def test_the_line_of_a_value_is_found(text: str, path: list[str], line: int) -> None:
    assert find_line(text, path) == line


def test_a_long_file_takes_no_time() -> None:
    text = "".join(f"[providers.p{number}]\nmodule = 'x'\n" for number in range(3_000))
    assert find_line(text, ["providers", "p2999", "module"]) == 6_000


def test_the_keys_of_all_rows_are_known_for_suggestions() -> None:
    assert set(ROW_KEYS) >= _COMMON
