"""The commands on models and providers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import invoke, teach
from tests.fakes.anthropic import FakeAnthropic, failure
from tests.fakes.ollama import FakeOllama
from vibe_llms.providers import local_servers

_OPUS = {
    "id": "claude-opus-4-5",
    "type": "model",
    "display_name": "Claude Opus 4.5",
    "created_at": "x",
}


def fail_listing(server: FakeAnthropic, monkeypatch: pytest.MonkeyPatch) -> None:
    respond = server.respond
    monkeypatch.setattr(
        server,
        "respond",
        lambda request: (
            failure(401, "authentication_error")
            if request.path.startswith("/v1/models")
            else respond(request)
        ),
    )


def test_all_models_that_can_be_used_are_listed(claude: FakeAnthropic) -> None:
    claude.models = [_OPUS]
    outcome = invoke("models")
    assert outcome.status == 0
    assert outcome.output.splitlines() == [
        "anthropic/claude-opus-4-5  Claude Opus 4.5",
        "scripted/demo  a script, not a model",
    ]
    assert invoke("models", "scripted").output.splitlines() == outcome.output.splitlines()[1:]
    assert invoke("models", "-q", "OPUS").output.splitlines() == outcome.output.splitlines()[:1]
    (one,) = invoke("models", "anthropic", "--json").json
    assert one["model"] == "anthropic/claude-opus-4-5"
    assert one["title"] == "Claude Opus 4.5"


def test_a_server_that_fails_does_not_hide_the_others(
    claude: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_listing(claude, monkeypatch)
    outcome = invoke("models")
    assert outcome.status == 77
    assert outcome.output.startswith("scripted/demo")
    assert outcome.error
    assert invoke("models", "anthropic").status == 77
    assert invoke("models", "anthropic").output == ""
    assert len(invoke("models", "--json").json) == 1


def test_an_unknown_model_is_an_error() -> None:
    assert "no models" in invoke("models", "-q", "nonesuch").errors
    assert invoke("models", "-q", "nonesuch", "--json").output == "[]\n"
    outcome = invoke("models", "nonesuch")
    assert (outcome.status, outcome.error.startswith("provider ")) == (66, True)
    assert invoke("models", "scripted", "x").status == 2
    assert invoke("models", "default", "scripted/demo", "x").status == 2


def test_the_default_model_is_printed_and_set(home: Path) -> None:
    outcome = invoke("models", "default")
    assert outcome.output == "scripted/demo\n"
    assert "no key is set" in outcome.errors
    assert invoke("models", "default", "anthropic/claude-opus-4-5").status == 0
    assert invoke("models", "default") == (0, "anthropic/claude-opus-4-5\n", "")
    assert (home / "config.toml").read_text() == 'default-model = "anthropic/claude-opus-4-5"\n'
    for wrong in ("nope/x", "anthropic/", "scripted/nope"):
        assert invoke("models", "default", wrong).status == 66
    assert invoke("models", "default").output == "anthropic/claude-opus-4-5\n"


def test_the_providers_and_what_they_lack_are_listed(claude: FakeAnthropic) -> None:
    claude.models = [_OPUS]
    lines = invoke("providers").output.splitlines()
    states = [line.split(None, 1) for line in lines]
    assert (states[0], states[-1]) == (["anthropic", "ready"], ["scripted", "needs no key"])
    assert ["openai", "no key; run: vibe-llms keys set openai"] in states
    assert ["ollama", "needs no key; at http://127.0.0.1:9 (OLLAMA_HOST)"] in states
    outcome = invoke("providers", "--check")
    lines = outcome.output.splitlines()
    assert lines[0].endswith("ready, 1 models")
    # It has not been started, which is no failure.
    assert any("needs no key; server is not running" in line for line in lines)
    assert outcome.status == 0
    rows = invoke("providers", "--json").json
    assert [row["name"] for row in rows] == [line.split()[0] for line in lines]
    assert set(rows[0]) == {
        *("name", "module", "default_model", "credential", "present", "problem"),
        *("address", "variable"),
    }


def test_a_provider_without_a_key_says_how_to_give_one(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        '[providers.broken]\nmodule = "nonesuch"\n'
        '[providers.managed]\nmodule = "vibe_llms.providers.scripted"\ncredential = "package"\n'
    )
    lines = dict(line.split(None, 1) for line in invoke("providers").output.splitlines())
    assert lines["anthropic"] == "no key; run: vibe-llms keys set anthropic"
    assert lines["broken"].startswith("cannot be used: ")
    assert lines["managed"] == "uses the credentials of its package"


def test_a_server_that_fails_its_check_gives_the_status(
    claude: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_listing(claude, monkeypatch)
    outcome = invoke("providers", "--check")
    assert outcome.status == 77
    assert outcome.output.splitlines()[0].startswith("anthropic        cannot be used: ")
    assert outcome.output.splitlines()[-1].endswith("ready, 1 models")
    assert invoke("providers").status == 0


def test_a_server_of_ones_own_that_does_not_run_is_no_failure(home: Path) -> None:
    own = ("vllm", "lmstudio", "llamacpp-server")
    home.mkdir()
    (home / "config.toml").write_text(
        "".join(f'[providers.{name}]\nbase-url = "http://127.0.0.1:9/v1"\n' for name in own)
    )
    outcome = invoke("models")
    assert (outcome.status, outcome.errors) == (0, "")
    assert outcome.output.startswith("scripted/demo")
    checked = invoke("providers", "--check")
    assert checked.status == 0
    states = dict(line.split(None, 1) for line in checked.output.splitlines())
    assert {states[name] for name in own} == {"needs no key; server is not running"}
    assert invoke("doctor").status == 0
    assert invoke("models", "default").output == "scripted/demo\n"
    # If one is named, the error is shown.
    assert invoke("models", "vllm").status == 69


def test_a_server_without_a_key_need_not_be_running() -> None:
    outcome = invoke("models")
    assert (outcome.status, outcome.errors) == (0, "")
    assert outcome.output == "scripted/demo  a script, not a model\n"
    outcome = invoke("models", "ollama")
    assert outcome.status == 69
    assert "Start it: ollama serve" in outcome.error
    assert invoke("doctor").status == 0


def test_the_models_of_a_running_server_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOllama() as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url.removeprefix("http://"))
        lines = invoke("models").output.splitlines()
        assert lines[0] == "ollama/qwen3:8b  qwen3 8.2B Q4_K_M"
        assert "ollama           ready, 1 models" in invoke("providers", "--check").output
        # The search for local servers is off in tests.
        assert invoke("models", "default").output == "scripted/demo\n"
        monkeypatch.setenv("VIBE_LLMS_LOCAL_SERVERS", "1")
        monkeypatch.setattr(local_servers, "SEARCH_SECONDS", 20.0)
        for name in ("VLLM", "LMSTUDIO", "LLAMACPP_SERVER"):
            monkeypatch.setenv(f"VIBE_LLMS_PROVIDERS__{name}__BASE_URL", "http://127.0.0.1:9/v1")
        outcome = invoke("models", "default")
        assert outcome.output == "ollama/qwen3:8b\n"
        assert "no key is set, so ollama/qwen3:8b answers, from the server at" in outcome.errors
        assert invoke("models", "default", "--json").json["model"] == "ollama/qwen3:8b"


def test_programs_get_the_default_as_json(home: Path) -> None:
    shown = invoke("models", "default", "--json")
    assert (shown.json["model"], shown.errors) == ("scripted/demo", "")
    assert "no key is set" in shown.json["note"]
    outcome = invoke("models", "default", "scripted/demo", "--json")
    assert (outcome.json, outcome.errors) == ({"model": "scripted/demo", "note": ""}, "")
    assert invoke("models", "default", "--json").json == {"model": "scripted/demo", "note": ""}


def test_the_default_is_stored_with_its_provider(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-x")
    assert invoke("models", "default", "opus-5-5").errors == (
        "default-model is anthropic/claude-opus-5-5\n"
    )
    assert 'default-model = "anthropic/claude-opus-5-5"' in (home / "config.toml").read_text()


def test_a_learned_window_is_listed_with_its_day(home: Path) -> None:
    assert "learned-window" not in invoke("models", "scripted", "--json").json[0]
    teach(home)
    assert invoke("models", "scripted").output == (
        "scripted/demo  a script, not a model (learned 2026-11-27: accepts 8,192 tokens)\n"
    )
    (one,) = invoke("models", "scripted", "--json").json
    assert one["learned-window"] == {
        "tokens": 8_192,
        "created": "2026-11-27",
        "words": "scripted: too long",
    }
    teach(home, declared=131_072)
    assert "accepts 8,192 tokens, not 131,072)" in invoke("models", "scripted").output


def test_a_learned_window_is_forgotten(home: Path) -> None:
    teach(home)
    outcome = invoke("models", "forget", "scripted/nope")
    assert outcome.status == 2
    assert "'scripted/nope'; learned are those of scripted/demo" in outcome.errors
    assert invoke("models", "forget", "scripted/demo") == (
        *(0, ""),
        "forgot that scripted/demo accepts 8,192 tokens\n",
    )
    assert "learned" not in invoke("models", "scripted").output
    teach(home)
    assert invoke("models", "forget", "--all").status == 0
    assert invoke("models", "forget", "--all").errors == "no context window was learned\n"
    assert "none is learned" in invoke("models", "forget", "scripted/demo").errors


def test_programs_get_the_forgotten_windows_as_json(home: Path) -> None:
    teach(home)
    outcome = invoke("models", "forget", "scripted/demo", "--json")
    assert outcome.json == [{"model": "scripted/demo", "tokens": 8_192}]
    assert (outcome.status, outcome.errors) == (0, "")
    assert invoke("models", "forget", "--all", "--json").json == []


@pytest.mark.parametrize(
    "words",
    [
        ["forget"],
        ["forget", "scripted/demo", "--all"],
        ["forget", "scripted/demo", "x"],
        ["--all"],
        ["scripted", "--all"],
        ["forget", "--all", "-q", "demo"],
        ["default", "-q", "demo"],
    ],
)
def test_forgetting_needs_a_model_or_all(words: list[str]) -> None:
    assert invoke("models", *words).status == 2


def test_a_damaged_file_of_learned_windows_is_reported(home: Path) -> None:
    home.mkdir()
    (home / "learned-windows.json").write_text("{")
    outcome = invoke("models", "scripted")
    assert outcome.status == 0
    assert outcome.output.startswith("scripted/demo")
    assert "learned-windows.json is damaged" in outcome.errors
