"""The REPL: its commands with lines that are given, and the whole of it at a terminal."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import invoke, script_of, streams, write_script
from tests.cli.hostile import check_harmless
from tests.cli.terminal import NEXT_PROMPT, PROMPT, Terminal
from tests.fakes import mcp_described
from tests.fakes.anthropic import FakeAnthropic, failure
from tests.pictures import make_png
from vibe_llms.cli import other_programs
from vibe_llms.cli.inputs import PromptInput
from vibe_llms.cli.options import Options, open_conversation
from vibe_llms.cli.prompts import Block, TerminalPrompts
from vibe_llms.cli.repl import Repl, run_repl, unquote
from vibe_llms.cli.repl_commands import COMMANDS, draw_help
from vibe_llms.messages.contents import ImageContent
from vibe_llms.opening import open_session

pytestmark = pytest.mark.usefixtures("warm")

_PNG = make_png()


class Lines:
    """What a person types, given in advance; at its end they leave."""

    def __init__(self, lines: Sequence[str | type[BaseException]]) -> None:
        self._lines = list(lines)
        self.drafts: list[tuple[str, bool]] = []

    async def read(self, draft: str = "", *, edit: bool = False) -> str:
        if draft or edit:
            self.drafts.append((draft, edit))
        line = self._lines.pop(0) if self._lines else EOFError
        if isinstance(line, str):
            return line
        raise line

    def type_ahead(self, text: str) -> None:
        """Give lines before the others."""
        self._lines[:0] = text.splitlines()


def hold(
    *lines: str | type[BaseException],
    said: PromptInput = PromptInput(),
    terminals: str = "",
    **options: Any,
) -> tuple[int, str, str, Repl]:
    """How a REPL ends in which these lines are typed, what it printed, and itself."""

    async def work() -> tuple[int, str, str, Repl]:
        given = Options(**{"model": "scripted/demo", **options})
        with streams(terminals=terminals) as (output, errors):
            async with open_session() as session:
                conversation = await open_conversation(session, given)
                repl = Repl(session, conversation, given, Lines(lines), said)
                return await repl.run(), output.text, errors.text, repl

    return asyncio.run(work())


def texts(repl: Repl) -> list[str]:
    return [getattr(canister, "text", "") for canister in repl.conversation.canisters]


def listed(*options: str) -> list[dict[str, Any]]:
    conversations: list[dict[str, Any]] = invoke("list", "--json", *options).json
    return conversations


def test_lines_are_said_and_answered_until_the_person_leaves() -> None:
    status, output, errors, repl = hold("hello", "", "  ", "forks?")
    assert status == 0
    assert output.startswith("Hello! I am scripted/demo")
    assert "A fork is a copy" in output
    assert texts(repl)[::2] == ["hello", "forks?"]
    assert errors.splitlines() == ["scripted/demo. /help lists the commands, Ctrl-D exits."]


@pytest.mark.parametrize(
    "leave",
    ["/exit", "/quit", "exit", " Quit ", EOFError, "/bye", ".exit", ":q", "quit()", "!exit", "/q"],
)
def test_there_are_several_ways_out(leave: str | type[BaseException]) -> None:
    status, output, _, _ = hold(leave, "hello")
    assert (status, output) == (0, "")


def test_ctrl_c_at_the_prompt_says_how_to_leave() -> None:
    status, output, errors, _ = hold(KeyboardInterrupt, "hello")
    assert status == 0
    assert "Press Ctrl-D or type /exit to exit." in errors
    assert output.startswith("Hello!")


def test_quiet_is_quiet() -> None:
    assert hold("hello", "/rename x", "/fork", quiet=True)[2] == ""


def test_the_help_lists_every_command() -> None:
    errors = hold("/help")[2]
    for name, text in COMMANDS.items():
        assert re.search(rf"^  {name} .*{re.escape(text)}$", f"{errors}", re.MULTILINE), name


def test_the_bare_word_help_is_not_sent() -> None:
    _, output, errors, repl = hold("help", "help me")
    assert draw_help(80) in errors
    assert texts(repl)[::2] == ["help me"]
    assert output.startswith("I am **scripted")


@pytest.mark.parametrize("typed", [".help", "/?", "!help", "help()"])
def test_the_help_of_other_chats_is_ours(typed: str) -> None:
    _, output, errors, _ = hold(typed)
    assert draw_help(80) in errors
    assert output == ""


@pytest.mark.parametrize(
    ("typed", "here"),
    [
        (".model gpt-5", "type /model NAME"),
        (".set temperature 0", "type /set NAME VALUE"),
        (".file report.pdf", "type /file PATH"),
        (".exit session", "type /new"),
        (".macro tidy", "see /help"),
        ("!end", 'type /multi, or """'),
        (":::", 'type """'),
        ("/tokens", "type /usage"),
    ],
)
def test_commands_of_other_chats_are_answered_and_not_sent(typed: str, here: str) -> None:
    _, output, errors, repl = hold(typed)
    assert here in errors
    assert output == ""
    assert not repl.conversation.canisters


@pytest.mark.parametrize(
    "line", [" .model is what?", ".env files are what?", "!important in CSS", ".set\nof two lines"]
)
def test_a_line_that_only_begins_like_a_command_is_sent(line: str) -> None:
    repl = hold(line)[3]
    assert texts(repl)[0] == line


def test_what_is_to_be_typed_in_place_of_other_commands_exists() -> None:
    for typed, here in other_programs.CHAT.items():
        name = here.split(" ")[0].strip(",")
        assert name in {*COMMANDS, '"""', ""}, (typed, here)


def test_every_command_of_the_help_is_one() -> None:
    for name in COMMANDS.keys() - {"/multi"}:
        assert "no command" not in hold(name)[2]


def test_a_block_is_never_a_command() -> None:
    _, _, _, repl = hold(Block("exit"), Block("/help"), "hello")
    assert texts(repl)[::2] == ["exit", "/help", "hello"]


def test_a_slash_can_be_said() -> None:
    _, _, errors, repl = hold("//usr/bin is a path", "/usr/bin is no command")
    assert texts(repl)[0] == "/usr/bin is a path"
    assert "vibe-llms: no command /usr/bin; see /help; // sends a slash" in errors
    assert len(repl.conversation.canisters) == 2


def test_the_model_is_shown_and_changed(claude: FakeAnthropic) -> None:
    _, output, errors, repl = hold(
        "/model", "/model anthropic/claude-sonnet-4-5", "hi", "/model nope/x", "/model scripted"
    )
    assert errors.splitlines()[1:3] == ["scripted/demo", "anthropic/claude-sonnet-4-5"]
    assert "provider 'nope' not found" in errors
    assert output == "Hello.\n"
    assert repl.conversation.model.name == "demo"


def test_system_prompts_are_shown_and_added() -> None:
    _, output, errors, repl = hold("/system", "/system Be brief.", "hello", "/system")
    assert "(no system prompts)" in errors
    assert "(added)" in errors
    assert texts(repl)[0] == "Be brief."
    assert output.endswith("Be brief.\n")


def test_files_go_with_the_next_message(tmp_path: Path) -> None:
    (tmp_path / "two words.png").write_bytes(_PNG)
    _, _, errors, repl = hold(
        f"/file '{tmp_path}/two words.png'", "/file", "/file /nonesuch", "what?", "and?"
    )
    assert "(attached to the next message)" in errors
    assert "/file needs a PATH or URL" in errors
    assert "/nonesuch: cannot be read" in errors
    first, _, second, _ = repl.conversation.canisters
    assert [type(content).__name__ for content in first.contents] == [
        "ImageContent",
        "TextualContent",
    ]
    assert len(second.contents) == 1


def test_a_pattern_attaches_all_its_files(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(_PNG)
    _, _, errors, repl = hold(f"/file {tmp_path}/*.png", "what?")
    assert "(2 files attached to the next message)" in errors
    assert len(repl.conversation.canisters[0].contents) == 3


def test_what_the_options_say_goes_with_the_first_message() -> None:
    said = PromptInput((), (ImageContent(_PNG, "image/png"),))
    repl = hold("what?", "and?", said=said)[3]
    assert len(repl.conversation.canisters[0].contents) == 2
    assert len(repl.conversation.canisters[2].contents) == 1


def test_a_message_that_was_refused_leaves_its_files_for_the_next(claude: FakeAnthropic) -> None:
    said = PromptInput((), (ImageContent(_PNG, "image/png"),))
    _, _, errors, repl = hold(
        "too warm", "now", said=said, model="anthropic/x", options=(("temperature", "9"),)
    )
    # The control is refused before anything is kept, so nothing is lost with it.
    assert errors.count("vibe-llms: ") == 2
    assert repl.conversation.canisters == ()
    assert repl._attached == said.contents


def test_a_fork_an_undo_and_a_second_answer_take_the_place() -> None:
    _, _, errors, repl = hold(
        "hello",
        "forks?",
        "/fork twin",
        "/undo",
        "storage?",
        "/regenerate",
        "/rename new",
        "/rename",
    )
    assert "(continuing in the fork " in errors
    assert "(undone: " in errors
    assert errors.rstrip().endswith("(name: new)")
    assert texts(repl)[::2] == ["hello", "storage?"]
    assert repl.conversation.name == "new"
    # "hello" and "forks?", and the twin as it is now; what was undone is left out.
    assert [(one["name"], one["messages"]) for one in listed()] == [("new", 4), ("", 4)]
    assert len(listed("--all")) == 4


def test_what_is_undone_is_on_the_prompt_again() -> None:
    _, _, errors, repl = hold("hello", "what is it?\nsay", "/undo", "forks?", "/undo 2")
    assert "(undone: 'what is it? say'; vibe-llms list --all still lists it)" in errors
    assert "(undone: 'hello' and 1 more; vibe-llms list --all still lists it)" in errors
    lines = repl._prompts
    assert isinstance(lines, Lines)
    assert lines.drafts == [("what is it?\nsay", False), ("hello", False)]


def test_a_long_message_of_a_resumed_conversation_is_on_the_prompt_again() -> None:
    long = "word " * 1000
    hold(long)
    _, _, errors, repl = hold("/undo", continue_last=True)
    assert "(undone: 'word word" in errors
    lines = repl._prompts
    assert isinstance(lines, Lines)
    assert lines.drafts == [(long, False)]


def test_an_emoji_of_several_characters_is_undone_and_named_as_it_is() -> None:
    family = "👩\u200d👩\u200d👧"
    _, _, errors, _ = hold(f"hello {family}", f"/rename {family}", "/open -1", "/undo", "/undo")
    assert f"(undone: 'hello {family}'; " in errors
    assert "nothing can be undone" in errors
    assert f" '{family}', 2 messages." in errors


def test_a_message_that_got_no_answer_is_asked_again_in_place(claude: FakeAnthropic) -> None:
    claude.replies = [failure(400, "invalid_request_error", "no")]
    _, output, _, repl = hold("one", "/regenerate", model="anthropic/claude-sonnet-4-5")
    assert output == "Hello.\n"
    assert texts(repl) == ["one", "Hello."]
    assert [one["messages"] for one in listed("--all")] == [2]


def test_what_a_message_without_an_answer_carried_goes_with_the_next(
    claude: FakeAnthropic, tmp_path: Path
) -> None:
    claude.replies = [failure(400, "invalid_request_error", "no")]
    path = tmp_path / "a.png"
    path.write_bytes(_PNG)
    _, _, _, repl = hold(f"/file {path}", "one", "two", model="anthropic/claude-sonnet-4-5")
    said, reply = repl.conversation.canisters
    assert len(said.contents) == 2
    assert texts(repl) == ["two", "Hello."]
    assert reply.contents


def test_only_a_number_of_turns_can_be_taken_back() -> None:
    _, _, errors, repl = hold("hello", "/undo x", "/undo 0", "/undo -1", "/undo 7", "/undo 1")
    for wrong in ("'x'", "'0'", "'-1'"):
        assert f"/undo needs a number of turns, not {wrong}" in errors
    assert "only 1 of 7 turns can be undone" in errors
    assert repl.conversation.canisters == ()


def test_the_conversation_and_its_tokens_are_shown() -> None:
    _, output, errors, _ = hold("hello", "/show", "/usage", "/rename")
    assert "1 user " in output
    assert "2 assistant " in output
    assert "0 tokens in, 18 out" in errors
    assert "(name: not set)" in errors


def test_an_old_conversation_is_introduced() -> None:
    identity = invoke("--print-id", "--name", "talk", "hello").errors.splitlines()[-1]
    errors = hold("forks?", conversation="talk", model=None)[2]
    assert errors.startswith(f"scripted/demo, {identity} 'talk', 2 messages. /help")
    assert listed()[0]["messages"] == 4


def test_a_new_conversation_takes_the_place_and_the_other_is_kept() -> None:
    _, _, errors, repl = hold("hello", "/new", "forks?", "/new scripted", "/show", name="first")
    assert "(new conversation with scripted/demo)" in errors
    assert repl.conversation.canisters == ()
    assert [(one["name"], one["messages"]) for one in listed()] == [("", 2), ("first", 2)]
    assert "provider 'nope' not found" in hold("/new nope/x", "hello")[2]


def test_conversations_are_listed_and_opened() -> None:
    invoke("--name", "one", "hello")
    invoke("--name", "two", "forks?")
    _, output, errors, repl = hold(
        "/list", "/list 1", "/list x", "/open", "/open nonesuch", "/open one", "storage?"
    )
    lines = output.splitlines()
    assert [line.rpartition(" ")[2] for line in lines[:3]] == ["two", "one", "two"]
    assert lines[0] == invoke("list", "--limit", "2").output.splitlines()[1]
    assert "/list needs a number of conversations, not 'x'" in errors
    assert "/open needs an ID" in errors
    assert "nonesuch" in errors
    assert "'one', 2 messages." in errors
    assert texts(repl)[::2] == ["hello", "storage?"]
    assert "(no conversations yet)" not in errors


def test_an_empty_list_is_reported() -> None:
    assert "(no conversations yet)" in hold("/list")[2]


def test_a_conversation_is_exported_as_the_command_does_it(tmp_path: Path) -> None:
    for ending in ("md", "html", "json"):
        file = tmp_path / f"two words.{ending}"
        _, _, errors, repl = hold("hello", "/export", f"/export '{file}'", f"/export {tmp_path}")
        assert "/export needs a FILE.html" in errors
        assert f"(written to {file})" in errors
        assert f"{tmp_path} is not a file" in errors
        assert (
            file.read_text()
            == invoke("export", repl.conversation.identity, "-o", "-", "--format", ending).output
        )


def test_what_is_typed_goes_through_the_editor() -> None:
    lines = Lines(["/edit", "hello", "!edit some words", "forks?"])

    async def work() -> None:
        given = Options(model="scripted/demo")
        with streams():
            async with open_session() as session:
                conversation = await open_conversation(session, given)
                await Repl(session, conversation, given, lines).run()

    asyncio.run(work())
    assert lines.drafts == [("", True), ("some words", True)]


def test_the_model_goes_on_from_where_it_stopped(claude: FakeAnthropic) -> None:
    model = "anthropic/claude-sonnet-5-5"
    claude.replies = [failure(400, "invalid_request_error")]
    repl = hold("hi", "/continue", "/continue", model=model)[3]
    # The failed question is asked again; after an answer the model is asked to continue.
    assert texts(repl) == ["hi", "Hello.", "Continue exactly where you stopped.", "Hello."]
    assert "the conversation has no message to answer" in hold("/continue")[2]


def test_answers_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAYLAND_DISPLAY", "DISPLAY", "TMUX"):
        monkeypatch.delenv(name, raising=False)
    _, _, errors, _ = hold(
        "/copy", "python?", "/copy", "/copy code", "/copy x", terminals="stdout stderr"
    )
    copied = [
        base64.b64decode(one).decode() for one in re.findall(r"\x1b\]52;c;([\w+/=]*)\x07", errors)
    ]
    assert "no answer to copy yet" in errors
    assert len(copied) == 2
    assert "```python" in copied[0]
    assert copied[1].startswith("import asyncio")
    assert copied[1] in copied[0]
    assert "/copy code its last code block" in errors
    assert "no clipboard found" in hold("hello", "/copy")[2]


def test_controls_are_set_shown_and_cleared(claude: FakeAnthropic) -> None:
    model = "anthropic/claude-sonnet-5-5"
    _, _, errors, _ = hold(
        "/set",
        "/set effort low",
        "/set output_tokens 77",
        "/set",
        "hi",
        "/set effort",
        "/set effort",
        "/set effort enormous",
        "/set bogus 1",
        "/set temperature 0.5",
        "hi",
        model=model,
    )
    assert "(no controls are set; /set NAME VALUE sets one)" in errors
    assert re.search(r'^effort +"low"$', errors, re.MULTILINE)
    assert re.search(r"^output-tokens +77$", errors, re.MULTILINE)
    assert "'effort' is not set" in errors
    assert "unknown control 'bogus'" in errors
    assert errors.count("vibe-llms: ") == 4
    first, second = (request.json for request in claude.requests)
    assert (first["output_config"], first["max_tokens"]) == ({"effort": "low"}, 77)
    assert (second.get("output_config"), second["max_tokens"]) == (None, 77)


def test_the_context_is_shown() -> None:
    errors = hold("hello", "/context")[2]
    assert re.search(
        r"^about [\d,]+ of 32,768 tokens \(0%, an assumed window", errors, re.MULTILINE
    )
    assert re.search(r"^talk +[\d,]+ █", errors, re.MULTILINE)
    assert "\n2 messages\n" in errors
    assert "compacted at 26,214 tokens" in errors


_CACHED = "\nin total: 120 tokens did not come from the cache, and 1,020 were new (ratio 0.1)\n"


def test_the_context_tells_what_the_cache_held(claude: FakeAnthropic) -> None:
    errors = hold("hello", "/context", model="anthropic/claude-opus-5")[2]
    assert _CACHED in errors


def test_a_conversation_is_compacted_at_the_terminal() -> None:
    said = ["Tell me all about the sea. " * 30] * 9
    errors = hold(*said, "/compact the names of ships", "/context")[2]
    assert "compacted from about" in errors
    assert "of which a digest summarizes" in errors
    assert "too short to be compacted" in hold("hello", "/compact")[2]


def test_the_screen_is_cleared_only_where_there_is_one() -> None:
    assert hold("/clear", terminals="stderr")[2].endswith("\x1b[H\x1b[2J")
    assert "\x1b" not in hold("/clear")[2]


def test_no_error_ends_it(
    claude: FakeAnthropic, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude.replies = [
        failure(400, "invalid_request_error", "no"),
        failure(401, "authentication_error"),
    ]
    status, output, errors, repl = hold("one", "two", "three", model="anthropic/claude-sonnet-4-5")
    assert status == 0
    assert errors.count("vibe-llms: ") == 2
    assert errors.count("(/regenerate tries again; a new message replaces this one)") == 2
    assert output == "Hello.\n"
    # Each message took the place of the one that got no answer.
    assert texts(repl) == ["three", "Hello."]
    assert len(listed()) == 1
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    status, _, errors, _ = hold("one", "/usage", model="anthropic/claude-sonnet-4-5")
    assert status == 0
    assert "vibe-llms keys set anthropic" in errors


def test_not_even_a_bug_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> str:
        raise ZeroDivisionError("what no one foresaw")

    monkeypatch.setattr("vibe_llms.cli.repl.describe_usage", break_down)
    status, output, errors, _ = hold("/usage", "hello")
    assert status == 0
    assert "ZeroDivisionError: what no one foresaw (a bug" in errors
    assert "Traceback" not in errors
    assert output.startswith("Hello!")
    assert "Traceback" in hold("/usage", debug=True)[2]


def test_hostile_names_do_not_drive_the_terminal() -> None:
    status, output, errors, _ = hold(
        "hello \x1b[2J",
        "/rename \x1b]0;x\x07",
        "/show",
        "/model \x9b2J",
        "/\x1b[2J",
        "/file \x1b[2J",
        terminals="stdout stderr",
    )
    assert status == 0
    check_harmless(output)
    check_harmless(errors)


@pytest.mark.parametrize(
    ("typed", "path"),
    [("a b", "a b"), ("'a b'", "a b"), ('"a"', "a"), (r"a\ b", "a b"), ("'", "'"), ("'a", "'a")],
)
def test_paths_are_taken_as_terminals_write_them(typed: str, path: str) -> None:
    assert unquote(typed) == path


def test_it_is_opened_with_what_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines(["hello", "/fork"])
    monkeypatch.setattr(TerminalPrompts, "read", lambda *_, **given: lines.read())
    with streams() as (output, errors):
        assert asyncio.run(run_repl(Options(print_id=True))) == 0
        newest = listed()[0]["id"]
        assert errors.text.splitlines()[0].startswith("note: no key is set")
        assert errors.text.splitlines()[-2:] == [
            f"saved; to continue: vibe-llms chat --cid {newest}",
            newest,
        ]
        assert output.text.startswith("Hello!")
    for options in (Options(no_log=True, print_id=True), Options(quiet=True)):
        lines = Lines(["hello"])
        with streams() as (_, errors):
            assert asyncio.run(run_repl(options)) == 0
            assert "kept" not in errors.text
    assert len(listed()) == 3


# At a terminal.


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_script(
        tmp_path / "scripts",
        script_of("{ text = 'Slowly ' }", "{ delay-seconds = 60.0 }", when="'slow'")
        + script_of("{ text = 'You **said** it.' }"),
    )


def test_a_conversation_is_held_at_a_terminal(model: str, home: Path) -> None:
    with Terminal("chat", "-m", model) as terminal:
        terminal.expect("Ctrl-D exits")
        terminal.expect(PROMPT)
        terminal.enter("hello")
        terminal.expect("said")
        terminal.expect(PROMPT)
        terminal.send("one")
        terminal.press("c-j")
        terminal.send("two")
        terminal.press("alt-enter")
        terminal.enter("three")
        terminal.expect("said")
        terminal.expect(PROMPT)
        terminal.enter('"""')
        terminal.expect(NEXT_PROMPT)
        terminal.enter("block")
        terminal.expect(NEXT_PROMPT)
        terminal.enter('"""')
        terminal.expect("said")
        terminal.expect(PROMPT)
        terminal.send("\x1b[200~pasted\nlines\x1b[201~")
        terminal.press("enter")
        terminal.expect("said")
        terminal.expect(PROMPT)
        terminal.send("/ren")
        terminal.press("tab")
        terminal.expect("ame")
        terminal.enter(" my talk")
        terminal.expect("name: my talk")
        terminal.expect(PROMPT)
        # Clears the line; on an empty one it says how to leave.
        terminal.send("not this")
        terminal.expect("not this")
        terminal.press("c-c")
        terminal.press("c-c")
        terminal.expect("Press Ctrl-D or type /exit to exit")
        terminal.expect(PROMPT)
        terminal.press("c-d")
        terminal.expect("vibe-llms chat --cid")
        assert terminal.wait() == 0
    messages = invoke("show", "my talk", "--json").json["messages"]
    assert [message["contents"][0]["data"] for message in messages[::2]] == [
        "hello", "one\ntwo\nthree", "block", "pasted\nlines",
    ]  # fmt: skip
    assert (home / "history").stat().st_mode & 0o777 == 0o600
    assert "+/rename my talk" in (home / "history").read_text()


def test_ctrl_c_ends_an_answer_and_a_second_one_the_conversation(model: str) -> None:
    with Terminal("chat", "-m", model, "--name", "talk") as terminal:
        terminal.expect(PROMPT)
        terminal.enter("slow")
        terminal.expect("Slowly")
        terminal.press("c-c")
        terminal.expect("the partial answer is kept")
        terminal.expect(PROMPT)
        terminal.enter("hello")
        terminal.expect("said")
        terminal.expect(PROMPT)
        terminal.enter("slow")
        terminal.expect("Slowly")
        terminal.press("c-c")
        # The system makes one signal of two that come at the same time.
        time.sleep(0.1)
        terminal.press("c-c")
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.output
    messages = invoke("show", "talk", "--json").json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 3
    assert [bool(m.get("ending", {}).get("interrupted")) for m in messages[1::2]] == [
        True,
        False,
        True,
    ]
    assert messages[1]["contents"][0]["data"] == "Slowly "


def test_what_was_typed_earlier_comes_back(model: str) -> None:
    for key in ("first time", None):
        with Terminal("chat", "-m", model) as terminal:
            terminal.expect(PROMPT)
            if key is None:
                terminal.press("up")
                terminal.expect("first time")
                terminal.press("enter")
            else:
                terminal.enter(key)
            terminal.expect("said")
            terminal.expect(PROMPT)
            terminal.press("c-d")
            assert terminal.wait() == 0
    assert [one["title"] for one in listed()] == ["first time"] * 2


def test_a_terminal_that_knows_nothing_will_do(model: str) -> None:
    with Terminal("chat", "-m", model, environment={"TERM": "dumb"}) as terminal:
        terminal.expect(PROMPT)
        terminal.enter("hello")
        terminal.expect(r"You \*\*said\*\* it\.")
        terminal.expect(PROMPT)
        terminal.press("c-d")
        assert terminal.wait() == 0
        assert "\x1b[1m" not in terminal.output


def test_answers_can_go_into_a_file_while_the_prompt_is_seen(model: str) -> None:
    with Terminal("chat", "-m", model, pipes={"stdout": subprocess.PIPE}) as terminal:
        terminal.expect(PROMPT)
        terminal.enter("hello")
        terminal.expect(NEXT_PROMPT)
        terminal.press("c-d")
        assert terminal.wait() == 0
        assert terminal.process.stdout is not None
        assert terminal.process.stdout.read() == b"You **said** it.\n"


def test_bytes_that_are_no_text_can_be_typed(model: str) -> None:
    with Terminal("chat", "-m", model) as terminal:
        terminal.expect(PROMPT)
        terminal.send_bytes(b"caf\xe9 and more\r")
        terminal.expect("said")
        terminal.expect(PROMPT)
        terminal.press("c-d")
        assert terminal.wait() == 0
    assert "and more" in listed()[0]["title"]


def configure_server(home: Path, tmp_path: Path) -> Path:
    """Two rows of one server whose tools are described by a file; gives the file."""
    home.mkdir(parents=True, exist_ok=True)
    file = tmp_path / "tools.json"
    tools: list[dict[str, Any]] = [
        {"name": "look", "description": "Look.", "annotations": {"readOnlyHint": True}},
        {"name": "push", "description": "Push."},
    ]
    file.write_text(json.dumps([{**one, "inputSchema": {"type": "object"}} for one in tools]))
    command = json.dumps([sys.executable, mcp_described.__file__, str(file)])
    for name in ("one", "two"):
        with (home / "config.toml").open("a") as config:
            config.write(
                f'[ensembles.{name}]\nmodule = "vibe_llms.ensembles.mcp"\ncommand = {command}\n'
                "open-seconds = 60\nlist-seconds = 60\n"
            )
    return file


def test_tools_are_listed_offered_and_withheld(home: Path, tmp_path: Path) -> None:
    configure_server(home, tmp_path)
    _, _, errors, repl = hold(
        *("/tools", "/tools on two", "/tools off one/push", "/tools off two", "/tools"),
        *("/tools on two/look", "/tools off three", "/tools on", "/tools on a/b"),
        tools=("one",),
    )
    assert list(repl.conversation.invokers) == ["one/look", "two/look"]
    lines = errors.splitlines()
    assert lines[1:4] == [
        "one/look  allow  Look.",
        "one/push  ask    Push.",
        "(not opened: python, images, documents, web, memory, user, two; /tools on NAME opens one)",
    ]
    assert "(two is offered now)" in lines
    assert lines[7:11] == [
        "one/look  allow  Look.",
        "one/push  off",
        "two/look  off",
        "two/push  off",
    ]
    assert "vibe-llms: tool or ensemble 'three' not found; known: one, two," in errors
    assert "/tools on NAME or /tools off NAME switches one" in errors
    assert "tool or ensemble 'a/b' not found" in errors


def test_without_tools_a_hint_is_printed(home: Path) -> None:
    assert (
        "(not opened: python, images, documents, web, memory, user; /tools on NAME opens one)"
        in hold("/tools")[2]
    )
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        "".join(
            f"[ensembles.{name}]\nenabled = false\n"
            for name in ("python", "images", "documents", "web", "memory", "user")
        )
    )
    assert "(no tools; vibe-llms mcp add" in hold("/tools")[2]


def test_a_fork_keeps_what_is_withheld(home: Path, tmp_path: Path) -> None:
    configure_server(home, tmp_path)
    _, _, _, repl = hold("hello", "/tools off one/push", "/fork", tools=("one",))
    assert list(repl.conversation.invokers) == ["one/look"]


def test_a_person_decides_on_tools_for_the_rest_of_the_session(home: Path, tmp_path: Path) -> None:
    file = configure_server(home, tmp_path)
    parts = ["{ invocation = 'one/push' }", "{ text = 'Done.' }"]
    replies = "".join(f"[[replies]]\nparts = [ {part} ]\n" for part in parts * 2)
    model = write_script(tmp_path, replies)
    _, _, errors, repl = hold(
        *("/approve", "go", "/approve allow one/push", "again", "/approve", "/approve deny x"),
        *("/approve perhaps one/push",),
        model=model,
        tools=("one",),
    )
    assert "(no approvals in this session)" in errors
    assert "no user can be asked" in errors
    assert "(one/push runs without asking for the rest of this session)" in errors
    assert "\none/push  allow\n" in errors
    assert "no tool 'x'; see /tools" in errors
    assert "/approve always|allow|ask|deny TOOL sets one" in errors
    assert file.with_name("tools.json.ran").read_text() == "push\n"
    assert repl.conversation.invokers["one/push"].approval == "allow"


def test_approvals_are_listed_and_can_be_revoked(home: Path, tmp_path: Path) -> None:
    configure_server(home, tmp_path)
    replies = "[[replies]]\nparts = [ { invocation = 'one/push', arguments = { n = 1 } } ]\n"
    model = write_script(tmp_path, f"{replies}[[replies]]\nparts = [ {{ text = 'Done.' }} ]\n")
    with Terminal("chat", "-m", model, "-T", "one") as terminal:
        terminal.expect(PROMPT)
        terminal.enter("go")
        terminal.expect(r"Run one/push\?")
        terminal.enter("a")
        terminal.expect("Done.")
        terminal.expect(PROMPT)
        terminal.enter("/approve")
        terminal.expect(r"one/push +always +with \{\"n\":1\}")
        terminal.expect(PROMPT)
        terminal.enter("/approve ask one/push")
        terminal.expect("one/push asks")
        terminal.expect(PROMPT)
        terminal.enter("/approve")
        terminal.expect(r"one/push +ask\r")
        terminal.expect(PROMPT)
        terminal.press("c-d")
        assert terminal.wait() == 0
    assert re.search(r"✓ one/push \{\"n\":1\} → \{\"n\": 1\} \(\d+\.\ds\)", terminal.output)


def test_the_rounds_of_a_turn_can_be_bounded_and_calls_shown_whole(
    home: Path, tmp_path: Path
) -> None:
    configure_server(home, tmp_path)
    text = "x" * 300
    part = f"{{ invocation = 'one/look', arguments = {{ text = '{text}' }} }}"
    model = write_script(tmp_path, f"[[replies]]\nwhen = '.*'\nparts = [ {part} ]\n")
    outcome = invoke("-m", model, "-T", "one", "--cl", "1", "--td", "Go.")
    assert outcome.status == 0
    assert "the turn has had 1 rounds of tool calls (max-rounds)" in outcome.errors
    assert f'  "text": "{text}"\n' in outcome.errors
    (ran, refused) = re.findall(r"^[←✗] one/look.*", outcome.errors, re.MULTILINE)
    assert ran.startswith("←")
    assert "The call was not run: the turn has had 1 rounds of tool calls" in refused
    assert "--cl" in invoke("-m", model, "--cl", "-1", "Go.").errors


@pytest.mark.parametrize("ending", ["interrupted", "failed"])
def test_what_is_typed_during_an_answer_that_ends_early_is_shown_and_not_sent(
    home: Path, tmp_path: Path, ending: str
) -> None:
    last = '{ error = "overloaded" }' if ending == "failed" else '{ text = "never" }'
    script = tmp_path / "slow.toml"
    script.write_text(
        '[[replies]]\nwhen = "Count"\n'
        f'parts = [{{ text = "one " }}, {{ delay-seconds = 3 }}, {last}]\n'
        '[[replies]]\nwhen = ".*"\nparts = [{ text = "You said it." }]\n'
    )
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[stream]\nretries = 0\n[providers.scripted]\nscripts.slow = "{script}"\n'
    )
    with Terminal("chat", "-m", "scripted/slow") as terminal:
        terminal.expect(PROMPT)
        terminal.enter("Count.")
        terminal.expect("one")
        terminal.send("and then\n")
        if ending == "interrupted":
            time.sleep(0.3)
            terminal.press("c-c")
        terminal.expect(r"\(interrupted|vibe-llms: ")
        terminal.expect("and then")
        terminal.press("c-c", "c-d")
        assert terminal.wait() == 0
        assert "You said it" not in terminal.output
    messages = invoke("show", listed()[0]["id"], "--json").json["messages"]
    assert [one["contents"][0]["data"] for one in messages if one["role"] == "user"] == ["Count."]


SLOW = """
[[replies]]
when = "Count"
parts = [{ text = "one " }, { text = "two " }, { text = "three." }]
[[replies]]
when = ".*"
parts = [{ text = "You said it." }]
"""


def test_what_is_typed_during_an_answer_is_added_to_its_turn(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "slow.toml"
    script.write_text(SLOW)
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[providers.scripted]\npace-seconds = 0.3\nscripts.slow = "{script}"\n'
    )
    with Terminal("chat", "-m", "scripted/slow", emulated=True) as terminal:
        assert terminal.emulator is not None
        terminal.expect(PROMPT)
        terminal.enter("Count.")
        terminal.expect("one")
        terminal.send("first line\nsecond line\nnot yet")
        terminal.expect("three")
        terminal.expect("You said it")
        terminal.expect("not yet")
        screen = "\n".join(terminal.emulator.rows)
        terminal.press("enter")
        terminal.expect("You said it")
        terminal.expect(PROMPT)
        terminal.press("c-d")
        assert terminal.wait() == 0
    # The answer stands as if nothing had been typed.
    assert re.search("one.*two.*three.", screen, re.DOTALL)
    for line in ("queued: first line", "queued: second line", "sent: first line"):
        assert line in screen
    messages = invoke("show", listed()[0]["id"], "--json").json["messages"]
    assert [one["contents"][0]["data"] for one in messages if one["role"] == "user"] == [
        "Count.",
        "first line",
        "second line",
        "not yet",
    ]
    roles = [one["role"] for one in messages]
    assert roles == ["user", "assistant", "user", "user", "assistant", "user", "assistant"]


def test_an_added_message_answers_no_question_and_is_sent_after_it(
    home: Path, tmp_path: Path
) -> None:
    file = configure_server(home, tmp_path)
    call = "{ invocation = 'one/push', arguments = { n = 1 } }"
    replies = f"[[replies]]\nparts = [{{ text = 'First ' }}, {{ delay-seconds = 2 }}, {call}]\n"
    model = write_script(tmp_path, f"{replies}[[replies]]\nparts = [ {{ text = 'Done.' }} ]\n")
    with Terminal("chat", "-m", model, "-T", "one") as terminal:
        terminal.expect(PROMPT)
        terminal.enter("go")
        terminal.expect("First")
        terminal.send("y\n")
        terminal.expect("queued: y")
        terminal.expect(r"Run one/push\?")
        terminal.enter("n")
        terminal.expect("sent: y")
        terminal.expect("Done.")
        terminal.expect(PROMPT)
        terminal.press("c-d")
        assert terminal.wait() == 0
    assert not file.with_name("tools.json.ran").exists()
    messages = invoke("show", listed()[0]["id"], "--json").json["messages"]
    roles = [one["role"] for one in messages]
    assert roles == ["user", "assistant", "invocation", "result", "user", "assistant"]


def test_an_added_message_is_listed_and_dropped(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "slow.toml"
    script.write_text(SLOW)
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[providers.scripted]\npace-seconds = 0.5\nscripts.slow = "{script}"\n'
    )
    with Terminal("chat", "-m", "scripted/slow", emulated=True) as terminal:
        terminal.expect(PROMPT)
        terminal.enter("Count.")
        terminal.expect("one")
        terminal.send("first line\nsecond line\n/queue\n/queue 3\n/queue 1\n/rename counted\n")
        terminal.expect("1. first line")
        terminal.expect("2. second line")
        terminal.expect("no queued message 3; there are 2")
        terminal.expect("taken back: first line")
        terminal.expect("three")
        terminal.expect("sent: second line")
        # A command waits for the end of the turn.
        terminal.expect(r"\(name: counted\)")
        terminal.expect(PROMPT)
        terminal.press("c-d")
        assert terminal.wait() == 0
    messages = invoke("show", "counted", "--json").json["messages"]
    texts = [one["contents"][0]["data"] for one in messages if one["role"] == "user"]
    assert texts == ["Count.", "second line"]


def test_code_is_copied_only_if_there_is_some() -> None:
    errors = hold("hello", "/copy code", terminals="stdout stderr")[2]
    assert "the last answer has no code block; /copy copies all of it" in errors
    assert "\x1b]52" not in errors


def test_a_command_with_a_slip_is_suggested() -> None:
    errors = hold("/modle", "/regen", "/Undo", "/frobnicate")[2]
    assert "no command /modle; did you mean /model?; // sends a slash" in errors
    assert "did you mean /regenerate?" in errors
    assert "did you mean /undo?" in errors
    assert "no command /frobnicate; see /help; // sends a slash" in errors


class Typing(Lines):
    """Types behind the draft that is at the prompt."""

    async def read(self, draft: str = "", *, edit: bool = False) -> str:
        return draft + await super().read(draft, edit=edit)


def test_a_command_typed_behind_what_was_undone_is_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.cli.test_repl.Lines", Typing)
    status, _, errors, repl = hold("hello", "forks?", "/undo", "/undo")
    assert status == 0
    assert "(undone: 'forks?'" in errors
    assert "(undone: 'hello'" in errors
    assert texts(repl) == []
    # Another command leaves the draft where it is.
    _, _, _, repl = hold("hello", "/undo", "/usage", "/help", " you", "/undo")
    assert texts(repl) == []
    assert repl._prompts.drafts[-1][0] == "hello you"  # type: ignore[attr-defined]
    _, _, _, repl = hold("hello", "/undo", "/there")
    assert texts(repl)[0] == "hello/there"


def test_a_conversation_that_is_not_saved_says_so() -> None:
    said = "(nothing of this conversation is saved: -n)"
    assert said in hold("hello", no_log=True)[2]
    assert said not in hold("hello", no_log=True, quiet=True)[2]
    options = ("chat", "-m", "scripted/demo", "hello")
    assert said in invoke(*options, "-n", terminals="stdout stderr").errors
    assert said not in invoke(*options, terminals="stdout stderr").errors
    assert invoke(*options, "-n").errors == ""


@pytest.mark.parametrize(
    "typed",
    [
        "forks?/undo",
        "forks? /undo",
        "What are forks?/undo",
        "for/undo",
        "forks!\n/undo",
        "/undoforks?",
        "/undo",
    ],
)
def test_a_second_undo_undoes_the_turn_before_also_behind_a_changed_draft(typed: str) -> None:
    _, output, errors, repl = hold("hello", "forks?", "/undo", typed, "keys?")
    assert "(undone: 'forks?'" in errors
    assert "(undone: 'hello'" in errors
    assert texts(repl)[::2] == ["keys?"]
    assert output.count("A fork is a copy") == 1


def test_a_message_that_only_ends_with_the_command_is_sent() -> None:
    repl = hold("hello", "forks?", "/undo", "What does this do: /undo")[3]
    assert texts(repl)[::2] == ["hello", "What does this do: /undo"]


def test_a_changed_draft_stays_if_nothing_is_left_to_undo() -> None:
    _, _, errors, repl = hold("hello", "/undo", "hello you/undo", "keys?")
    assert errors.count("(undone: ") == 1
    assert isinstance(repl._prompts, Lines)
    assert repl._prompts.drafts[-2:] == [("hello", False), ("hello you", False)]
