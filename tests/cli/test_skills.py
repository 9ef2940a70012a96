"""Skills at the terminal: listed, shown, checked, and offered by `chat`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Outcome, invoke
from tests.cli.test_completion import names
from tests.skills.folders import write_skill

pytestmark = pytest.mark.usefixtures("warm")

DEMO = ("-m", "scripted/demo")


@pytest.fixture
def folder(home: Path) -> Path:
    """The folder of a skill with every field, beside a broken one."""
    folder = write_skill(
        home / "skills",
        "pdf",
        "---\nname: pdf\ndescription: Fills in forms.\nlicense: MIT\ncompatibility: Needs qpdf\n"
        "allowed-tools: Bash(qpdf:*) Read\nmetadata:\n  author: ada\nmodel: opus\n---\n"
        "Do this.\u202e\n",
    )
    (folder / "run.py").write_text("print()")
    write_skill(home / "skills", "broken", "no front matter")
    return folder


def skills(*arguments: str) -> Outcome:
    return invoke("skills", *arguments)


def tools(*arguments: str) -> list[str]:
    """The tools of a request that a command would send."""
    request: Any = json.loads(invoke(*arguments, "--dry-run").output)
    return [one["name"] for one in request.get("tools", ())]


def test_skills_are_listed_with_the_reason_if_one_is_not_offered(folder: Path) -> None:
    outcome = skills("list")
    assert outcome.status == 0
    assert outcome.output == (
        "broken           (not offered: it has no front matter; its first line must be ---)\n"
        "pdf              Fills in forms.\n"
    )
    broken, pdf = skills("list", "--json").json
    assert (broken["offered"], pdf["offered"]) == (False, True)
    assert (pdf["folder"], pdf["license"]) == (str(folder), "MIT")
    assert pdf["remarks"] == ["unknown fields: model; put them in metadata"]


def test_a_missing_folder_is_reported_and_without_skills_there_is_a_hint(home: Path) -> None:
    assert skills("list").errors == (
        f"no skills yet; put the folder of one into {home / 'skills'}\n"
    )
    home.mkdir()
    (home / "config.toml").write_text('[skills]\nfolders = ["gone"]\n')
    outcome = skills("list", "--json")
    assert outcome.json == []
    assert f"{home / 'gone'}: No such file or directory" in outcome.errors


def test_a_skill_is_shown_with_hidden_characters_made_visible(folder: Path) -> None:
    (folder.parent.parent / "config.toml").write_text('[agents.clerk]\nskills = ["pdf"]\n')
    outcome = skills("show", "pdf")
    assert outcome.output.splitlines() == [
        "pdf",
        "Fills in forms.",
        "",
        f"folder           {folder}",
        "agents           clerk",
        "license          MIT",
        "compatibility    Needs qpdf",
        "allowed-tools    Bash(qpdf:*) Read",
        "author           ada",
        "files            run.py",
        "remarks          unknown fields: model; put them in metadata",
        "",
        "Do this.\\u202e",
    ]
    shown = skills("show", "pdf", "--json").json
    assert shown["files"] == [{"path": "run.py", "bytes": 7}]
    assert shown["instructions"] == "Do this.\u202e"
    assert "not offered      it has no front matter" in skills("show", "broken").output
    missing = skills("show", "gone")
    assert missing.status == 66
    assert "skill 'gone' not found; known skills: broken, pdf" in missing.errors


def test_a_folder_is_checked(folder: Path, tmp_path: Path) -> None:
    outcome = skills("check", str(folder))
    assert (outcome.status, outcome.output) == (
        1,
        "pdf: unknown fields: model; put them in metadata\n",
    )
    good = write_skill(tmp_path, "good")
    assert (skills("check", str(good)).status, skills("check", str(good)).output) == (
        0,
        "good: valid\n",
    )
    (good / "SKILL.md").write_text("---\nname: good\n---\n")
    good.chmod(0o777)
    outcome = skills("check", str(good), "--json")
    assert outcome.status == 1
    # The format is checked although others could change the folder.
    assert outcome.json["problem"].startswith("it has no description; others may write to it")
    assert skills("check", str(tmp_path / "gone")).output == "gone: not found\n"
    assert "it is not a folder" in skills("check", str(good / "SKILL.md")).output


def test_a_chat_offers_all_skills_or_those_that_are_named(folder: Path) -> None:
    write_skill(folder.parent, "png")
    tool = ["skills/use_skill"]
    assert tools(*DEMO, "Hello!") == tool
    assert tools(*DEMO, "Hello!", "--no-skills") == []
    outcome = invoke(*DEMO, "Hello!", "--skill", "png", "--skill", "gone", "--dry-run")
    assert "- png: About png." in outcome.output
    assert "- pdf" not in outcome.output
    assert "the skill 'gone' is left out: not found" in outcome.errors
    assert invoke(*DEMO, "Hello!", "--skill", "png", "--no-skills").status == 2


def test_a_question_about_documents_offers_them_only_with_an_agent(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("Text.")
    assert tools("ask", str(tmp_path / "a.txt"), *DEMO, "What?") == []
    (folder.parent.parent / "config.toml").write_text('[agents.clerk]\nskills = ["pdf"]\n')
    assert tools("ask", str(tmp_path / "a.txt"), *DEMO, "-A", "clerk", "What?") == [
        "skills/use_skill"
    ]


def test_an_agent_is_added_and_shown_with_its_skills(folder: Path) -> None:
    added = invoke("agents", "add", "clerk", *DEMO, "--skill", "pdf", "--skill", "broken")
    assert added.status == 0, added.errors
    assert invoke("agents", "show", "clerk", "--json").json["skills"] == [
        {"name": "pdf", "problem": ""},
        {"name": "broken", "problem": "it has no front matter; its first line must be ---"},
    ]
    assert (
        "skill            broken  not available: it has" in invoke("agents", "show", "clerk").output
    )
    assert invoke("agents", "show", "general", "--json").json["skills"] is None


def test_names_of_skills_are_completed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names("vibe-llms chat --skill ", monkeypatch) == ["broken", "pdf"]
    assert names("vibe-llms skills show p", monkeypatch) == ["pdf"]
