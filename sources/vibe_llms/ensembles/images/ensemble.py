"""`ImagesEnsemble`: a tool that asks a server for an image."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.configuration import Configuration, Seconds, StreamSettings
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import (
    AttachmentUnreadable,
    CredentialRefused,
    PaymentRequired,
    ProviderError,
    RequestRefused,
)
from vibe_llms.conversations.attachments import detect_type
from vibe_llms.conversations.hosts import EnsembleConfiguration
from vibe_llms.ensembles.images.addresses import read_address
from vibe_llms.ensembles.images.errors import ERRORS
from vibe_llms.invocation.ensembles import EnsembleRules
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.other_names import OTHER_NAMES
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.providers.addresses import find_address
from vibe_llms.providers.http_transport import HttpTransport, produce_http_transport
from vibe_llms.providers.round_trip import JSON_HEADERS, fetch
from vibe_llms.providers.transport import Outgoing

_PATH = "/images/generations"
_PICTURES = ("image/png", "image/jpeg", "image/webp", "image/gif")
_SPARE_SECONDS = 5.0
_PROMPT_CHARACTERS = 32_000


class ImagesSettings(EnsembleRules, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of the row: `model` generates images, `provider` names the row of `[providers]`.

    `extras` are additional fields in each request, as the server defines them. A call takes at most
    `call-seconds`, and an image has at most `picture-bytes`.
    """

    model: str = ""
    provider: str = "openai"
    extras: Mapping[str, Any] = {}
    call_seconds: Seconds = 240.0
    picture_bytes: Annotated[int, Meta(ge=1)] = 16 * 1024 * 1024


class _Row(Struct, frozen=True, rename="kebab"):
    """Keys of a provider's row that are needed here; the others belong to the provider."""

    base_url: str = "${OPENAI_BASE_URL:-${OPENAI_API_BASE:-https://api.openai.com/v1}}"
    credential: Literal["key", "none", "package"] = "key"
    api_key_environment: str | tuple[str, ...] = ""
    api_key_command: tuple[str, ...] = ()


class _Picture(Struct, frozen=True):
    b64_json: str | None = None
    url: str | None = None


class _Reply(Struct, frozen=True):
    data: tuple[_Picture, ...] | None = None


class ImagesEnsemble:
    """A server that generates images. Nothing is sent before its tool is called."""

    def __init__(self, name: str, configuration: EnsembleConfiguration) -> None:
        whole = configuration.configuration
        self._name = name
        self._offline = whole.offline
        self._settings = whole.read(ImagesSettings, configuration.settings, "ensembles", name)
        if not self._settings.model:
            raise whole.error("no model is set", "ensembles", name, "model")
        self._row = _read_row(whole, name, self._settings.provider)
        self._stream = msgspec.structs.replace(
            whole.stream,
            first_byte_seconds=self._settings.call_seconds,
            reply_seconds=self._settings.call_seconds,
        )
        credential = Credential(
            self._settings.provider,
            self._row.credential,
            self._row.api_key_environment,
            self._row.api_key_command,
            whole.places.keys_file,
        )
        self._transport: HttpTransport = produce_http_transport(
            self._settings.provider,
            self._row.base_url,
            self._stream,
            credential,
            JSON_HEADERS,
            offline=self._offline,
        )
        self._invokers: tuple[Invoker, ...] = ()

    @property
    def name(self) -> str:
        """Name of its row."""
        return self._name

    @property
    def invokers(self) -> Sequence[Invoker]:
        """Tool `generate_image`, once it is open."""
        return self._invokers

    async def open(self) -> None:
        """Look up the key; nothing is sent."""
        # The system's keyring is slow; other ensembles open in the meantime.
        await asyncio.to_thread(self._transport.prepare)
        tool = Invoker.from_function(
            self._generate_image, name=f"{self._name}/generate_image", sends=True
        )
        tool = msgspec.structs.replace(
            tool, ensemble=self._name, other_names=OTHER_NAMES["images/generate_image"]
        )
        settled = self._settings.apply(tool, reads_only=False)
        if settled.timeout_seconds is None:
            # This limit ends first, so that the model learns which one it was.
            seconds = self._settings.call_seconds + _SPARE_SECONDS
            settled = msgspec.structs.replace(settled, timeout_seconds=seconds)
        self._invokers = (settled,)

    async def close(self) -> None:
        """Close the connections."""
        self._invokers = ()
        await self._transport.close()

    async def _generate_image(
        self,
        prompt: str,
        size: str = "auto",
        quality: Literal["auto", "low", "medium", "high", "xhigh", "max"] = "auto",
        background: Literal["auto", "opaque", "transparent"] = "auto",
        format: Literal["png", "jpeg", "webp"] = "png",  # noqa: A002
    ) -> InvocationOutput:
        """Make a picture. Each call costs the person money, so make only what was asked for.

        Args:
            prompt: Description of the picture, in words, with its style.
            size: WIDTHxHEIGHT in pixels, such as 1024x1024 or 1536x1024, or auto.
            quality: Higher qualities cost more; not all models have them.
            background: transparent needs the format png or webp.
            format: The format of the file.
        """
        if not prompt.strip() or len(prompt) > _PROMPT_CHARACTERS:
            return _fail(f"The prompt must have between 1 and {_PROMPT_CHARACTERS:,} characters.")
        chosen = {"size": size, "quality": quality, "background": background}
        body = {
            "model": self._settings.model,
            "prompt": prompt,
            **{name: value for name, value in chosen.items() if value != "auto"},
            **({"output_format": format} if format != "png" else {}),
            **self._settings.extras,
        }
        try:
            data = await self._ask(body)
        except (CredentialRefused, PaymentRequired) as error:
            return _fail(f"{error}\nThe user must fix this. Do not retry.")
        except RequestRefused as error:
            return _fail(str(error))
        except ProviderError as error:
            return _fail(f"{error}\nNo image was returned. The user may still have been charged.")
        try:
            mimetype = detect_type(data, "the picture")
        except AttachmentUnreadable:
            mimetype = ""
        if mimetype not in _PICTURES:
            return _fail("The server did not return an image.")
        about = (
            f"The image was generated ({mimetype}, {len(data):,} bytes). The user can see it too."
        )
        return InvocationOutput((TextualContent(about), ImageContent(data, mimetype)))

    async def _ask(self, body: Mapping[str, Any]) -> bytes:
        provider = self._settings.provider
        answer = await fetch(
            self._transport,
            Outgoing("POST", _PATH, (msgspec.json.encode(body),)),
            provider=provider,
            settings=self._stream,
            read_error=partial(ERRORS.read, provider),
            costly=True,
        )
        return await read_picture(
            answer,
            provider=provider,
            base_url=self._row.base_url,
            limit=self._settings.picture_bytes,
            settings=self._stream,
            offline=self._offline,
        )


async def read_picture(
    answer: bytes,
    *,
    provider: str,
    base_url: str,
    limit: int,
    settings: StreamSettings,
    offline: bool,
) -> bytes:
    """Return the bytes of the first image of an answer, embedded or at a URL."""
    try:
        reply = msgspec.json.decode(answer, type=_Reply)
    except msgspec.DecodeError as error:
        raise RequestRefused(f"the answer is not valid: {error}", provider=provider) from error
    picture = reply.data[0] if reply.data else _Picture()
    if picture.b64_json:
        if len(picture.b64_json) > limit * 4 // 3 + 4:
            raise RequestRefused(
                f"the image has more than {limit:,} bytes (picture-bytes)", provider=provider
            )
        return _decode(picture.b64_json, provider)
    if picture.url:
        return await read_address(
            picture.url,
            provider=provider,
            base_url=base_url,
            limit=limit,
            settings=settings,
            offline=offline,
        )
    raise RequestRefused("the answer contains no image", provider=provider)


def _decode(text: str, provider: str) -> bytes:
    import base64
    import binascii

    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestRefused(
            f"the image is not valid base64: {error}", provider=provider
        ) from error


def _read_row(configuration: Configuration, name: str, provider: str) -> _Row:
    rows = {row.name: row for row in configuration.rows("providers")}
    if provider not in rows:
        raise configuration.error(
            f"provider {provider!r} not found; known providers: {', '.join(rows)}",
            "ensembles",
            name,
            "provider",
        )
    row = configuration.read(_Row, rows[provider].settings, "providers", provider)
    if row.credential == "package":
        raise configuration.error(
            f"the row {provider!r} uses a package, which cannot generate images; "
            "use a row with an API key",
            "ensembles",
            name,
            "provider",
        )
    return msgspec.structs.replace(row, base_url=find_address(row.base_url, provider).url)


def _fail(text: str) -> InvocationOutput:
    return InvocationOutput((TextualContent(text),), failed=True)
