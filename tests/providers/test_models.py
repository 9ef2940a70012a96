"""What a provider's class of models decides of its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from vibe_llms import providers
from vibe_llms.base.exceptions import ConfigurationError, ControlInvalid, RegistrationError
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.controls import ControlRange, Controls
from vibe_llms.messages.events import Notice, ignore_events
from vibe_llms.providers import HttpModel, HttpProvider, HttpSettings, TurnContext
from vibe_llms.testing.limits import Bench
from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest

KEY = "key-of-a-test"
HELLO: Sequence[Canister] = [UserCanister.from_text("Hello")]


class Lister(Listener):
    """Lists no models."""

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        return HttpAnswer(chunks=[b"[]"])


class Bearing(HttpModel[HttpSettings]):
    """Sends its key as most do."""

    module = __name__
    path = "/say"
    models_path = "/models"
    controls: ClassVar = {"output-tokens": "words", "stop": "until"}

    @classmethod
    def read_models(cls, body: bytes) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def encode(self, given: providers.ModelInput) -> Mapping[str, Any]:
        return {"said": [one.words() for one in given.said], **given.options}


class Naming(Bearing):
    """Sends its key in a header of its own."""

    @classmethod
    def authorize(cls, key: str) -> Mapping[str, str]:
        return {"x-api-key": key}


class Boasting(Bearing):
    """Says of its models what cannot be."""

    @classmethod
    def read_models(cls, body: bytes) -> Mapping[str, Mapping[str, Any]]:
        return {"good": {"context-tokens": 10}, "loud": {"context-tokens": "many"}}


class Deaf(Bearing):
    """Sends no control."""

    controls: ClassVar = {}


class Listing(Bearing):
    """Says in a file what its models are."""

    attributes_files = (Path("somewhere.toml"),)


def bench_of(model: type[HttpModel[HttpSettings]], url: str = "http://127.0.0.1:9") -> Bench:
    return Bench(HttpProvider.of(model, HttpSettings), "tested", {"base-url": url}, KEY)


async def test_a_model_chooses_the_header_of_its_key() -> None:
    for model, header, value in (
        (Bearing, "authorization", f"Bearer {KEY}"),
        (Naming, "x-api-key", KEY),
    ):
        with Lister() as server:
            async with bench_of(model, server.url).open(ignore_events) as (_, client):
                assert await client.survey_models() == []
        (request,) = server.requests
        sent = {name for name, text in request.headers.items() if KEY in text}
        assert (sent, request.headers[header]) == ({header}, value)


async def test_wrong_attributes_of_a_list_name_the_row_the_module_and_the_model() -> None:
    with Lister() as server:
        async with bench_of(Boasting, server.url).open() as (_, client):
            with pytest.raises(RegistrationError) as caught:
                await client.survey_models()
    words = str(caught.value)
    assert "[providers.tested]" in words
    assert f"read_models of {__name__!r}" in words
    assert "'loud'" in words
    assert "context-tokens" in words
    assert (caught.value.file, "config.toml" in words) == ("", False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[models."lo.*"]\ncontext-tokens = "many"', "context-tokens"),
        ('[models."lo.*"]\nnovel = 1', "novel"),
        ('[models."lo("]\ntools = "none"', "not a regular expression"),
        ("models = 1", "table"),
    ],
)
async def test_wrong_attributes_of_a_file_name_the_file(
    tmp_path: Path, text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text)
    monkeypatch.setattr(Listing, "attributes_files", (file,))
    with pytest.raises(ConfigurationError, match=words) as caught:
        async with bench_of(Listing).open():
            pass
    assert caught.value.file == str(file)


async def test_controls_that_a_model_does_not_send_are_refused() -> None:
    for model, taken in ((Bearing, "output-tokens, stop"), (Deaf, "none")):
        async with bench_of(model).open() as (_, client):
            chosen = await client.access_model("any")
            for controls in (Controls(temperature=0.5), Controls(temperature=0.5, stop=("a",))):
                with pytest.raises(ControlInvalid, match=rf"'temperature'.*it accepts: {taken}\)"):
                    chosen.check(HELLO, controls)


async def test_a_configured_control_that_a_model_does_not_send_is_left_out_with_a_notice() -> None:
    async with bench_of(Bearing).open() as (_, client):
        chosen = await client.access_model("any")
        notices: list[Notice] = []
        defaults = Controls(temperature=0.5, output_tokens=3)
        context = TurnContext(notify=notices.append, default_controls=defaults)
        body = await chosen.preview(HELLO, (), Controls(stop=("x",)), context)
    assert msgspec.json.decode(body) == {"said": ["Hello"], "words": 3, "until": ["x"]}
    (notice,) = notices
    assert "temperature = 0.5 is not sent" in notice.text


async def test_the_attributes_bound_the_controls_that_a_model_sends_and_add_none() -> None:
    own = {"controls": {"output-tokens": {"maximum": 9}, "temperature": {}, "stop": False}}
    overrides = {"providers": {"tested": {"models": {"loud": own}}}}
    async with bench_of(Bearing).open(overrides=overrides) as (_, client):
        loud, other = [await client.access_model(name) for name in ("loud", "other")]
    assert loud.attributes.controls == {"output-tokens": ControlRange(maximum=9)}
    assert other.attributes.controls == {"output-tokens": ControlRange(), "stop": ControlRange()}


def test_a_control_that_does_not_exist_is_named_when_the_module_is_imported() -> None:
    class Misspelt(Bearing):
        controls: ClassVar = {"output_tokens": "words"}

    with pytest.raises(ValueError, match="control 'output_tokens'; the controls are temperature"):
        HttpProvider.of(Misspelt, HttpSettings)


def test_a_method_that_is_called_before_there_is_a_model_must_be_a_class_method() -> None:
    def authorize(key: str) -> Mapping[str, str]:
        return {"x-key": key}

    plain, static = (
        type(name, (Bearing,), {"authorize": one})
        for name, one in (("Plain", authorize), ("Static", staticmethod(authorize)))
    )
    with pytest.raises(TypeError, match=r"Plain\.authorize must be a class method"):
        HttpProvider.of(plain, HttpSettings)
    HttpProvider.of(static, HttpSettings)
