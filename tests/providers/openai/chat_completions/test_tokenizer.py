"""The estimate of Chat Completions, where no server counts."""

from __future__ import annotations

from tests.fakes.openai_clients import produce_openai_model
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import FileContent, ImageContent
from vibe_llms.providers.tokenizers import BYTES_A_TOKEN, MEDIA_TOKENS


async def test_words_are_counted_by_their_bytes_and_media_by_the_piece() -> None:
    model = await produce_openai_model("chat")
    bare = await model.count_tokens([UserCanister.from_text("Hi")])
    assert bare.estimated
    text = FileContent(b"word " * 400, "text/plain", "a.txt")
    longer = await model.count_tokens([UserCanister((text,))])
    assert 0 <= longer.tokens - bare.tokens - 2_000 // BYTES_A_TOKEN < 50
    pictures = tuple(ImageContent(b"x" * 30_000, "image/png") for _ in range(3))
    seen = await model.count_tokens([UserCanister(pictures)])
    assert 0 <= seen.tokens - bare.tokens - 3 * MEDIA_TOKENS < 150
