"""The command `doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.fakes.sentence_transformers import make_folder
from vibe_llms.memory import cross_encoders


def damage(home: Path) -> Path:
    assert invoke("--name", "hurt", "hello").status == 0
    (path,) = home.glob("conversations/*/messages.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"{broken}\n" + lines[1])
    return path


def test_a_sound_archive_is_called_so(home: Path) -> None:
    assert invoke("doctor") == (0, "", "all is well\n")
    assert not home.exists()
    assert invoke("hello").status == 0
    assert invoke("doctor") == (0, "", "all is well\n")
    assert invoke("doctor", "--json") == (0, "[]\n", "")
    assert invoke("doctor", "--repair") == (0, "", "all is well\n")


def test_damage_is_told_with_its_remedy_and_mended_where_that_is_wanted(home: Path) -> None:
    path = damage(home)
    outcome = invoke("doctor")
    assert outcome.status == 1
    assert outcome.output.startswith(f"{path.parent}:1: ")
    assert "    vibe-llms doctor --repair" in outcome.output
    (one,) = invoke("doctor", "--json").json
    assert set(one) == {"subject", "path", "text", "remedy", "mended"}
    outcome = invoke("doctor", "--repair")
    assert outcome.status == 0
    assert outcome.output.startswith("mended: ")
    assert invoke("doctor").status == 0
    assert invoke("show", "hurt").output.count("Hello!") == 1


def test_a_wrong_configuration_is_told_first(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("x = \n")
    outcome = invoke("doctor")
    assert outcome.status == 1
    assert str(home / "config.toml") in outcome.output


def test_a_provider_that_cannot_be_loaded_is_told(home: Path) -> None:
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


def test_what_stands_in_the_way_of_the_embedder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "names no embedder" in outcome.output


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nonesuch/x", "there is no provider 'nonesuch'"),
        ("openai/gpt-x", "OPENAI_API_KEY"),
        ("broken/x", "nonesuch_module"),
    ],
)
def test_what_stands_in_the_way_of_the_model_that_ingests_is_told(
    home: Path, model: str, words: str
) -> None:
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


def test_what_stands_in_the_way_of_the_model_that_reranks_is_told(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if its package were installed.
    monkeypatch.setattr(cross_encoders, "find_spec", lambda name: object())
    home.mkdir()
    config = home / "config.toml"
    config.write_text(f'[memory.reranking]\nmodel = "{tmp_path}/none"\n')
    outcome = invoke("doctor")
    assert outcome.status == 1
    assert outcome.output.startswith("memory.reranking.model: ")
    assert "none holds no model" in outcome.output
    make_folder(tmp_path / "none")
    assert invoke("doctor") == (0, "", "all is well\n")


def test_models_of_memory_that_can_be_had_are_well(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_MEMORY__INGESTION__MODEL", "openai/gpt-x")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-0123456789abcdefghijklmnop")
    assert invoke("doctor") == (0, "", "all is well\n")
    monkeypatch.setenv("VIBE_LLMS_MEMORY__INGESTION__MODEL", "scripted/demo")
    assert invoke("doctor") == (0, "", "all is well\n")


def test_files_that_are_not_remembered_are_told_and_left(home: Path) -> None:
    invoke("memory", "add", "Ada keeps bees.")
    assert invoke("doctor") == (0, "", "all is well\n")
    path = home / "memory" / "entries" / "user-me" / "facts" / "note.md"
    path.write_text("---\nid: [1\n---\na note\n")
    outcome = invoke("doctor", "--repair")
    assert outcome.status == 1
    assert outcome.output.splitlines() == [
        f"{path}: its front matter is no YAML: line 3, column 1: did not find expected ',' or ']'",
        "    mend it by hand, or move it away",
    ]
    assert path.exists()
