"""Provider rows and clients for Bedrock; the lists of models are of another service of AWS."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

from vibe_llms.providers.bedrock.catalogue import MODELS, PROFILES, InferenceProfile, merge_lists
from vibe_llms.providers.bedrock.model import BedrockModel, BedrockSettings
from vibe_llms.providers.bedrock.package import AwsLogin
from vibe_llms.providers.bedrock.transport import BedrockTransport
from vibe_llms.providers.models import HttpClient, HttpProvider
from vibe_llms.providers.round_trip import fetch
from vibe_llms.providers.transport import Outgoing

#: Region in the address of an endpoint, such as `bedrock-runtime-fips.us-east-1.amazonaws.com`.
_REGION = re.compile(r"\bbedrock(?:-runtime)?(?:-fips)?\.([a-z]{2}(?:-[a-z]+)+-\d)\.")
#: Variable with the address of the service that lists models.
_LISTS = "AWS_ENDPOINT_URL_BEDROCK"


class BedrockClient(HttpClient[BedrockModel, BedrockSettings]):
    """A connection to Bedrock."""

    lists: BedrockTransport
    _replies: BedrockTransport

    def produce_transport(self) -> BedrockTransport:
        """Return the transport for replies, and make the one for the lists of models."""
        login = AwsLogin(self.provider, self.settings.profile, offline=self.offline)
        lists = os.environ.get(_LISTS, "") or self.address.replace("bedrock-runtime", "bedrock")
        self.lists = self._reach(lists, login)
        self._replies = self._reach(self.address, login)
        return self._replies

    async def log_in(self) -> None:
        """Load the credentials that sign requests, if the row signs them."""
        await self._replies.log_in()

    async def survey_models(self) -> Sequence[BedrockModel]:
        """Return the models that answer on demand, and the inference profiles."""
        body = await self._list("/foundation-models")
        models = self.read(MODELS.decode, body, "the list of models").model_summaries
        profiles: list[InferenceProfile] = []
        token, seen = "", set[str]()
        while token not in seen:
            seen.add(token)
            next_page = f"&nextToken={quote(token, safe='')}" if token else ""
            body = await self._list(f"/inference-profiles?maxResults=1000{next_page}")
            page = self.read(PROFILES.decode, body, "the list of inference profiles")
            profiles += page.inference_profile_summaries
            token = page.next_token or ""
        return [self.produce_model(*one) for one in merge_lists(models, profiles)]

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self.lists.close()
        await super().close()

    async def _list(self, path: str) -> bytes:
        return await fetch(
            self.lists,
            Outgoing("GET", path),
            provider=self.provider,
            settings=self.stream,
            read_error=partial(self.model.errors.read, self.provider),
        )

    def _reach(self, address: str, login: AwsLogin) -> BedrockTransport:
        named = _REGION.search(address)
        return BedrockTransport(
            self.provider,
            address,
            named[1] if named else self.settings.region,
            self.stream,
            self.credential,
            login,
            offline=self.offline,
        )


BedrockProvider = HttpProvider.of(BedrockModel, BedrockSettings, BedrockClient)
