"""What a provider's class of models decides of its requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vibe_llms.events import ignore_events
from vibe_llms.providers import HttpModel, HttpProvider, HttpSettings
from vibe_llms.testing.limits import Bench
from vibe_llms.testing.listening import Answer, Listener, Request

KEY = "key-of-a-test"


class Lister(Listener):
    """Lists no models."""

    def respond(self, request: Request) -> Answer:
        return Answer(chunks=[b"[]"])


class Bearing(HttpModel[HttpSettings]):
    """Sends its key as most do."""

    models_path = "/models"

    @classmethod
    def read_models(cls, body: bytes) -> Mapping[str, Mapping[str, Any]]:
        return {}


class Naming(Bearing):
    """Sends its key in a header of its own."""

    @classmethod
    def authorize(cls, key: str) -> Mapping[str, str]:
        return {"x-api-key": key}


async def test_a_model_chooses_the_header_of_its_key() -> None:
    for model, header, value in (
        (Bearing, "authorization", f"Bearer {KEY}"),
        (Naming, "x-api-key", KEY),
    ):
        with Lister() as server:
            factory = HttpProvider.of(model, HttpSettings)
            bench = Bench(factory, "tested", {"base-url": server.url}, KEY)
            async with bench.open(ignore_events) as (_, client):
                assert await client.survey_models() == []
        (request,) = server.requests
        sent = {name for name, text in request.headers.items() if KEY in text}
        assert (sent, request.headers[header]) == ({header}, value)
