"""Agents at the terminal: listed, shown, added, and used by `chat` and `ask`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Outcome, invoke
from tests.cli.test_completion import names
from tests.cli.test_repl import hold

ROWS = """\
# Mine.
[agents.coder] # and mine
description = "Writes code."
model = "scripted/demo"
supervisor = "You write code."
ensembles = ["documents"]
controls = { temperature = 0.5 }
budget = { tokens = 100000 }

[agents.translator]
model = "scripted/demo"
prompt = "Translate to $language: $input"

[agents.lead]
model = "scripted/demo"
agents = ["coder"]
memory = false
"""


@pytest.fixture
def file(home: Path) -> Path:
    home.mkdir()
    path = home / "config.toml"
    path.write_text(ROWS)
    return path


def agents(*arguments: str) -> Outcome:
    return invoke("agents", *arguments)


def requested(*arguments: str) -> Any:
    """The request that a command would send."""
    return json.loads(invoke(*arguments, "--dry-run").output)


def texts(request: Any) -> list[str]:
    return [one["contents"][0]["text"] for one in request["messages"]]


def test_agents_are_listed(file: Path) -> None:
    outcome = agents("list")
    assert "coder            (scripted/demo) Writes code.\n" in outcome.output
    listed = agents("list", "--json").json
    assert [one["name"] for one in listed] == ["general", "coder", "translator", "lead"]
    assert listed[1] == {
        "name": "coder",
        "description": "Writes code.",
        "model": "scripted/demo",
    }


def test_a_list_without_agents_says_how_to_add_one(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[agents.general]\nenabled = false\n")
    outcome = agents("list")
    assert (outcome.output, agents("list", "--json").json) == ("", [])
    assert "vibe-llms agents add NAME" in outcome.errors


def test_an_agent_is_shown_with_what_it_can_use(file: Path) -> None:
    lines = agents("show", "coder").output.splitlines()
    assert lines[:4] == ["coder", "Writes code.", "", "model            scripted/demo"]
    assert "ensemble         documents" in lines
    assert 'controls         {"temperature": 0.5}' in lines
    assert 'budget           {"tokens": 100000, "money": null, "period": "day"}' in lines
    assert lines[-2:] == ["", "You write code."]
    assert "agents           coder" in agents("show", "lead").output
    shown = agents("show", "translator", "--json").json
    assert (shown["variables"], shown["budget"]) == (["language"], None)


def test_what_an_agent_cannot_use_is_shown_but_not_reported_when_it_is_used(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[ensembles.python]\nneeds = ["no_such_package"]\n')
    shown = agents("show", "general", "--json").json
    problems = {one["name"]: one["problem"] for one in shown["ensembles"]}
    assert [*problems] == ["documents", "web", "python", "images", "memory"]
    assert "needs the package 'no_such_package'" in problems["python"]
    assert "OPENAI_API_KEY" in problems["images"]
    assert [name for name, problem in problems.items() if not problem] == [
        *("documents", "web", "memory")
    ]
    assert "ensemble         python  not available: " in agents("show", "general").output
    outcome = invoke("chat", "-A", "general", "-m", "scripted/demo", "hi")
    assert (outcome.status, outcome.errors) == (0, "")
    request = requested("chat", "-A", "general", "-m", "scripted/demo", "hi")
    tools = [tool["name"] for tool in request["tools"]]
    assert {tool.partition("/")[0] for tool in tools} == {"documents", "web", "memory"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ('model = "scriptd/demo"', "[agents.one], key 'model': 'scriptd/demo': provider 's"),
        ('ensembles = ["pyton"]', "[agents.one], key 'ensembles': 'pyton' not found"),
        ('agents = ["tr"]\n[agents.tr]\nprompt = "$a $input"', "key 'agents': 'tr' needs $a"),
        ('modle = "x"', "key 'modle': unknown key; did you mean 'model'?"),
    ],
)
def test_a_wrong_row_is_reported_with_its_place(home: Path, wrong: str, words: str) -> None:
    home.mkdir()
    (home / "config.toml").write_text(f"[agents.one]\n{wrong}\n")
    for arguments in (("list",), ("show", "one")):
        outcome = agents(*arguments)
        assert outcome.status == 78
        assert outcome.error.startswith(f"{home / 'config.toml'}, ")
        assert words in outcome.error
    checked = invoke("config", "check")
    assert checked.status == 78
    assert f"{home / 'config.toml'}:2: [agents.one]" in checked.errors


def test_an_unknown_agent_is_an_error(file: Path) -> None:
    for outcome in (agents("show", "codr"), invoke("chat", "-A", "codr", "hi")):
        assert outcome.status == 66
        assert outcome.error == (
            "agent 'codr' not found; known agents: general, coder, translator, lead"
        )


def test_an_agent_is_added_and_comments_stay(file: Path) -> None:
    (file.parent / "verse.md").write_text("Answer in verse.")
    outcome = agents(
        *("add", "poet", "--description", "Writes verse.", "-m", "scripted/demo"),
        *("--system-file", str(file.parent / "verse.md"), "-T", "web", "-A", "coder"),
        *("--docs", "poems", "-o", "temperature", "0.5", "--no-memory"),
        *("--set", "budget={tokens=1000}", "--set", "tool-mode=native"),
    )
    assert (outcome.status, outcome.errors) == (
        0,
        "added; to use it: vibe-llms chat -A poet\n",
    )
    assert file.read_text().startswith(ROWS.rstrip())
    shown = agents("show", "poet", "--json").json
    assert shown["supervisor"] == "Answer in verse."
    assert shown["ensembles"] == [{"name": "web", "problem": ""}]
    assert (shown["agents"], shown["collections"]) == (["coder"], ["poems"])
    assert (shown["controls"], shown["memory"]) == ({"temperature": 0.5}, False)
    assert (shown["tool_mode"], shown["budget"]["tokens"]) == ("native", 1000)
    assert agents("add", "poet").status == 2
    added = agents("add", "poet", "-m", "scripted/demo", "-s", "Sing.", "--force", "--json").json
    assert added == {"name": "poet", "description": "", "model": "scripted/demo"}
    assert agents("show", "poet", "--json").json["supervisor"] == "Sing."


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("a b",), 78, "the name of an agent has up to 64"),
        (("x", "--set", "modle=y"), 78, "did you mean 'model'?"),
        (("x", "--set", "modle"), 2, "--set needs KEY=VALUE, not 'modle'"),
        (("x", "-m", "scriptd/demo"), 78, "provider 'scriptd' not found"),
        (("x", "-T", "nope"), 78, "'nope' not found in [ensembles]"),
        (("x", "-o", "temprature", "1"), 2, "unknown control 'temprature'"),
        (("x", "--system-file", "missing.md"), 78, "missing.md cannot be read"),
        (("coder",), 2, "the agent 'coder' exists already; --force replaces it"),
    ],
)
def test_a_wrong_agent_is_not_added(
    file: Path, arguments: tuple[str, ...], status: int, words: str
) -> None:
    outcome = agents("add", *arguments)
    assert outcome.status == status
    assert words in outcome.error
    assert file.read_text() == ROWS


def test_chat_uses_an_agent(file: Path) -> None:
    request = requested("chat", "-A", "coder", "Hello")
    assert texts(request)[-2:] == ["You write code.", "Hello"]
    assert request["controls"]["temperature"] == 0.5
    own = requested("chat", "-A", "coder", "-s", "Be brief.", "-o", "temperature", "1", "Hello")
    assert texts(own)[-2:] == ["Be brief.", "Hello"]
    assert own["controls"]["temperature"] == 1
    outcome = invoke("chat", "-A", "coder", "Hello", "--print-id")
    shown = invoke("show", outcome.errors.strip().splitlines()[-1], "--json").json
    assert (shown["agent"], shown["model"]) == ("coder", "scripted/demo")
    again = requested("chat", "-c", "-A", "coder", "And?")
    assert texts(again).count("You write code.") == 1


def test_the_variables_of_a_prompt_are_options(file: Path) -> None:
    request = requested("chat", "-A", "translator", "-p", "language", "French", "Hello")
    assert texts(request) == ["Translate to French: Hello"]
    outcome = invoke("chat", "-A", "translator", "Hello")
    assert outcome.status == 2
    assert "needs a value for $language" in outcome.error


def test_ask_leaves_its_instructions_to_the_agent(file: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("It leaves at noon.")
    arguments = ("ask", str(tmp_path / "note.txt"), "When?")
    assert texts(requested(*arguments, "-m", "scripted/demo"))[0].startswith("Answer the question")
    said = texts(requested(*arguments, "-A", "coder"))
    assert "You write code." in said
    assert not any(text.startswith("Answer the question") for text in said)


def test_the_memory_of_an_agent_is_over_that_of_the_configuration(file: Path) -> None:
    with file.open("a") as more:
        more.write("\n[memory]\nenabled = true\n")
    outcome = invoke("chat", "-A", "lead", "My cat is called Tom.", "--wait")
    assert (outcome.status, outcome.errors) == (0, "")


def test_settings_for_this_run_are_those_of_the_agents_model(file: Path) -> None:
    outcome = invoke("chat", "-A", "coder", "--set", "pace-seconds=x", "hi")
    assert "[providers.scripted], key 'pace-seconds'" in outcome.error


def test_agents_are_completed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names("vibe-llms chat -A ", monkeypatch) == ["general", "coder", "translator", "lead"]
    assert names("vibe-llms agents show c", monkeypatch) == ["coder"]


def test_a_conversation_that_is_opened_in_a_chat_is_left_as_it_is(file: Path) -> None:
    invoke("chat", "-m", "scripted/demo", "--name", "plain", "Hello")
    output, errors = hold("/system", "/open plain", "/system", agent="coder")[1:3]
    assert output.count("You write code.") == 1
    assert "(no system prompts)" in errors


@pytest.mark.parametrize(
    "given",
    [
        ("-p", "language", "French"),
        ("-p", "language=French"),
        ("-planguage=French",),
        ("--param", "language", "French"),
        ("--param=language=French",),
        ("-p", "language=x", "-p", "language=French"),
    ],
)
def test_a_variable_is_written_in_two_ways(file: Path, given: tuple[str, ...]) -> None:
    for words in ((*given, "Hello", "you"), ("Hello", *given, "you"), ("Hello", "you", *given)):
        request = requested("chat", "-A", "translator", *words)
        assert texts(request) == ["Translate to French: Hello you"]
    # The command without a name, too.
    assert texts(requested("-A", "translator", *given, "Hello")) == ["Translate to French: Hello"]


def test_the_value_of_a_variable_may_be_anything(file: Path) -> None:
    for value in ("", "a=b", "$input $$ ${x}", "-p"):
        request = requested("chat", "-A", "translator", "-p", f"language={value}", "Hi $input")
        assert texts(request) == [f"Translate to {value}: Hi $input"]
    piped = invoke(
        *("chat", "-A", "translator", "-p", "language=French", "--dry-run"), data=b"Hello"
    )
    assert texts(json.loads(piped.output)) == ["Translate to French: Hello"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p",), "requires an argument"),
        (("-p", "language"), "'language' is not NAME=VALUE"),
        (("-p", "=x"), "'=x' is not NAME=VALUE"),
        (("-p", "langage=French", "Hi"), "has no $langage; its variables are $language"),
        (("Hi",), "needs a value for $language; to give it: vibe-llms chat -A translator -p "),
    ],
)
def test_a_wrong_variable_is_an_error(file: Path, arguments: tuple[str, ...], words: str) -> None:
    outcome = invoke("chat", "-A", "translator", *arguments)
    assert outcome.status == 2
    assert words in outcome.error


def test_all_missing_variables_are_in_the_command(file: Path) -> None:
    with file.open("a") as more:
        more.write('\n[agents.writer]\nprompt = "$a $b $c $d: $input"\ndefaults = { c = "x" }\n')
    outcome = invoke("ask", "-A", "writer", "-p", "b=two words", str(file), "Hi")
    assert outcome.error == (
        "the prompt of the agent 'writer' needs a value for $a, $d; to give it: "
        "vibe-llms chat -A writer -p b='two words' -p a=VALUE -p d=VALUE"
    )


def test_variables_are_completed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names("vibe-llms chat -A translator -p ", monkeypatch) == ["language"]
    assert names("vibe-llms -A translator -p la", monkeypatch) == ["language"]
    for line in ("vibe-llms chat -p ", "vibe-llms chat -A codr -p ", "vibe-llms chat -A coder -p "):
        assert names(line, monkeypatch) == []


def edit_with(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"sh -c '{script}'")


def test_an_agent_is_added_with_variables_and_defaults(file: Path) -> None:
    agents(
        *("add", "summary", "--system-template", "Speak like $voice.", "-p", "voice=a pirate"),
        *("--prompt", "In $count lines: $input", "-p", "count", "3"),
    )
    shown = agents("show", "summary", "--json").json
    assert shown["variables"] == ["count", "voice"]
    assert shown["defaults"] == {"voice": "a pirate", "count": "3"}
    assert shown["supervisor"] == "Speak like $voice."
    request = requested("chat", "-A", "summary", "-m", "scripted/demo", "-p", "count=5", "Sea")
    assert texts(request) == ["Speak like a pirate.", "In 5 lines: Sea"]
    assert 'defaults         {"voice": "a pirate"' in agents("show", "summary").output
    wrong = agents("add", "other", "-s", "Hi", "-p", "voice=x")
    assert (wrong.status, "$voice is in neither" in wrong.error) == (78, True)


def test_the_system_prompt_is_read_from_standard_input(file: Path) -> None:
    for arguments in (("poet",), ("poet", "-s", "-", "--force"), ("poet", "--force")):
        outcome = invoke("agents", "add", *arguments, data=b"Answer\nin \\verse.\n\n")
        assert (outcome.status, outcome.errors) == (
            0,
            "added; to use it: vibe-llms chat -A poet\n",
        )
        assert agents("show", "poet", "--json").json["supervisor"] == "Answer\nin \\verse."
    assert 'supervisor = """\nAnswer\nin \\\\verse."""' in file.read_text()
    assert file.read_text().startswith(ROWS.rstrip())
    before = file.read_text()
    for given, words in (("", "the system prompt is empty"), ("a\0b", "is not text")):
        outcome = invoke("agents", "add", "more", data=given.encode())
        assert (outcome.status, words in outcome.error) == (2, True)
    assert file.read_text() == before


def test_standard_input_is_left_to_others_if_options_are_given(file: Path) -> None:
    invoke("agents", "add", "poet", "-m", "scripted/demo", data=b"not mine")
    assert agents("show", "poet", "--json").json["supervisor"] == ""


def test_the_system_prompt_is_written_in_the_editor(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_with(monkeypatch, 'echo "More." >> "$0"')
    agents("add", "poet", "--edit", "-s", "Sing.", "-m", "scripted/demo")
    assert agents("show", "poet", "--json").json["supervisor"] == "Sing.\nMore."
    changed = agents("edit", "poet", "--json")
    assert (changed.errors, changed.json["name"]) == ("changed supervisor of poet\n", "poet")
    assert agents("show", "poet", "--json").json["supervisor"] == "Sing.\nMore.\nMore."
    assert agents("edit", "translator").status == 0
    assert agents("show", "translator", "--json").json["prompt"].endswith("$input\nMore.")
    assert file.read_text().startswith('# Mine.\n[agents.coder] # and mine\ndescription = "Wr')
    edit_with(monkeypatch, "true")
    assert agents("edit", "poet").errors == "unchanged\n"
    before = file.read_text()
    edit_with(monkeypatch, 'echo "Lost." > "$0"')
    assert "it must contain $input" in agents("edit", "translator").error
    edit_with(monkeypatch, "exit 3")
    assert "exited with status 3" in agents("edit", "poet").error
    edit_with(monkeypatch, 'printf "\\377" > "$0"')
    assert "cannot be read" in agents("edit", "poet").error
    edit_with(monkeypatch, ': > "$0"')
    assert "the system prompt is empty" in agents("add", "x", "--edit", "-s", "y").error
    assert file.read_text() == before


def test_the_file_of_a_system_prompt_is_edited(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "verse.md").write_text("Sing.\n")
    agents("add", "poet", "--set", "supervisor-file=verse.md")
    edit_with(monkeypatch, 'echo "More." >> "$0"')
    assert agents("edit", "poet").status == 0
    assert (file.parent / "verse.md").read_text() == "Sing.\nMore.\n"


def test_agents_are_removed_and_comments_stay(file: Path) -> None:
    refused = agents("rm", "coder")
    assert (refused.status, "the agent 'lead' may ask 'coder'" in refused.error) == (2, True)
    assert agents("rm", "general").error == (
        f"'general' is not in {file}; to turn it off: vibe-llms config set "
        "agents.general.enabled false"
    )
    for command in ("rm", "edit"):
        assert agents(command, "nobody").status == 66
    assert file.read_text() == ROWS
    removed = agents("rm", "lead", "coder", "lead", "--json")
    assert removed.errors == "removed lead\nremoved coder\n"
    assert removed.json == [{"name": "lead"}, {"name": "coder"}]
    assert [one["name"] for one in agents("list", "--json").json] == ["general", "translator"]
    assert file.read_text().startswith("# Mine.\n")


def test_an_agent_that_appears_meanwhile_is_not_replaced(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_with(monkeypatch, f'echo "[agents.poet]" >> {file}; echo Mine. > "$0"')
    outcome = agents("add", "poet", "--edit")
    assert (outcome.status, "it has agents.poet already" in outcome.error) == (78, True)
    assert agents("show", "poet", "--json").json["supervisor"] == ""


def test_templates_of_other_programs_are_imported(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "llm" / "templates"
    folder.mkdir(parents=True)
    (folder / "good.yaml").write_text("system: Be $tone.\ndefaults: {tone: good}")
    (folder / "some.yaml").write_text("{system: Hi, functions: 'import os; os._exit(9)'}")
    (folder / "bad.yaml").write_text("promt: x")
    monkeypatch.setenv("LLM_USER_PATH", str(folder.parent))
    monkeypatch.setenv("AICHAT_CONFIG_DIR", str(tmp_path / "none"))
    dry = agents("import", "--dry-run", "--json")
    assert (dry.status, dry.json["dry_run"], file.read_text()) == (1, True, ROWS)
    outcome = agents("import")
    assert (outcome.status, outcome.output) == (1, "1 imported, 1 partly, 1 refused\n")
    lines = outcome.errors.splitlines()
    assert lines[0] == f"importing from {folder}"
    assert lines[1].startswith(f"refused: {folder / 'bad.yaml'}: it is not a template of llm: Obj")
    assert lines[2] == "imported: good"
    assert lines[3].startswith("partly: some: functions is Python code, which an import never runs")
    assert texts(requested("chat", "-A", "good", "-m", "scripted/demo", "x"))[0] == "Be good."
    (folder / "bad.yaml").unlink()
    again = agents("import", str(folder))
    assert (again.status, again.output) == (0, "2 unchanged\n")
    assert again.errors == "unchanged: good\nunchanged: some\n"
    (folder / "good.yaml").write_text("system: Other.")
    assert agents("import", str(folder / "good.yaml")).status == 1
    forced = agents("import", str(folder / "good.yaml"), "--force", "--json").json
    assert forced["agents"] == [
        {
            "name": "good",
            "program": "llm",
            "source": str(folder / "good.yaml"),
            "status": "imported",
            "row": {"supervisor": "Other."},
            "reasons": [],
        }
    ]
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "none"))
    assert "name a file or a folder: vibe-llms agents import PATH" in agents("import").error


def test_at_a_terminal_the_editor_opens_if_nothing_is_given(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_with(monkeypatch, 'echo "Sing." > "$0"')
    outcome = invoke("agents", "add", "poet", terminals="stdin")
    assert outcome.status == 0
    assert agents("show", "poet", "--json").json["supervisor"] == "Sing."


def test_ctrl_c_ends_the_reading_of_standard_input(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def read(data: bytes) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        # On an event loop, the signal would wait until the read ends.
        ended.append(data)
        return "x"

    monkeypatch.setattr("vibe_llms.cli.agents.read_text", read)
    outcome = invoke("agents", "add", "poet", data=b"x")
    assert (outcome.status, ended, file.read_text()) == (130, [], ROWS)
