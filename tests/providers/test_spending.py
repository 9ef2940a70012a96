"""What models reserve under a budget, and how it limits what they send."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fakes.llamacpp import CHATML, FakePackage, write_model
from tests.fakes.llamacpp_clients import produce_client
from tests.fakes.ollama import FakeOllama
from vibe_llms import open_session
from vibe_llms.base.exceptions import RequestError
from vibe_llms.messages.canisters import Canister, Usage, UserCanister
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    Location,
    Reference,
    TextualContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import Model, TurnContext
from vibe_llms.providers.spending import (
    HIDDEN_TOKENS,
    IMAGE_TOKENS,
    bound_media,
    bound_messages,
    reserve_output,
    spend,
)
from vibe_llms.testing import scripted_model


class FixedSpending:
    """Grants always as many tokens, and notes what happens."""

    bounded = True

    def __init__(self, granted: int = 7) -> None:
        self.granted = granted
        self.asked: list[tuple[int, int, int | None]] = []
        self.log: list[str] = []
        self.used: Usage | None = None

    async def reserve(
        self, model: Model, input_tokens: int, output_tokens: int, *, least: int | None
    ) -> int:
        self.asked.append((input_tokens, output_tokens, least))
        self.log.append("reserve")
        return self.granted

    async def send(self) -> None:
        self.log.append("send")

    async def record_usage(self, usage: Usage | None) -> None:
        self.log.append("settle")
        self.used = usage

    async def close(self) -> None:
        self.log.append("close")


def said(*contents: object) -> Sequence[Canister]:
    return [UserCanister(contents)]  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["Hello.", "日本語" * 50, '\x00\\"' * 9, "🙂" * 20])
def test_a_text_has_no_more_tokens_than_its_bytes(text: str) -> None:
    model = scripted_model(["x"])
    bound = bound_messages([UserCanister.from_text(text)], (), model)
    assert len(text.encode()) <= bound < 6 * len(text.encode()) + 300
    stored = said(TextualContent(Reference.from_bytes(text.encode())))
    assert bound_messages(stored, (), model) >= len(text.encode())


def test_media_count_as_the_table_says() -> None:
    model = scripted_model(["x"])
    image = ImageContent(data=b"x" * 10**6, mimetype="image/png")
    sound = AudioContent(data=b"x" * 1600, mimetype="audio/wav")
    paper = FileContent(data=b"x" * 900, mimetype="application/pdf")
    assert bound_media(said(image, sound, paper), model) == IMAGE_TOKENS + 100 + 900
    with pytest.raises(RequestError, match="at an address cannot be sent under a budget"):
        bound_media(said(FileContent(data=Location("https://x.example/a.pdf"))), model)


async def test_a_call_reserves_what_it_asks_for_and_a_default_may_become_shorter() -> None:
    model, spending = scripted_model(["x"]), FixedSpending()
    context = TurnContext(default_controls=Controls(output_tokens=500))
    asked = await reserve_output(spending, model, 10, Controls(output_tokens=90), context)
    default = await reserve_output(spending, model, 10, Controls(), context)
    await reserve_output(spending, model, 10, Controls(), TurnContext())
    least = 10 + HIDDEN_TOKENS
    assert spending.asked == [(least, 90, 90), (least, 500, None), (least, 8192, None)]
    assert asked.output_tokens == default.output_tokens == 7


async def test_a_model_that_is_a_file_counts_its_input_and_stops_in_time(
    tmp_path: Path, fake_llamacpp: FakePackage
) -> None:
    write_model(tmp_path / "a.gguf", CHATML)
    model = await produce_client(models_folder=str(tmp_path)).access_model("a.gguf")
    fake_llamacpp.replies = ["one two three four five six seven eight nine ten"]
    spending = FixedSpending(3)
    prompt = [UserCanister.from_text("Hello!")]
    async with spend(spending):
        reply = await model.converse(prompt)
    ending = reply[-1].ending
    assert ending is not None
    assert (ending.reason, ending.usage) == ("length", spending.used)
    count = await model.count_tokens(prompt)
    assert spending.asked[0][0] == count.tokens + HIDDEN_TOKENS
    assert spending.log == ["reserve", "send", "settle", "close"]
    await model.client.close()


async def test_ollama_is_asked_for_a_reply_of_that_length(fake_ollama: FakeOllama) -> None:
    configuration = {"providers": {"ollama": {"base-url": fake_ollama.url}}}
    async with open_session(configuration=configuration) as session:
        (name, *_) = [one.name for one in await session.survey_models("ollama")]
        model = await session.access_model(f"ollama/{name}")
        spending = FixedSpending(77)
        async with spend(spending):
            await model.converse([UserCanister.from_text("Hello!")])
    assert fake_ollama.chats[-1]["options"]["num_predict"] == 77
    assert spending.log == ["reserve", "send", "settle", "close"]
