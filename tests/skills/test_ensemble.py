"""Skills in conversations: how they are offered, to which agents, and what the model reads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.models import QUICK, says
from tests.skills.folders import write_skill
from vibe_llms.base.exceptions import AgentNotFound, ConfigurationError
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import ResultCanister
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.opening import open_session
from vibe_llms.runs.interfaces import RunStatus
from vibe_llms.skills import catalog, ensemble
from vibe_llms.skills.catalog import SkillLibrary
from vibe_llms.skills.ensemble import SkillsEnsemble
from vibe_llms.testing import Part, Script, ScriptedModel, ScriptedReply, scripted_model

TOOL = "skills/use_skill"


def uses(name: str, file: str = "") -> ScriptedReply:
    arguments = {"name": name, "file": file} if file else {"name": name}
    return ScriptedReply(parts=(Part(invocation=TOOL, arguments=arguments),))


def model_of(*replies: ScriptedReply) -> ScriptedModel:
    return scripted_model(Script((*replies, says("Done."))), stream=QUICK)


def results(conversation: Conversation) -> Sequence[ResultCanister]:
    return [one for one in conversation.canisters if isinstance(one, ResultCanister)]


def instructions(model: ScriptedModel) -> str:
    """The text of all supervisor messages of the last request."""
    asked = model.requests[-1]["messages"]
    return "\n".join(
        content["text"]
        for one in asked
        if one["role"] == "supervisor"
        for content in one["contents"]
    )


async def test_the_model_learns_names_and_reads_the_rest_when_it_needs_it(home: Path) -> None:
    folder = write_skill(home / "skills", "pdf")
    write_skill(home / "skills", "png")
    (folder / "fields.md").write_text("The fields.")
    model = model_of(uses("pdf"), uses("pdf", "fields.md"))
    async with open_session() as session:
        conversation = await session.begin(model, skills=["*"])
        (tool,) = conversation.invokers.values()
        assert (tool.name, tool.approval, tool.outside, tool.sends) == (TOOL, "allow", False, False)
        assert list(tool.arguments_schema["properties"]) == ["name", "file"]
        assert (await conversation.converse("Fill in my form.")).text == "Done."
    assert "- pdf: About pdf.\n- png: About png." in instructions(model)
    assert "Do pdf." not in instructions(model)
    read, file = results(conversation)
    assert read.text == (
        "Do pdf.\n\nFiles of this skill, for use_skill:\n- fields.md (11 bytes)\n\n"
        f"Folder of this skill: {folder}"
    )
    assert file.text == "The fields."
    # What the user's own skill says is not text from others.
    assert read.trusted
    assert file.trusted
    assert [one.display for one in (read, file)] == ["pdf", "pdf: fields.md"]


async def test_a_skill_is_read_afresh_at_each_use(home: Path) -> None:
    folder = write_skill(home / "skills", "pdf")
    model = model_of(uses("pdf"), says("One."), uses("pdf"))
    async with open_session() as session:
        conversation = await session.begin(model, skills=["pdf"])
        await conversation.converse("Once.")
        (folder / "SKILL.md").write_text("---\nname: pdf\ndescription: a\n---\nDo it anew.")
        await conversation.converse("Again.")
    assert [one.text.partition("\n")[0] for one in results(conversation)] == [
        "Do pdf.",
        "Do it anew.",
    ]


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("png", "", "There is no skill 'png'; the skills are pdf."),
        ("../png", "", "There is no skill '../png'"),
        ("*", "", "There is no skill '*'"),
        ("pdf", "../png/SKILL.md", "'../png/SKILL.md' is not allowed"),
        ("pdf", "gone.md", "the skill 'pdf' has no file 'gone.md'; its files: none"),
    ],
)
async def test_a_wrong_use_is_an_error_that_the_model_reads(
    home: Path, name: str, file: str, words: str
) -> None:
    for one in ("pdf", "png"):
        write_skill(home / "skills", one)
    async with open_session() as session:
        conversation = await session.begin(model_of(uses(name, file)), skills=["pdf"])
        await conversation.converse("Go on.")
    (result,) = results(conversation)
    assert result.failed
    assert words in result.text


async def test_with_all_skills_an_unknown_one_is_an_error_too(home: Path) -> None:
    write_skill(home / "skills", "pdf")
    async with open_session() as session:
        conversation = await session.begin(model_of(uses("*"), uses("png")), skills=["*"])
        await conversation.converse("Go on.")
    assert [one.text for one in results(conversation)] == [
        "the skill '*' cannot be used: not found",
        "the skill 'png' cannot be used: not found",
    ]


async def test_an_agent_has_its_own_skills_and_a_missing_one_is_a_notice(home: Path) -> None:
    for name in ("pdf", "png"):
        write_skill(home / "skills", name)
    write_skill(home / "skills", "broken", "no front matter")
    rows = {"agents": {"clerk": {"skills": ["png", "broken", "gone"]}, "plain": {"skills": []}}}
    events: list[Event] = []
    model = model_of(says("Hello."))
    async with open_session(configuration=rows, event_handler=events.append) as session:
        conversation = await session.begin(model, agent="clerk")
        await conversation.converse("Hello!")
        assert session.choose_skills("clerk") is None
        assert session.choose_skills("plain") is None
        assert session.choose_skills("general") == ("*",)
        # The caller's list takes precedence.
        other = await session.begin(model, agent="clerk", skills=["pdf"])
        await other.converse("Hello!")
        plain = await session.begin(model, agent="plain")
        assert plain.invokers == {}
        with pytest.raises(AgentNotFound):
            session.choose_skills("gone")
    notices = [one.notice.text for one in events if isinstance(one, NoticeEvent)]
    assert notices == [
        "the skill 'broken' is left out: it has no front matter; its first line must be ---",
        "the skill 'gone' is left out: not found",
    ]
    asked = [str(one["messages"]) for one in model.requests]
    assert ["- png:" in one for one in asked] == [True, False]
    assert ["- pdf:" in one for one in asked] == [False, True]


async def test_an_asked_agent_has_its_skills(home: Path) -> None:
    write_skill(home / "skills", "pdf")
    rows = {
        "agents": {
            "lead": {"agents": ["clerk"]},
            "clerk": {"skills": ["pdf"], "supervisor": "You are a clerk."},
        }
    }
    ask = Part(invocation="agents/clerk", arguments={"request": "Fill it in."})
    model = scripted_model(
        Script((ScriptedReply(parts=(ask,)), uses("pdf"), says("Filled in."), says("Done."))),
        stream=QUICK,
    )
    async with open_session(configuration=rows) as session:
        conversation = await session.begin(model, agent="lead")
        assert [*conversation.invokers] == ["agents/clerk"]
        await conversation.converse("Please.")
    assert [one.text for one in results(conversation)] == ["Filled in."]
    assert "Do pdf." in str(model.requests[2]["messages"])


@pytest.mark.parametrize("skills", [["broken"], ["gone"], [], None])
async def test_without_a_skill_there_is_no_tool_and_no_instruction(
    home: Path, skills: list[str] | None
) -> None:
    write_skill(home / "skills", "broken", "no front matter")
    model = model_of()
    async with open_session() as session:
        conversation = await session.begin(model, skills=skills)
        assert conversation.invokers == {}
        await conversation.converse("Hello!")
    assert instructions(model) == ""


async def test_a_chat_has_all_skills_once_there_is_a_folder(home: Path, tmp_path: Path) -> None:
    async with open_session() as session:
        assert session.choose_skills(None) is None
        (home / "skills").mkdir(parents=True)
        assert session.choose_skills(None) == ("*",)
    (home / "skills").rmdir()
    async with open_session(configuration={"skills": {"folders": [str(tmp_path)]}}) as session:
        assert session.choose_skills(None) == ("*",)
        found = await session.survey_skills()
    assert [one.problem for one in found.skills] == ["it has no SKILL.md"]


async def test_skills_are_withheld_like_other_tools(home: Path) -> None:
    write_skill(home / "skills", "pdf")
    model = model_of()
    async with open_session() as session:
        conversation = await session.begin(model, skills=["*"])
        conversation.withhold("skills")
        await conversation.converse("Hello!")
    assert instructions(model) == ""


def test_an_agents_skills_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"agents\.clerk.*skills"):
        asyncio.run(_open({"agents": {"clerk": {"skills": "pdf"}}}))


async def _open(rows: dict[str, Any]) -> None:
    async with open_session(configuration=rows) as session:
        session.survey_agents()


async def test_skills_are_looked_for_off_the_event_loop(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(home / "skills", "pdf")
    threads: set[int] = set()
    inner = catalog._read

    def read(folder: str) -> Any:
        threads.add(threading.get_ident())
        return inner(folder)

    monkeypatch.setattr(catalog, "_read", read)
    async with open_session() as session:
        conversation = await session.begin(model_of(uses("pdf")), skills=["*"])
        await conversation.converse("Go on.")
        await session.survey_skills()
    assert threads
    assert threading.get_ident() not in threads


async def test_another_process_continues_a_run_with_its_skills(home: Path) -> None:
    write_skill(home / "skills", "pdf")
    home.joinpath("script.toml").write_text(
        f'[[replies]]\n[[replies.parts]]\ninvocation = "{TOOL}"\narguments = {{name = "pdf"}}\n'
        '[[replies]]\n[[replies.parts]]\ntext = "Done."\n'
    )
    rows = {
        "providers": {"scripted": {"scripts": {"script": str(home / "script.toml")}}},
        "agents": {"clerk": {"skills": ["pdf"]}},
    }
    async with (
        open_session(configuration=rows) as one,
        open_session(configuration=rows) as other,
    ):
        one.access_runs().worker.pause()
        conversation = await one.begin("scripted/script", agent="clerk")
        run = await one.start(conversation, "Go on.")
        record = run.record
        assert record.recipe.skills == ("pdf",)
        assert record.recipe.ensembles == ()
        other.access_runs().worker.poke()
        found = await other.access_run(run.identity)
        assert (await found.result()).text == "Done."
        ended = await other.access_run(run.identity)
        assert ended.record.status is RunStatus.COMPLETED
        resumed = await other.resume(conversation.identity)
    assert results(resumed)[0].text.startswith("Do pdf.")


def produce(library: SkillLibrary, *, show_folders: bool = True) -> SkillsEnsemble:
    return SkillsEnsemble(library, ["*"], show_folders=show_folders, notify=print)


async def test_many_descriptions_are_shortened_to_a_bounded_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ensemble, "_TABLE_CHARACTERS", 100)
    for name in "abcde":
        text = f"---\nname: {name}\ndescription: |\n  {'x' * 30}\n  next line\n---\n"
        write_skill(tmp_path, name, text)
    offered = produce(SkillLibrary([tmp_path]))
    await offered.open()
    lines = offered.instructions.splitlines()
    assert lines[-5:] == [f"- {name}: {'x' * 19}…" for name in "abcde"]


async def test_the_folder_is_not_shown_to_users_of_a_server(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf", "---\nname: pdf\ndescription: a\n---\n")
    offered = produce(SkillLibrary([tmp_path]), show_folders=False)
    await offered.open()
    text = offered._use_skill("pdf").contents[0]
    assert text.data == "(The skill has no instructions besides its description.)"  # type: ignore[union-attr]


async def test_users_of_a_server_see_no_reasons_with_paths_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_skill(tmp_path, "pdf")
    notices: list[str] = []
    offered = SkillsEnsemble(
        SkillLibrary([tmp_path]), ["pdf", "png"], show_folders=False, notify=notices.append
    )
    await offered.open()
    assert notices == ["the skill 'png' is left out"]
    (folder / "open.md").write_text("text")
    (folder / "open.md").chmod(0o666)
    file = offered._use_skill("pdf", "open.md").contents[0]
    folder.chmod(0o777)
    whole = offered._use_skill("pdf").contents[0]
    assert [one.data for one in (file, whole)] == [  # type: ignore[union-attr]
        "'open.md' cannot be read",
        "the skill 'pdf' cannot be used",
    ]


async def test_more_files_than_are_listed_are_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_MOST_FILES", 1)
    folder = write_skill(tmp_path, "pdf")
    for name in ("a.md", "b.md"):
        (folder / name).write_text("text")
    offered = produce(SkillLibrary([tmp_path]), show_folders=False)
    await offered.open()
    text = offered._use_skill("pdf").contents[0].data  # type: ignore[union-attr]
    assert str(text).endswith("for use_skill:\n- a.md (4 bytes)\n- and more")


PROGRAM = """
import asyncio, sys
from vibe_llms import open_session

async def main():
    async with open_session(home=sys.argv[1]) as session:
        conversation = await session.begin("scripted/demo", skills=session.choose_skills(None))
        await conversation.converse("Hello!")
    print(sorted(one for one in sys.modules if one.startswith(("vibe_llms.skills", "yaml"))))

asyncio.run(main())
"""


def test_a_turn_without_skills_imports_nothing_of_them(tmp_path: Path) -> None:
    def run() -> str:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert run() == "[]\n"
    write_skill(tmp_path / "skills", "pdf")
    assert "vibe_llms.skills.ensemble" in run()
