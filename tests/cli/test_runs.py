"""The command `runs`, and `chat --detach`: turns that go on when the command has ended."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import invoke, run
from tests.cli.terminal import PROMPT, Terminal
from vibe_llms.cli import runs

pytestmark = pytest.mark.usefixtures("warm")

#: An ensemble with an effect, as a plugin has it.
BANK = """
from pathlib import Path

from vibe_llms import FunctionEnsemble
from vibe_llms.conversations.hosts import register_ensemble

bank = FunctionEnsemble("bank")


@bank.register(approval="ask")
def transfer(sum: int, note: str = "") -> str:
    '''Transfer money.'''
    with open(Path(__file__).with_name("transfers"), "a") as file:
        file.write(f"{sum}\\n")
    return f"sent {sum}"


register_ensemble("bank", lambda name, configuration: bank)
"""
SCRIPTS = {
    "talk": '[[replies]]\nwhen = ".*"\nparts = [ { text = "one two three" } ]\n',
    "slow": ('[[replies]]\nwhen = ".*"\nparts = [ { text = "first " }, { stall = true } ]\n'),
    "fail": '[[replies]]\nparts = [ { error = "overloaded" } ]\n',
    "call": (
        '[[replies]]\nparts = [ { invocation = "bank/transfer", arguments = { sum = 3 } } ]\n'
        '[[replies]]\nparts = [ { text = "It is done." } ]\n'
    ),
    "twice": (
        '[[replies]]\nparts = [ { invocation = "bank/transfer", arguments = { sum = 3 } }, '
        '{ invocation = "bank/transfer", arguments = { sum = 4, note = "\\u001b[2J\\nAda" } } ]\n'
        '[[replies]]\nparts = [ { text = "Both are done." } ]\n'
    ),
}


SCRIPTS["typed"] = (
    '[[replies]]\nparts = [ { text = "Ada, in 1815." } ]\n'
    """[[replies]]\nparts = [ { text = '{"name": "Ada", "born": 1815}' } ]\n"""
)
SCRIPTS["ask"] = (
    '[[replies]]\nparts = [ { invocation = "user/ask", arguments = '
    '{ question = "\\u001b[2JWhich color?", choices = ["red", "blue"] } } ]\n'
    '[[replies]]\nparts = [ { text = "Fine." } ]\n'
)


class Bank:
    """A home with scripts and an ensemble with an effect."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def transfers(self) -> list[int]:
        """What was transferred."""
        file = self._folder / "transfers"
        return [*map(int, file.read_text().split())] if file.exists() else []

    def start(self, script: str) -> str:
        """The identity of a run of a script."""
        tools = ("-T", "bank", "-T", "user")
        outcome = invoke("chat", "-q", "--detach", "-m", f"scripted/{script}", *tools, "Go.")
        assert (outcome.status, outcome.errors) == (0, "")
        return outcome.output.strip()

    def wait(self, identity: str, status: str) -> dict[str, Any]:
        """What is known of a run once it has a status."""
        end = time.monotonic() + 60
        while (found := show(identity))["status"] != status:
            assert time.monotonic() < end, found
            time.sleep(0.05)
        return found


def show(identity: str) -> dict[str, Any]:
    shown: dict[str, Any] = invoke("runs", "show", identity, "--json").json
    return shown


@pytest.fixture
def bank(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    home.mkdir(parents=True, exist_ok=True)
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "bank.py").write_text(BANK)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    paths = {name: home / f"{name}.toml" for name in SCRIPTS}
    for name, path in paths.items():
        path.write_text(SCRIPTS[name])
    scripts = "".join(f"{name} = {json.dumps(str(path))}\n" for name, path in paths.items())
    (home / "config.toml").write_text(
        f'[providers.scripted.scripts]\n{scripts}\n[ensembles.bank]\nmodule = "bank"\n'
        "[runs]\nlease-seconds = 1\n[stream]\nretries = 0\n"
    )
    yield Bank(folder)
    for left in invoke("runs", "list", "--status", "unfinished", "--json").json:
        invoke("runs", "cancel", left["id"])


def test_a_detached_turn_is_worked_on_in_the_background(bank: Bank, home: Path) -> None:
    outcome = run("chat", "--detach", "-m", "scripted/talk", "Count for me.")
    identity = outcome.output.strip()
    assert outcome.errors == f"follow it: vibe-llms runs follow {identity}\n"
    followed = invoke("runs", "follow", identity[:6])
    assert (followed.status, followed.output) == (0, "one two three\n")
    (listed,) = invoke("runs", "list", "--json").json
    assert (listed["id"], listed["status"]) == (identity, "completed")
    line = invoke("runs", "list").output
    assert line.startswith(f"{identity}  completed  ")
    assert line.endswith("  Count for me.\n")
    assert invoke("list", "--json").json[0]["id"] == listed["conversation"]
    assert (home / "runs.log").read_text() == ""


def test_a_typed_answer_is_printed_once_it_follows_its_schema(bank: Bank) -> None:
    options = ("chat", "-q", "--detach", "--schema", "name, born int", "-m", "scripted/typed")
    identity = invoke(*options, "Who?").output.strip()
    followed = invoke("runs", "follow", identity)
    assert (followed.status, followed.json) == (0, {"name": "Ada", "born": 1815})
    assert "note: requesting the output again" in followed.errors
    assert invoke("runs", "follow", identity, "--json").json["output"] == followed.json
    assert show(identity)["output"] == followed.json


def test_an_answer_that_never_follows_its_schema_fails_the_run(bank: Bank) -> None:
    options = ("chat", "-q", "--detach", "--schema", "name", "-m", "scripted/talk")
    followed = invoke("runs", "follow", invoke(*options, "Who?").output.strip())
    assert (followed.status, followed.output) == (65, "")
    assert "not valid in 3 attempts" in followed.error


def test_follow_gives_events_with_cursors_and_continues_after_one(bank: Bank) -> None:
    identity = bank.start("talk")
    lines = invoke("runs", "follow", identity, "--jsonl").output.splitlines()
    events = [json.loads(line) for line in lines]
    assert [one["event"] for one in events][-1] == "ended"
    assert "".join(one.get("text", "") for one in events) == "one two three"
    cursor = events[0]["cursor"] + 4
    rest = invoke("runs", "follow", identity, "--jsonl", "--after", str(cursor)).output
    texts = [json.loads(line).get("text", "") for line in rest.splitlines()]
    assert "".join(texts) == "two three"
    whole = invoke("runs", "follow", identity, "--json").json
    assert (whole["text"], whole["stop_reason"]) == ("one two three", "finished")


def test_follow_says_where_events_were_deleted(bank: Bank, home: Path) -> None:
    identity = bank.start("talk")
    invoke("runs", "follow", identity)
    with closing(sqlite3.connect(home / "server" / "runs.sqlite")) as database, database:
        database.execute("delete from events")
    followed = invoke("runs", "follow", identity)
    assert (followed.status, followed.output) == (0, "")
    assert "note: its events were deleted; the reply is in: vibe-llms runs show" in followed.errors
    assert "one two three" in invoke("runs", "show", identity).output
    (line,) = invoke("runs", "follow", identity, "--jsonl").output.splitlines()
    assert json.loads(line)["event"] == "expired"


def test_a_failed_run_has_the_status_of_its_error(bank: Bank) -> None:
    followed = invoke("runs", "follow", bank.start("fail"))
    assert followed.status == 69
    assert "as the script says" in followed.error
    identity = invoke("runs", "list", "--status", "failed", "--json").json[0]["id"]
    told = invoke("runs", "follow", identity, "--json")
    assert (told.status, told.json["status"]) == (69, "failed")
    assert "error" in invoke("runs", "show", identity).output


def test_a_call_is_approved_from_elsewhere(bank: Bank) -> None:
    identity = bank.start("call")
    found = bank.wait(identity, "waiting")
    (approval,) = found["approvals"]
    assert (approval["name"], approval["arguments"]) == ("bank/transfer", '{"sum":3}')
    assert bank.transfers == []
    refused = invoke("runs", "approve", identity)
    assert (refused.status, refused.error) == (2, "not a terminal; use -y to skip the question")
    made = invoke("runs", "approve", identity, "-y", "--json")
    assert made.json == [
        {"invocation": approval["invocation"], "name": "bank/transfer", "allowed": True}
    ]
    followed = invoke("runs", "follow", identity, "-q")
    assert (followed.status, followed.output) == (0, "It is done.\n")
    assert bank.transfers == [3]
    late = invoke("runs", "deny", identity)
    assert late.status == 2
    assert late.error == f"the run {identity} waits for no decision; it is completed"


def test_a_call_is_denied_with_a_reason_for_the_model(bank: Bank) -> None:
    identity = bank.start("call")
    bank.wait(identity, "waiting")
    assert invoke("runs", "deny", identity, "bank/transfer", "--reason", "not today").status == 0
    followed = invoke("runs", "follow", identity)
    assert "not today" in followed.errors
    assert bank.transfers == []


def test_a_terminal_shows_each_call_in_full_before_it_is_approved(bank: Bank) -> None:
    identity = bank.start("twice")
    bank.wait(identity, "waiting")
    with Terminal("runs", "approve", identity, emulated=True) as terminal:
        terminal.expect("The model calls bank/transfer")
        terminal.expect(r"Run bank/transfer\?")
        terminal.enter("y")
        terminal.expect("Ada")
        terminal.expect(r"Run bank/transfer\?")
        terminal.press("c-c")
        assert terminal.wait() == 130
        assert terminal.emulator is not None
        assert "the rest is not decided" in terminal.emulator.rows
        # What the model wrote does not reach the terminal as it is.
        assert "\x1b[2J" not in terminal.output
    bank.wait(identity, "waiting")
    assert invoke("runs", "approve", identity, "-y").status == 0
    assert invoke("runs", "follow", identity).status == 0
    assert bank.transfers == [3, 4]


def test_a_terminal_that_follows_asks_and_ctrl_c_leaves_the_run(bank: Bank) -> None:
    identity = bank.start("call")
    with Terminal("runs", "follow", identity) as terminal:
        terminal.expect(r"Run bank/transfer\?")
        terminal.press("c-c")
        assert terminal.wait() == 130
        again = f"the run is waiting; follow it again: vibe-llms runs follow {identity}"
        assert again in terminal.output.replace("\r\n", "")
    assert show(identity)["status"] == "waiting"
    with Terminal("runs", "follow", identity) as terminal:
        terminal.expect(r"Run bank/transfer\?")
        terminal.enter("y")
        terminal.expect("It is done.")
        assert terminal.wait() == 0
    assert bank.transfers == [3]


def test_a_question_is_answered_from_elsewhere(bank: Bank) -> None:
    identity = bank.start("ask")
    (asked,) = bank.wait(identity, "waiting")["questions"]
    assert [choice for choice, _ in asked["fields"][0]["choices"]] == ["red", "blue"]
    assert f"answer: vibe-llms runs answer {identity}" in invoke("runs", "show", identity).errors
    for words, text in {
        ("green",): "must be one of red, blue",
        (): "not a terminal; give the values, or --decline",
        ("answer=",): "must be one of red, blue",
        ("blue", "--question", "none"): "waits for no answer to 'none'",
        ("blue", "--decline"): "exclude each other",
    }.items():
        refused = invoke("runs", "answer", identity, *words)
        assert refused.status == 2
        assert text in refused.error
    (made,) = invoke("runs", "answer", identity, "blue", "--json").json
    assert (made["id"], made["answered"]) == (asked["id"], "accept")
    followed = invoke("runs", "follow", identity)
    assert (followed.status, followed.output) == (0, "Fine.\n")
    assert "user/ask: blue" in followed.errors
    assert invoke("runs", "answer", identity, "red").status == 2


def test_a_terminal_that_follows_shows_the_form(bank: Bank) -> None:
    identity = bank.start("ask")
    with Terminal("runs", "follow", identity) as terminal:
        terminal.expect("the model asks: answer:")
        terminal.press("c-c")
        assert terminal.wait() == 130
    with Terminal("runs", "answer", identity) as terminal:
        terminal.expect("the model asks: answer:")
        assert "\x1b[2JWhich" not in terminal.output
        terminal.enter("2")
        assert terminal.wait() == 0
    with Terminal("runs", "follow", identity) as terminal:
        terminal.expect("blue")
        terminal.expect("Fine.")
        assert terminal.wait() == 0


def test_a_message_is_added_to_a_run_from_elsewhere(bank: Bank) -> None:
    identity = bank.start("call")
    bank.wait(identity, "waiting")
    added = invoke("runs", "steer", identity, "In euros.")
    assert (added.status, added.output) == (0, "")
    mistake = invoke("runs", "steer", identity, "In \x1b[2Jpounds.", "--json").json
    assert f"runs unsteer {identity} " in added.errors
    queued = show(identity)["queued"]
    assert [one["text"] for one in queued] == ["In euros.", "In \x1b[2Jpounds."]
    assert "In euros." in invoke("runs", "show", identity).output
    taken = invoke("runs", "unsteer", identity, mistake["id"])
    assert (taken.status, "taken back: In" in taken.errors) == (0, True)
    again = invoke("runs", "unsteer", identity, mistake["id"])
    assert (again.status, "not queued" in again.errors) == (2, True)
    empty = invoke("runs", "steer", identity, " ")
    assert (empty.status, "empty" in empty.errors) == (2, True)
    invoke("runs", "approve", identity, "-y")
    followed = invoke("runs", "follow", identity, "-q")
    assert (followed.status, followed.output) == (0, "It is done.\n")
    conversation = show(identity)["conversation"]
    stored = invoke("show", conversation, "--json").json["messages"]
    roles = [one["role"] for one in stored]
    assert roles == ["user", "invocation", "result", "user", "assistant"]
    late = invoke("runs", "steer", identity, "Wait.")
    assert (late.status, "has ended" in late.errors) == (2, True)


def test_ctrl_c_stops_following_and_cancel_ends_the_run(bank: Bank) -> None:
    identity = bank.start("slow")
    with Terminal("runs", "follow", identity) as terminal:
        terminal.expect("first")
        terminal.press("c-c")
        assert terminal.wait() == 130
        assert "the run is running; follow it again" in terminal.output
    assert show(identity)["status"] == "running"
    assert invoke("runs", "cancel", identity).errors == f"{identity} is cancelled\n"
    again = invoke("runs", "cancel", identity, "--json")
    assert (again.status, again.json["status"]) == (0, "cancelled")
    followed = invoke("runs", "follow", identity)
    assert (followed.status, followed.output) == (130, "first \n")
    assert "the run was cancelled" in followed.errors


def test_who_follows_starts_a_process_where_none_works_on_the_run(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "start_worker", lambda _: None)
    identity = bank.start("talk")
    assert show(identity)["status"] == "queued"
    assert invoke("runs", "follow", identity).output == "one two three\n"


def test_a_run_that_was_left_is_taken_over(bank: Bank, home: Path) -> None:
    identity = bank.start("talk")
    bank.wait(identity, "completed")
    # As if its process had been killed long ago, before anything was recorded.
    with sqlite3.connect(home / "server" / "runs.sqlite") as database:
        database.execute("update runs set status = 'running', until = 0")
        database.execute("delete from events")
    database.close()
    assert invoke("runs", "follow", identity).output == "one two three\n"


@pytest.mark.parametrize(
    "options", [["-n"], ["--ta"], ["--key", "k"], ["--set", "a=b"], ["--jsonl"], ["--dry-run"]]
)
def test_what_another_process_would_not_know_is_refused(bank: Bank, options: list[str]) -> None:
    outcome = invoke("chat", "--detach", *options, "-m", "scripted/talk", "Hello")
    assert outcome.status == 2
    assert f"{options[0]} and --detach exclude each other" in outcome.error
    assert invoke("runs", "list", "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["show", "abcd1234"], 66, "run 'abcd1234' not found"),
        (["follow", "abc"], 66, "run 'abc' not found"),
        (["cancel", "../../etc"], 66, "not found"),
        (["approve", "abcd", "-y"], 66, "not found"),
        (["list", "--status", "lost"], 2, "'lost' is not one of"),
        (["follow", "abcd", "--json", "--jsonl"], 2, "exclude each other"),
        (["follow"], 2, "Missing argument 'ID'"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_bad_input_is_one_line(home: Path, arguments: list[str], status: int, text: str) -> None:
    outcome = invoke("runs", *arguments)
    assert outcome.status == status
    assert text in outcome.error


def test_a_list_of_no_runs_creates_nothing(home: Path) -> None:
    outcome = invoke("runs", "list")
    assert (outcome.status, outcome.output) == (0, "")
    assert outcome.errors == "no runs; start one: vibe-llms chat --detach PROMPT\n"
    assert not (home / "server").exists()


def test_the_repl_leaves_an_answer_and_comes_back_to_it(bank: Bank, home: Path) -> None:
    script = home / "slow.toml"
    with Terminal("chat", "-m", "scripted/slow") as terminal:
        terminal.expect(PROMPT)
        terminal.enter("/follow")
        terminal.expect("no background run in this conversation")
        terminal.expect(PROMPT)
        terminal.enter("Count.")
        terminal.expect("first")
        terminal.send("/detach\n")
        terminal.expect("it continues in the background as")
        terminal.expect(PROMPT)
        terminal.enter("More.")
        terminal.expect("is still working on this conversation")
        terminal.expect(PROMPT)
        terminal.enter("/follow")
        terminal.expect("first")
        terminal.press("c-c")
        terminal.expect("/follow shows it again")
        terminal.expect(PROMPT)
        terminal.enter("/runs")
        terminal.expect("running")
        terminal.expect(PROMPT)
        (listed,) = invoke("runs", "list", "--json").json
        invoke("runs", "cancel", listed["id"])
        script.write_text(SCRIPTS["talk"])
        terminal.enter("/new scripted/talk")
        terminal.expect("new conversation")
        terminal.expect(PROMPT)
        terminal.enter("Count.")
        terminal.expect("one two three")
        terminal.expect(PROMPT)
        terminal.enter("/detach")
        terminal.expect("nothing to detach; type /detach while an answer is being written")
        terminal.expect(PROMPT)
        terminal.press("c-d")
        assert terminal.wait() == 0


def test_what_is_typed_while_an_answer_is_written_is_said_next(bank: Bank, home: Path) -> None:
    (home / "slow.toml").write_text(
        '[[replies]]\nwhen = ".*"\n'
        'parts = [ { text = "first " }, { delay-seconds = 3 }, { text = "last" } ]\n'
    )
    with Terminal("chat", "-m", "scripted/slow") as terminal:
        terminal.expect(PROMPT)
        terminal.enter("Count.")
        terminal.expect("first")
        terminal.send("my next message\n")
        terminal.expect("queued: my next message")
        terminal.expect("last")
        assert "sent: my next" not in terminal.output
        terminal.expect("sent: my next message")
        terminal.expect("last")
        terminal.expect(PROMPT)
        terminal.press("c-d")
        assert terminal.wait() == 0
