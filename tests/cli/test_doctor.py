"""The command `doctor`."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.cli.command import invoke, teach
from tests.fakes.sentence_transformers import make_folder
from vibe_llms.base.configuration import ROW_KEYS
from vibe_llms.cli.config_checks import find_line
from vibe_llms.providers.provider_pool import _COMMON

#: A line of the file, and what is said of it; nothing of the others.
_WRONG = """\
default-modl = "x"                                # did you mean 'default-model'?
aliases.fast = "scripted/demo"
colour = 1                                        # unknown key

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
module = "nonesuch"                               # module 'nonesuch' not found

[providers.empty]                                 # a row needs a module
enabled = true

[providers.off]
enabled = false

[ensembles.clock]
module = "vibe_llms.ensembles.mcp"
command = ["x"]
approval = "alow"  # 'alow' is not one of 'allow', 'always', 'ask', 'deny'

[memory]
mode = "automatc"                                 # 'automatc' is not one of 'automatic', 'tools'
[memory.recall]
seconds = [                                       # Expected `float`, got `array`
    1,
]
limt = 3                                          # did you mean 'limit'?
"""


def assert_sound(*options: str) -> None:
    """It finds nothing, and says where it has looked, and why there."""
    outcome = invoke("doctor", *options)
    assert (outcome.status, outcome.output) == (0, "")
    assert re.fullmatch(
        r"checking (.*) \((?:named in )?\1/config.toml(?: not found)?\)\nno problems found\n",
        outcome.errors,
    )


def damage(home: Path) -> Path:
    assert invoke("--name", "hurt", "hello").status == 0
    (path,) = home.glob("conversations/*/messages.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"{broken}\n" + lines[1])
    return path


def test_a_sound_archive_is_called_so(home: Path) -> None:
    assert_sound()
    assert not home.exists()
    assert invoke("hello").status == 0
    assert_sound()
    outcome = invoke("doctor", "--json")
    assert (outcome.status, outcome.output) == (0, "[]\n")
    assert_sound("--repair")


def test_damage_is_reported_with_its_remedy_and_repaired_on_request(home: Path) -> None:
    path = damage(home)
    outcome = invoke("doctor")
    assert outcome.status == 1
    assert outcome.output.startswith(f"{path.parent}:1: ")
    assert "    vibe-llms doctor --repair" in outcome.output
    (one,) = invoke("doctor", "--json").json
    assert set(one) == {"subject", "path", "text", "remedy", "mended"}
    outcome = invoke("doctor", "--repair")
    assert outcome.status == 0
    assert outcome.output.startswith("repaired: ")
    assert invoke("doctor").status == 0
    assert invoke("show", "hurt").output.count("Hello!") == 1


def test_a_wrong_configuration_is_reported_first(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("x = \n")
    outcome = invoke("doctor")
    assert outcome.status == 1
    assert str(home / "config.toml") in outcome.output


def test_a_provider_that_cannot_be_loaded_is_reported(home: Path) -> None:
    damage(home)
    (home / "config.toml").write_text('[providers.x]\nmodule = "nonesuch"\n')
    outcome = invoke("doctor")
    assert outcome.status == 1
    assert "providers.x" in outcome.output


def test_hostile_names_of_files_do_not_drive_the_terminal(home: Path) -> None:
    path = damage(home)
    (path.parent / "\x1b[2J").touch()
    output = invoke("doctor", terminals="stdout stderr").output
    assert "\x1b" not in output


def test_problems_of_the_embedder_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBE_LLMS_MEMORY__EMBEDDER", "openai/text-embedding-3-small")
    outcome = invoke("doctor", "--json")
    assert outcome.status == 1
    (found,) = outcome.json
    assert (found["subject"], found["path"]) == ("embedder", "memory.embedder")
    assert "OPENAI_API_KEY" in found["text"]
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-0123456789abcdefghijklmnop")
    assert invoke("doctor").status == 0
    monkeypatch.setenv("VIBE_LLMS_MEMORY__EMBEDDER", "no-such")
    outcome = invoke("doctor")
    assert outcome.status == 1
    assert "not found; available: onnx" in outcome.output


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nonesuch/x", "provider 'nonesuch' not found"),
        ("openai/gpt-x", "OPENAI_API_KEY"),
        ("broken/x", "nonesuch_module"),
    ],
)
def test_problems_of_the_ingestion_model_are_reported(home: Path, model: str, words: str) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        f'[memory.ingestion]\nmodel = "{model}"\n[providers.broken]\nmodule = "nonesuch_module"\n'
    )
    outcome = invoke("doctor", "--json")
    assert outcome.status == 1
    (found,) = [one for one in outcome.json if one["path"] == "memory.ingestion.model"]
    assert found["subject"] == "model"
    assert words in found["text"]
    assert words in invoke("config", "check").errors


def test_problems_of_the_reranking_model_are_reported(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if its package were installed.
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    home.mkdir()
    config = home / "config.toml"
    config.write_text(f'[memory.reranking]\nmodel = "{tmp_path}/none"\n')
    outcome = invoke("doctor")
    assert outcome.status == 1
    assert outcome.output.startswith("memory.reranking.model: ")
    assert "none has no model" in outcome.output
    make_folder(tmp_path / "none")
    assert_sound()


def test_models_of_memory_that_can_be_had_are_well(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_MEMORY__INGESTION__MODEL", "openai/gpt-x")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-0123456789abcdefghijklmnop")
    assert_sound()
    monkeypatch.setenv("VIBE_LLMS_MEMORY__INGESTION__MODEL", "scripted/demo")
    assert_sound()


def test_invalid_files_of_memory_are_reported_and_kept(home: Path) -> None:
    invoke("memory", "add", "Ada keeps bees.")
    assert_sound()
    path = home / "memory" / "entries" / "user-me" / "facts" / "note.md"
    path.write_text("---\nid: [1\n---\na note\n")
    outcome = invoke("doctor", "--repair")
    assert outcome.status == 1
    assert outcome.output.splitlines() == [
        (
            f"{path}: the front matter is not valid YAML: "
            "line 3, column 1: did not find expected ',' or ']'"
        ),
        "    fix it or move it away",
    ]
    assert path.exists()


# The configuration: every problem, with its line.


def test_all_problems_are_reported_with_their_lines(home: Path) -> None:
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
    reported = invoke("doctor", "--json").json
    assert [one["path"] for one in reported] == [f"{file}:{number}" for number, _ in expected]


def test_the_place_is_printed_once(home: Path) -> None:
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


def test_a_contradicted_declaration_is_mentioned(home: Path) -> None:
    model = "anthropic/claude-opus-4-5"
    declaration = '[providers.anthropic.models."claude-opus-4-5"]\ncontext-tokens = {}\n'
    teach(home)
    (home / "config.toml").write_text(declaration.format(131_072))
    assert "accepts" not in invoke("doctor").errors
    teach(home, model, declared=131_072, server="https://gateway.example")
    assert "accepts" not in invoke("doctor").errors
    teach(home, model, declared=131_072, server="https://api.anthropic.com")
    outcome = invoke("doctor")
    assert outcome.status == 0
    assert f"{model} accepts 8,192 tokens, not 131,072 as declared" in outcome.errors
    assert f"vibe-llms models forget {model}" in outcome.errors
    # The declaration is newer.
    (home / "config.toml").write_text(declaration.format(8_192))
    assert "accepts" not in invoke("doctor").errors


def test_a_learned_window_of_a_removed_row_is_no_problem(home: Path) -> None:
    teach(home, "gone/m", declared=131_072)
    assert invoke("doctor").status == 0
