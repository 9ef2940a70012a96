"""The options of `chat`: what is said, in which conversation, shown how."""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Outcome, invoke, run, script_of, write_script
from tests.documents.making import make_pdf
from tests.fakes.anthropic import KEY, FakeAnthropic, failure
from tests.fakes.llamacpp import FakePackage, write_model
from tests.fakes.ollama import FakeOllama
from tests.pictures import make_png
from vibe_llms.testing.wires.anthropic_replies import reply, text_block, text_reply
from vibe_llms.testing.wires.ollama_replies import MODEL as OLLAMA_MODEL

PNG = make_png()
PDF = make_pdf("words").replace(b"\n", b"\n%\xff\xfe\n", 1)
_MODEL = "anthropic/claude-sonnet-4-5"


def messages_of(server: FakeAnthropic) -> list[dict[str, Any]]:
    """The messages of the request that came last."""
    messages: list[dict[str, Any]] = server.requests[-1].json["messages"]
    return messages


def texts_of(message: dict[str, Any]) -> list[str]:
    if isinstance(message["content"], str):
        return [message["content"]]
    return [part["text"] for part in message["content"] if part["type"] == "text"]


def listed() -> list[dict[str, Any]]:
    conversations: list[dict[str, Any]] = invoke("list", "--json").json
    return conversations


def stored(conversation: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = invoke("show", conversation, "--json").json["messages"]
    return messages


def ask(*arguments: str, data: bytes = b"") -> Outcome:
    outcome = invoke("chat", *arguments, data=data)
    assert outcome.status == 0, outcome
    return outcome


def test_words_and_piped_text_are_one_message_the_piped_first(claude: FakeAnthropic) -> None:
    assert ask("What", "is this?", data=b"\n a poem \n\n").output == "Hello.\n"
    assert texts_of(messages_of(claude)[0]) == [" a poem \n\nWhat is this?"]
    ask(data=b"only piped\n")
    assert texts_of(messages_of(claude)[0]) == ["only piped"]
    ask("only words")
    assert texts_of(messages_of(claude)[0]) == ["only words"]


def test_the_default_is_the_first_provider_with_a_key(claude: FakeAnthropic) -> None:
    outcome = ask("hi")
    assert outcome.errors == ""
    assert claude.requests[0].json["model"] == "claude-sonnet-5-5"


def test_without_a_key_the_script_answers_and_says_how_to_choose() -> None:
    outcome = ask("hello")
    assert outcome.output.startswith("Hello! I am scripted/demo")
    assert len(outcome.errors.splitlines()) == 1
    for word in ("-m", "vibe-llms keys set anthropic", "default-model"):
        assert word in outcome.errors
    assert ask("-q", "hello").errors == ""
    assert ask("-m", "scripted/demo", "hello").errors == ""


def test_a_model_may_be_written_with_a_colon_or_be_an_alias(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[aliases]\nfast = "scripted/demo"\n')
    for model in ("scripted/demo", "scripted:demo", "scripted", "fast"):
        assert ask("-m", model, "hello").output.startswith("Hello!")


def test_a_model_may_be_a_part_of_its_name(
    claude: FakeAnthropic, fake_ollama: FakeOllama, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("-m", "sonnet-4-5", "hi")
    assert claude.requests[-1].json["model"] == "claude-sonnet-4-5"
    assert listed()[0]["model"] == "anthropic/claude-sonnet-4-5"
    outcome = invoke("-m", "sonnet", "hi")
    assert (outcome.status, "'sonnet' matches anthropic/claude-" in outcome.error) == (66, True)
    assert "did you mean openai/gpt-5," in invoke("-m", "gtp-5", "hi").error
    # A server on this machine is asked for what nothing else knows.
    monkeypatch.setenv("OLLAMA_HOST", fake_ollama.url)
    part = OLLAMA_MODEL.partition(":")[0]
    ask("-m", part, "hi")
    assert listed()[0]["model"] == f"ollama/{OLLAMA_MODEL}"


def test_an_unknown_model_is_one_readable_line() -> None:
    for name in ("unknown/nothing", "nonesuch", "opnai/gpt-5"):
        outcome = invoke("-m", name, "hi")
        assert outcome.status == 66
        assert len(outcome.error) < 160, outcome.error
        assert repr(name) in outcome.error


@pytest.mark.parametrize(
    ("flags", "system"),
    [(["-s", "Be brief."], "Be brief."), (["--system-file", "system.txt"], "Be långsam.\n")],
)
def test_system_text_goes_before_a_new_conversation(
    claude: FakeAnthropic,
    flags: list[str],
    system: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("system.txt").write_text("Be långsam.\n", "utf-8")
    ask(*flags, "hi")
    (part,) = claude.requests[-1].json["system"]
    assert part["text"] == system


def test_system_text_in_an_old_conversation_holds_from_there_on(claude: FakeAnthropic) -> None:
    ask("hi")
    ask("-c", "-s", "Be brief.", "again")
    assert claude.refusals == []
    roles = [message["role"] for message in stored(listed()[0]["id"])]
    assert roles == ["user", "assistant", "supervisor", "user", "assistant"]


def test_the_last_conversation_goes_on(claude: FakeAnthropic) -> None:
    ask("one")
    ask("two")
    ask("-c", "three")
    assert [texts_of(message) for message in messages_of(claude)] == [
        ["two"],
        ["Hello."],
        ["three"],
    ]
    assert len(listed()) == 2


def test_a_conversation_goes_on_by_identity_prefix_or_name() -> None:
    first = ask("--print-id", "--name", "my talk", "hello").errors.splitlines()[-1]
    ask("hello")
    for wanted in (first, first[:4], "my talk"):
        ask("--cid", wanted, "and again")
    assert len(stored(first)) == 8
    assert next(one for one in listed() if one["id"] == first)["name"] == "my talk"


def test_a_conversation_that_is_not_there_is_named() -> None:
    outcome = invoke("-c", "hi")
    assert (outcome.status, outcome.error) == (66, "no conversation to continue yet")
    ask("--name", "twin", "hello")
    ask("--name", "twin", "hello")
    outcome = invoke("--cid", "twin", "hi")
    assert outcome.status == 66
    assert "matches 2 conversations" in outcome.error
    outcome = invoke("--cid", "nonesuch", "hi")
    assert outcome.status == 66
    assert "vibe-llms list" in outcome.error
    assert len(listed()) == 2


def test_a_fork_goes_on_and_the_other_stays_as_it_is(claude: FakeAnthropic) -> None:
    ask("-m", "scripted/demo", "--name", "root", "hello")
    before = stored("root"), invoke("show", "root", "--json").json["model"]
    ask("--cid", "root", "--fork", "--name", "branch", "-m", _MODEL, "go on")
    assert (stored("root"), invoke("show", "root", "--json").json["model"]) == before
    assert stored("branch")[:2] == before[0]
    assert len(stored("branch")) == 4
    branch = next(one for one in listed() if one["name"] == "branch")
    assert branch["forked_from"] == next(one["id"] for one in listed() if one["name"] == "root")
    assert branch["model"] == _MODEL
    assert texts_of(messages_of(claude)[-1]) == ["go on"]


def test_a_fork_is_not_made_for_a_model_that_there_is_not() -> None:
    ask("hello")
    assert invoke("-c", "--fork", "-m", "nope/x", "hi").status == 66
    assert len(listed()) == 1


def test_a_model_that_is_given_stays_with_the_conversation(claude: FakeAnthropic) -> None:
    ask("-m", "scripted/demo", "hello")
    ask("-c", "-m", _MODEL, "hi")
    ask("-c", "hi")
    assert len(claude.requests) == 2
    assert listed()[0]["model"] == _MODEL


def test_nothing_is_kept_without_saving(claude: FakeAnthropic, home: Path) -> None:
    outcome = ask("-n", "--print-id", "--json", "hi")
    assert outcome.json["conversation"] is None
    assert outcome.errors == ""
    assert not (home / "conversations").exists() or not list((home / "conversations").iterdir())
    long = "long " * 1000
    ask("--name", "kept", "-a", "-", "-m", _MODEL, "look", data=PNG)
    ask("-c", long)
    before = stored("kept")
    ask("-n", "-c", "go on")
    assert stored("kept") == before
    assert len(listed()) == 1
    said = messages_of(claude)
    assert texts_of(said[2]) == [long.strip() + " "] or texts_of(said[2]) == [long]
    assert said[0]["content"][0]["source"]["data"] == base64.b64encode(PNG).decode()
    assert texts_of(said[4]) == ["go on"]
    assert claude.refusals == []


def test_arguments_that_are_no_text_are_repaired_with_a_note() -> None:
    outcome = run("chat", "-m", "scripted/demo", "--name", b"n\xff", b"caf\xe9")
    assert outcome.status == 0
    assert "U+FFFD" in outcome.errors
    (one,) = listed()
    assert stored(one["id"])[0]["contents"][0]["data"] == "caf\ufffd"
    assert run("-q", "-m", "scripted/demo", b"caf\xe9").errors == ""


def test_a_file_whose_name_is_no_text_can_be_given(tmp_path: Path) -> None:
    path = bytes(tmp_path) + b"/caf\xe9.txt"
    with open(path, "wb") as file:
        file.write(b"words")
    assert run("-m", "scripted/demo", "-f", path, "-a", path, "what?").status == 0
    assert stored(listed()[0]["id"])[0]["title"] == "caf\ufffd.txt"


@pytest.mark.parametrize(
    ("arguments", "data"), [((), b""), (("",), b""), ((" ",), b"\n\n"), (("chat", "  "), b"")]
)
def test_an_empty_message_is_refused(arguments: tuple[str, ...], data: bytes) -> None:
    outcome = invoke(*arguments, data=data)
    assert outcome.status == 2
    assert outcome.error == "the message is empty"
    assert invoke(*arguments, "--json", data=data).json["error"]["kind"] == "request-error"


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["-a", "/nonesuch"], 66, "No such file"),
        (["-a", "/"], 66, "Is a directory"),
        (["-f", "/nonesuch"], 66, "No such file"),
        (["--at", "/dev/null", "image/png"], 66, "not a regular file"),
        (["--at", __file__, "nonsense"], 66, "not a MIME type"),
        (["-a", "https://e.org/a"], 66, "--at https://e.org/a image/png"),
        (["-a", "-"], 66, "standard input is empty"),
        (["--system-file", "/nonesuch"], 66, "No such file"),
        (["-m", "nope/x"], 66, "provider 'nope' not found; see: vibe-llms providers"),
        (["-m", "scripted/nope"], 66, "write the path of a script"),
        (["-o", "warmth", "1"], 2, "known controls: effort"),
        (["-o", "temperature", "hot"], 2, "temperature"),
        (["-c", "--cid", "x"], 2, "exclude each other"),
        (["-s", "x", "--system-file", "y"], 2, "exclude each other"),
        (["--json", "--jsonl"], 2, "exclude each other"),
        (["-x", "--xl"], 2, "exclude each other"),
        (["--fork"], 2, "--fork needs"),
        (["-c", "--name", "x"], 2, "vibe-llms rename"),
        (["--key", "k"], 2, "-m provider/model"),
        (["--key", "k", "-c"], 66, "no conversation to continue yet"),
        (["--set", "retries"], 2, "--set needs KEY=VALUE, not 'retries'"),
        (["--set", "=1"], 2, "--set needs KEY=VALUE"),
        (["--gpu-layers", "-2"], 2, "not in the range"),
        (["-m", "scripted", "--gpu-layers", "1"], 78, "key 'gpu-layers': unknown key"),
        (["-m", "anthropic/claude-sonnet-4-5"], 77, "vibe-llms keys set anthropic"),
        (["-m", "anthropic/claude-sonnet-4-5", "--key", "a b"], 78, "white space"),
    ],
)
def test_a_wrong_option_is_one_line_and_nothing_is_kept(
    flags: list[str], status: int, words: str
) -> None:
    outcome = invoke(*flags, "hi")
    assert outcome.status == status, outcome
    assert words in outcome.error
    if "--jsonl" not in flags:
        reported = invoke(*flags, "--json", "hi").json["error"]
        assert reported["status"] == status
        assert words in reported["message"]
    assert listed() == []


def test_controls_reach_the_model(claude: FakeAnthropic) -> None:
    ask("-m", _MODEL, "-o", "output-tokens", "50", "-o", "stop", "A", "-o", "stop", "B", "hi")
    body = claude.requests[-1].json
    assert (body["max_tokens"], body["stop_sequences"]) == (50, ["A", "B"])
    ask("-m", _MODEL, "--no-stream", "hi")
    assert not claude.requests[-1].json.get("stream")


def test_a_key_can_be_given_for_once(
    claude: FakeAnthropic, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    ask("-m", _MODEL, "--key", KEY, "hi")
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f'default-model = "smart"\n[aliases]\nsmart = "{_MODEL}"\n')
    ask("--key", KEY, "hi")
    ask("-m", "smart", "--key", KEY, "hi")
    assert len(claude.requests) == 3
    outcome = invoke("--key", "canary-wrong-key-0123", "hi")
    assert outcome.status == 77
    assert "canary" not in outcome.errors


def test_keys_of_the_row_can_be_set_for_once(
    claude: FakeAnthropic, fake_llamacpp: FakePackage, tmp_path: Path
) -> None:
    write_model(tmp_path / "tiny.gguf")
    model = f"llamacpp/{tmp_path}/tiny.gguf"
    ask("-m", model, "--context-size", "2048", "--gpu-layers", "-1", "--set", "threads=3", "hi")
    loaded = fake_llamacpp.loaded[-1].parameters
    assert (loaded["n_ctx"], loaded["n_gpu_layers"], loaded["n_threads"]) == (2048, -1, 3)
    # Also where the model is that of the conversation.
    ask("-c", "--context-size", "4096", "and?")
    assert fake_llamacpp.loaded[-1].parameters["n_ctx"] == 4096
    ask("-m", "anthropic/claude-sonnet-4-5", "--set", "controls.output-tokens=77", "hi")
    assert claude.requests[-1].json["max_tokens"] == 77
    ask("-c", "--key", KEY, "--set", "controls.output_tokens=78", "hi")
    assert claude.requests[-1].json["max_tokens"] == 78


def test_a_request_is_shown_instead_of_sent(claude: FakeAnthropic, home: Path) -> None:
    outcome = ask("-m", _MODEL, "--dry-run", "-s", "Be brief.", "hi")
    assert outcome.json["model"] == "claude-sonnet-4-5"
    assert KEY not in outcome.output + outcome.errors
    assert claude.requests == []
    assert not list(home.glob("conversations/*"))
    clean = invoke("--dry-run", "-m", "scripted/demo", "a\u202eb", terminals="stdout")
    assert "\u202e" not in clean.output


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        (["-a", "{folder}/sound.mp3"], 2),
        (["-a", "{folder}/nonesuch.png"], 66),
        (["-o", "temperature", "0.5"], 2),
        (["-o", "effort", "enormous"], 2),
        (["-o", "tool-choice", "nonesuch"], 2),
        (["-o", "bogus", "1"], 2),
        (["--schema", '{"type": "objct"}'], 2),
        (["-T", "nonesuch"], 78),
        (["-m", "openai/gpt-6"], 77),
        (["--cid", "nonesuch"], 66),
    ],
)
def test_what_would_be_refused_is_refused_by_a_dry_run(
    claude: FakeAnthropic, tmp_path: Path, home: Path, flags: list[str], status: int
) -> None:
    (tmp_path / "sound.mp3").write_bytes(b"ID3\x03\0\0\0\0\0\x0a" + b"\0" * 100)
    flags = [flag.replace("{folder}", str(tmp_path)) for flag in flags]
    given = ("-m", "anthropic/claude-sonnet-5-5", *flags, "hi")
    real, dry = invoke(*given), invoke("--dry-run", *given)
    assert real.status == status, real
    assert dry == real
    assert claude.requests == []


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--no-stream"],
        ["-s", "Be brief.", "-o", "effort", "low"],
        ["-a", "{folder}/dot.png"],
        ["--schema", "name, age int"],
        ["-c"],
        ["-c", "-n"],
        ["-c", "--fork"],
    ],
)
def test_a_dry_run_prints_just_what_is_sent(
    claude: FakeAnthropic, tmp_path: Path, home: Path, flags: list[str]
) -> None:
    (tmp_path / "dot.png").write_bytes(PNG)
    ask("-m", _MODEL, "x" * 5000)
    flags = [flag.replace("{folder}", str(tmp_path)) for flag in flags]
    given = ("-m", "anthropic/claude-sonnet-5-5", *flags, "hi")
    before, (known,) = listed(), claude.requests
    dry = ask("--dry-run", *given)
    assert listed() == before
    assert claude.requests == [known]
    claude.replies = [text_reply('{"name": "a", "age": 1}')]
    ask(*given)
    assert claude.requests[1].json == dry.json


def test_a_dry_run_of_what_may_be_too_long_asks_no_server_to_count(claude: FakeAnthropic) -> None:
    outcome = ask("-m", _MODEL, "--dry-run", "word " * 150_000)
    assert "this may be too long for claude-sonnet-4-5" in outcome.errors
    assert claude.requests == []


@pytest.mark.parametrize("code", ["x = 1\n", "y = 2\n"])
def test_only_code_is_printed(tmp_path: Path, code: str) -> None:
    model = write_script(
        tmp_path, script_of("{ text = '''See:\n```py\nx = 1\n```\nor\n```\ny = 2\n```\n''' }")
    )
    flag = "-x" if code.startswith("x") else "--xl"
    assert ask("-m", model, flag, "code").output == code


def test_usage_and_notes_go_to_stderr(
    claude: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = ask("-u", "hi")
    assert outcome.output == "Hello.\n"
    assert re.fullmatch(
        r"1,020 tokens in \(900 from the cache\), 42 out; about \$0\.00\d\d \(genai-prices .*\)\n",
        outcome.errors,
    )
    # Where no list of prices is installed, or has the model, only the tokens are reported.
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert ask("-u", "hi").errors.endswith("42 out\n")


def test_without_a_price_only_tokens_are_printed(tmp_path: Path) -> None:
    usage = "{ uncached_input_tokens = 3, output_tokens = 4 }"
    model = write_script(tmp_path, script_of("{ text = 'x' }", usage=usage))
    assert ask("-u", "-m", model, "go").errors == "3 tokens in, 4 out\n"
    assert ask("-u", "--json", "-m", model, "go").json["cost"] is None


@pytest.mark.parametrize(
    ("reason", "words"), [("length", "cut off by its length"), ("refused", "refused to answer")]
)
def test_an_end_that_matters_is_noted(tmp_path: Path, reason: str, words: str) -> None:
    model = write_script(tmp_path, script_of("{ text = 'x' }", **{"stop-reason": f"'{reason}'"}))
    assert words in ask("-m", model, "go").errors
    assert ask("-q", "-m", model, "go").errors == ""
    assert ask("--json", "-m", model, "go").json["stop_reason"] == reason


def test_the_reason_of_a_refusal_is_noted(claude: FakeAnthropic) -> None:
    details = {"type": "refusal", "category": "bio", "explanation": None}
    claude.replies = [reply(text_block(0, "I"), stop_reason="refusal", stop_details=details)]
    assert "refused to answer: bio" in ask("hi").errors


def test_one_object_describes_the_turn(claude: FakeAnthropic) -> None:
    outcome = ask("--json", "hi")
    (one,) = listed()
    cost = ask("-u", "--json", "-n", "hi").json["cost"]
    assert cost["dollars"] > 0
    assert cost["unpriced"] == 0
    assert outcome.json == {
        "cost": None,
        "conversation": one["id"],
        "model": "anthropic/claude-sonnet-5-5",
        "text": "Hello.",
        "stop_reason": "finished",
        "usage": {
            "uncached_input_tokens": 20,
            "cache_read_tokens": 900,
            "cache_write_tokens": 100,
            "output_tokens": 42,
        },
    }
    assert outcome.errors == ""


def test_lines_have_the_events_and_a_failure(claude: FakeAnthropic) -> None:
    outcome = ask("--jsonl", "hi")
    events = [line for line in outcome.output.splitlines() if line]
    assert '"event":"message-started"' in events[0].replace(" ", "")
    assert '"event":"turn-ended"' in events[-1].replace(" ", "")
    claude.replies = [failure(400, "invalid_request_error", "no")]
    outcome = invoke("--jsonl", "hi")
    assert '{"error": {"kind": "request-refused"' in outcome.output.splitlines()[-1]


_FAILURES = [
    (401, "authentication_error", 77, "credential-refused"),
    (402, "billing_error", 75, "payment-required"),
    (404, "not_found_error", 66, "model-unavailable"),
    (413, "request_too_large", 1, "request-too-large"),
    (429, "rate_limit_error", 75, "rate-limited"),
    (529, "overloaded_error", 69, "provider-overloaded"),
]


@pytest.mark.parametrize(("status", "kind", "code", "name"), _FAILURES)
def test_a_refusal_of_a_server_has_its_status(
    claude: FakeAnthropic, status: int, kind: str, code: int, name: str
) -> None:
    claude.replies = [failure(status, kind, "for a reason", headers={"retry-after": "90"})] * 4
    outcome = invoke("--json", "--print-id", "hi")
    assert outcome.status == code, outcome
    assert outcome.json["error"]["kind"] == name
    assert outcome.error
    # What was said is kept, and can be asked again.
    (one,) = listed()
    assert name == "request-too-large" or one["id"] in outcome.errors
    claude.replies = [text_reply("Now.")]
    assert ask("-c", "again").output == "Now.\n"


def test_an_absent_server_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBE_LLMS_PROVIDERS__ANTHROPIC__BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("VIBE_LLMS_STREAM__RETRIES", "0")
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    outcome = invoke("--json", "hi")
    assert outcome.status == 69
    assert outcome.json["error"]["kind"] == "provider-unreachable"
    assert KEY not in outcome.errors + outcome.output


def test_a_cut_reply_is_kept_and_reported(tmp_path: Path) -> None:
    model = write_script(tmp_path, script_of("{ text = 'Half an answ' }", "{ cut = true }"))
    outcome = invoke("-m", model, "go")
    assert (outcome.status, outcome.output) == (69, "Half an answ\n")
    assert outcome.error
    reply = stored(listed()[0]["id"])[-1]
    assert reply["contents"][0]["data"] == "Half an answ"
    assert reply["ending"]["interrupted"] is True


@pytest.mark.parametrize("flag", ["--json", "--jsonl", "-x", "--xl", "--dry-run"])
def test_options_for_a_single_answer_need_a_prompt(flag: str) -> None:
    outcome = invoke("chat", flag, terminals="stdin stdout")
    assert outcome.status == 2
    assert "a prompt." in outcome.error


def test_a_repaired_conversation_is_reported(home: Path) -> None:
    ask("--name", "torn", "hello")
    (messages,) = home.glob("conversations/*/messages.jsonl")
    with messages.open("ab") as file:
        file.write(b'{"role":"user","ident')
    for flags in (["-n"], ["--fork"], []):
        outcome = ask(*flags, "--cid", "torn", "hello")
        assert outcome.output.startswith("Hello!")
        assert "note: " in outcome.errors, flags


def test_a_key_is_not_sent_to_the_provider_whose_own_key_was_found(
    claude: FakeAnthropic, home: Path
) -> None:
    # The row with a key would answer, but the key may be another provider's.
    outcome = invoke("--key", "sk-of-another-0123456789", "hi")
    assert outcome.status == 2
    assert "--key needs a model: -m provider/model" in outcome.error
    assert claude.requests == []
    home.mkdir()
    (home / "config.toml").write_text(f'default-model = "{_MODEL}"\n')
    assert invoke("--key", KEY, "hi").status == 0


@pytest.mark.parametrize("credential", ["none", "package"])
def test_a_key_that_would_not_be_sent_is_an_error(credential: str, home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(f'[providers.openai]\ncredential = "{credential}"\n')
    outcome = invoke("--key", KEY, "-m", "openai/gpt-5.5", "hi")
    assert outcome.status == 2
    assert f"--key is not used: [providers.openai] has credential = '{credential}'" in outcome.error
    options = ("--set", "credential=key", "--dry-run", "--key", KEY)
    assert invoke(*options, "-m", "openai/gpt-5.5", "hi").status == 0


@pytest.mark.parametrize(
    "model", ["anthropic/claude-sonnet-5-5", "openai/gpt-5.5", "openai-chat/gpt-5.5"]
)
def test_a_dry_run_names_the_size_of_data_and_leaves_words_as_they_are(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    data = PNG + bytes(range(256)) * 8
    (tmp_path / "picture.png").write_bytes(data)
    word = "x" * 400
    outcome = invoke("--dry-run", "-m", model, "-a", str(tmp_path / "picture.png"), word)
    assert f"… ({len(data):,} bytes of base64)" in outcome.output
    assert base64.b64encode(data).decode() not in outcome.output
    assert f'"{word}"' in outcome.output
    assert len(outcome.output) < 1500
    assert outcome.json
