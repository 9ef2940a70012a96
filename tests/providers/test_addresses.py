"""Where keys are sent to: the row, `VIBE_LLMS_…`, then the variable of the official package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import invoke
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.events import ignore_events
from vibe_llms.providers.addresses import Address, find_address, survey_given
from vibe_llms.providers.models import HttpClient
from vibe_llms.providers.provider_pool import PROVIDERS, Providers
from vibe_llms.testing import fake_server
from vibe_llms.testing.server import FakeServer

#: Models, and the variables of their packages for the address and for the key.
MODELS = {
    "anthropic/claude-sonnet-5-5": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    "openai/gpt-6.1-sol": ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "openai-chat/gpt-5.5": ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
}
#: Rows, variables of their packages with values, and the addresses that they mean.
PACKAGES = (
    ("anthropic", "ANTHROPIC_BASE_URL", "https://gateway.test", "https://gateway.test"),
    ("openai", "OPENAI_BASE_URL", " https://gateway.test/v1/ ", "https://gateway.test/v1"),
    ("openai-chat", "OPENAI_BASE_URL", "https://gateway.test/v1", "https://gateway.test/v1"),
    ("openai", "OPENAI_API_BASE", "https://gateway.test/v1", "https://gateway.test/v1"),
    ("groq", "GROQ_BASE_URL", "https://gateway.test", "https://gateway.test/openai/v1"),
    ("together", "TOGETHER_BASE_URL", "https://gateway.test/v1", "https://gateway.test/v1"),
    ("ollama", "OLLAMA_HOST", "gateway.test", "http://gateway.test:11434"),
    ("gemini", "GOOGLE_GEMINI_BASE_URL", "https://gateway.test/", "https://gateway.test"),
)
OPENAI = "${OPENAI_BASE_URL:-${OPENAI_API_BASE:-https://api.openai.com/v1}}"
every_model = pytest.mark.parametrize("model", MODELS)


@pytest.fixture
def gateway() -> Iterator[FakeServer]:
    """A server of all interfaces."""
    with fake_server(["Hello."]) as server:
        yield server


def lead(monkeypatch: pytest.MonkeyPatch, model: str, server: FakeServer) -> str:
    """Lead a package to a server by its variables; gives the address."""
    address, key = MODELS[model]
    url = server.environment[address]
    monkeypatch.setenv(address, url)
    monkeypatch.setenv(key, server.key)
    return url


def write(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)


def row_of(model: str) -> str:
    return model.partition("/")[0]


def find(row: str) -> str:
    """The address of a client of a row."""
    providers = Providers(load_configuration(), ignore_events)
    client = providers.access_client(providers.locate(f"{row}/some-model")[0])
    assert isinstance(client, HttpClient)
    return client.address


@every_model
def test_a_key_for_a_gateway_goes_to_the_gateway_and_the_address_is_named(
    model: str, gateway: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = lead(monkeypatch, model, gateway)
    outcome = invoke("chat", "-m", model, "Hi")
    assert (outcome.status, outcome.output) == (0, "Hello.\n")
    assert f"{row_of(model)}: requests are sent to {url} ({MODELS[model][0]})" in outcome.errors
    assert gateway.refusals == []


@every_model
def test_an_address_of_ones_own_in_a_row_takes_the_place_of_the_variable(
    model: str, gateway: FakeServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(monkeypatch, model, gateway)
    variable = MODELS[model][0]
    own = gateway.environment[variable]
    monkeypatch.setenv(variable, "http://127.0.0.1:9/elsewhere")
    write(home, f'[providers.{row_of(model)}]\nbase-url = "{own}"\n')
    outcome = invoke("chat", "-m", model, "Hi")
    assert (outcome.status, outcome.output) == (0, "Hello.\n")
    # The key may be meant for the other address.
    assert f"sent to {own}, its base-url; {variable} is not used" in outcome.errors


@every_model
def test_a_variable_of_ours_takes_the_place_of_the_packages(
    model: str, gateway: FakeServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = lead(monkeypatch, model, gateway)
    monkeypatch.setenv(MODELS[model][0], "http://127.0.0.1:9/elsewhere")
    name = row_of(model).upper().replace("-", "_")
    monkeypatch.setenv(f"VIBE_LLMS_PROVIDERS__{name}__BASE_URL", url)
    assert invoke("chat", "-m", model, "Hi").output == "Hello.\n"
    write(home, f'[providers.{row_of(model)}]\nbase-url = "http://127.0.0.1:9/file"\n')
    assert invoke("chat", "-m", model, "Hi").output == "Hello.\n"


def test_nothing_is_said_where_both_name_the_same_address(
    gateway: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gateway.environment.items():
        monkeypatch.setenv(name, value)
    for model in MODELS:
        assert invoke("chat", "-m", model, "Hi")[:] == (0, "Hello.\n", "")


@every_model
@pytest.mark.parametrize("value", ["gateway.test", "ftp://gateway.test", "http://", "/v1"])
def test_no_request_is_sent_where_the_variable_is_no_address(
    model: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, key = MODELS[model]
    monkeypatch.setenv(address, value)
    monkeypatch.setenv(key, "sk-of-the-gateway-0123456789")
    outcome = invoke("chat", "-m", model, "Hi")
    assert outcome.status == 78
    assert address in outcome.error
    lines = [line for line in invoke("providers").output.splitlines() if line.startswith(model[:6])]
    assert address in lines[0]


@every_model
def test_an_empty_variable_is_not_set(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = find(row_of(model))
    assert usual.startswith("https://api.")
    monkeypatch.setenv(MODELS[model][0], " ")
    assert find(row_of(model)) == usual


def test_a_row_that_names_no_address_is_led_by_the_variable_too(
    gateway: FakeServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(monkeypatch, "openai/gpt-6.1-sol", gateway)
    module = "vibe_llms.providers.openai.chat_completions"
    write(
        home,
        f'[providers.mine]\nmodule = "{module}"\napi-key-environment = "OPENAI_API_KEY"\n'
        f'[providers.other]\nmodule = "{module}"\nbase-url = "http://127.0.0.1:9"\n',
    )
    outcome = invoke("chat", "-m", "mine/gpt-5.5", "Hi")
    assert outcome.output == "Hello.\n"
    assert "(OPENAI_BASE_URL)" in outcome.errors
    assert find("other") == "http://127.0.0.1:9"


@pytest.mark.parametrize(("row", "variable", "value", "address"), PACKAGES)
def test_the_variables_of_the_packages_name_the_addresses_of_their_rows(
    row: str, variable: str, value: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OLLAMA_HOST")
    before = {
        name.name: name.settings.get("base-url") for name in load_configuration().rows(PROVIDERS)
    }
    others = {name: find(name) for name in before if name not in ("llamacpp", "scripted")}
    monkeypatch.setenv(variable, value)
    assert find(row) == address
    shared = ("openai", "openai-chat") if variable.startswith("OPENAI") else (row,)
    assert {name: find(name) for name in others if name not in shared} == {
        name: url for name, url in others.items() if name not in shared
    }


def test_the_packages_own_variable_comes_before_the_one_that_it_read_once() -> None:
    given = {"OPENAI_BASE_URL": "https://new.test", "OPENAI_API_BASE": "https://old.test"}
    found = find_address(OPENAI, "openai", environment=given)
    assert found == Address("https://new.test", ("OPENAI_BASE_URL",))


def test_a_variable_that_a_row_needs_and_nobody_sets_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"\$\{GATEWAY\}") as caught:
        find_address("${GATEWAY}/v1", "mine", environment={})
    assert (caught.value.table, caught.value.key) == ("providers.mine", "base-url")


def test_a_password_in_the_address_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://me:pa55word@gateway.test/v1")
    (given,) = (one for name, one in survey_given(load_configuration()) if name == "openai")
    assert "gateway.test/v1 (OPENAI_BASE_URL)" in given.describe()
    assert "pa55word" not in given.describe() + invoke("providers", "--json").output


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("anthropic", ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")),
        ("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
    ],
)
def test_the_first_of_several_variables_that_is_set_has_the_key(
    row: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = load_configuration().row(PROVIDERS, row).settings["api-key-environment"]
    assert tuple(variables) == names
    credential = Credential(row, variable=names)
    for name in reversed(names):
        monkeypatch.setenv(name, f"key-in-{name}")
        assert credential.find().reveal() == f"key-in-{name}"


async def test_an_organization_in_the_environment_is_sent_to_openai_alone(
    gateway: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gateway.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("VIBE_LLMS_PROVIDERS__GROQ__BASE_URL", gateway.openai_url)
    for row in ("openai", "openai-chat", "groq"):
        providers = Providers(load_configuration(), ignore_events, keys={row: gateway.key})
        model = await providers.access_model(f"{row}/gpt-5.5")
        await model.converse([UserCanister.from_text("Hi")])
        await providers.close()
    sent = [one.headers.get("openai-organization") for one in gateway.requests]
    assert sent == ["org-1", "org-1", None]
    assert [one.headers.get("openai-project") for one in gateway.requests][2] is None


def test_a_row_of_ollama_that_leaves_its_key_to_the_package_needs_none(
    gateway: FakeServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, '[providers.ollama]\ncredential = "package"\n')
    monkeypatch.setenv("OLLAMA_HOST", gateway.ollama_url)
    assert invoke("chat", "-m", "ollama/qwen3:8b", "Hi").output == "Hello.\n"
    assert all("authorization" not in one.headers for one in gateway.requests)
    # As the package does, it sends the one that is there.
    monkeypatch.setenv("OLLAMA_API_KEY", gateway.key)
    assert invoke("chat", "-m", "ollama/qwen3:8b", "Hi").output == "Hello.\n"
    assert gateway.requests[-1].headers["authorization"] == f"Bearer {gateway.key}"
