"""Sending through the official client: the same bytes, the same replies, none of its retries."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.fakes.anthropic import KEY, FakeAnthropic
from tests.fakes.clients import produce_model
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import (
    CredentialMissing,
)
from vibe_llms.base.redaction import REDACTED, redact
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.providers.anthropic.model import BASE_URL, AnthropicModel

HI = [UserCanister.from_text("Hi")]
PACKAGE = Credential("anthropic", "package")


def add(a: int) -> int:
    """Add."""
    return a


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is where the package looks for it, and nowhere else."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[AnthropicModel]:
    """A model that is reached through the package, its client closed at the end."""
    model = await produce_model(url, credential=PACKAGE, **options)
    try:
        yield model
    finally:
        await model.client.close()


async def test_models_are_listed_and_tokens_counted_through_the_package(
    fake_anthropic: FakeAnthropic,
) -> None:
    fake_anthropic.models = [{"id": "claude-opus-5"}, {"id": "claude-haiku-4-5"}]
    fake_anthropic.page_size = 1
    async with opened(fake_anthropic.url) as model:
        client: Any = model.client
        models = await client.survey_models()
        assert [one.name for one in models] == ["claude-opus-5", "claude-haiku-4-5"]
        assert (await model.count_tokens(HI)).tokens == 7


async def test_a_profile_that_is_not_there_is_an_error_of_ours(
    fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_PROFILE", "missing")
    async with opened(fake_anthropic.url) as model:
        with pytest.raises(CredentialMissing, match="missing") as caught:
            await model.converse(HI)
    assert isinstance(caught.value.__cause__, anthropic.CredentialsError)


async def test_the_environment_of_the_package_gives_address_and_token(
    fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", fake_anthropic.url)
    # A row that names no address leaves it to the package.
    async with opened(BASE_URL) as model:
        await model.converse(HI)
    assert len(fake_anthropic.requests) == 1


def write_profile(folder: Path, url: str, token: str) -> None:
    """A profile on disk, as the package's own login writes it."""
    files = {
        "configs/default.json": {"base_url": url, "authentication": {"type": "user_oauth"}},
        "credentials/default.json": {"type": "oauth_token", "access_token": token},
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
        path.chmod(0o600)


async def test_a_profile_on_disk_gives_address_and_token(
    fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    fake_anthropic.key = "token-of-a-profile"
    write_profile(tmp_path, fake_anthropic.url, fake_anthropic.key)
    async with opened(BASE_URL, beta=["mine"]) as model:
        await model.converse(HI)
    (request,) = fake_anthropic.requests
    assert request.headers["anthropic-beta"].startswith("mine,oauth-")
    assert redact("token-of-a-profile") == REDACTED
