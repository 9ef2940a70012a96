"""A model of Bedrock's Converse, and how its requests are assembled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol
from urllib.parse import quote

from vibe_llms.base.configuration import merge
from vibe_llms.base.exceptions import ConfigurationError, ControlInvalid, RequestTooLarge
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import MediaContent
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.addresses import name_server
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.bedrock.controls import (
    SENT,
    nativize_choice,
    nativize_controls,
    read_native,
)
from vibe_llms.providers.bedrock.errors import ERRORS
from vibe_llms.providers.bedrock.history import BedrockHistory
from vibe_llms.providers.bedrock.messages import MODULE, unsupported
from vibe_llms.providers.bedrock.streams import BedrockAssimilator
from vibe_llms.providers.bedrock.transport import REGION
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.models import HttpModel, HttpSettings, ModelConnection
from vibe_llms.providers.pieces import Fragment, Slot, encode_json
from vibe_llms.providers.requests import (
    HistoryCache,
    Request,
    apply_controls,
    fit_request,
    offer_tools,
    send_notice,
)
from vibe_llms.providers.tool_names import nativize_name
from vibe_llms.providers.tool_schemas import ANTHROPIC, fit_tools

BASE_URL = f"${{AWS_ENDPOINT_URL_BEDROCK_RUNTIME:-https://bedrock-runtime.{REGION}.amazonaws.com}}"
#: Members of the body that cannot be given as extras.
_OURS = ("messages", "system")
#: Description of a tool that is not offered, but was called in the history.
_GONE = "This tool cannot be called any more."


class BedrockSettings(HttpSettings, frozen=True):
    """Settings of a provider row.

    `REGION` in the address is replaced by `region`. `profile` names a profile of the AWS files, for
    rows with `credential = "package"`. `cache` is the time for which the prefix of a conversation
    is cached, where the model allows it. With `citations`, the model can cite files. `guardrail` is
    the identity or the ARN of a guardrail, `guardrail-version` its version.
    """

    base_url: str = BASE_URL
    region: str = "${AWS_REGION:-${AWS_DEFAULT_REGION:-}}"
    profile: str = ""
    cache: Literal["5m", "1h", "off"] = "5m"
    citations: bool = True
    guardrail: str = ""
    guardrail_version: str = "DRAFT"


class BedrockConnection(ModelConnection[BedrockSettings], Protocol):
    """The members of a client that its models use."""

    async def log_in(self) -> None:
        """Load the credentials that sign requests, if the row signs them."""
        ...


class BedrockCache(HistoryCache[BedrockHistory]):
    """Encoded history of a conversation; `citing` is True if its files can be cited."""

    def __init__(self) -> None:
        super().__init__()
        self.citing = True


class BedrockModel(HttpModel[BedrockSettings]):
    """One model, named by its identity, by an inference profile, or by an ARN."""

    client: BedrockConnection
    module = MODULE
    path = "/model"
    assimilator = BedrockAssimilator
    errors = ERRORS
    attributes_files = ("bedrock",)
    controls: ClassVar = SENT

    def __init__(self, client: BedrockConnection, name: str, attributes: ModelAttributes) -> None:
        super().__init__(client, name, attributes)
        self._native = read_native(self)

    @property
    def server(self) -> str:
        """Address of the server, in the region of the row if that is known."""
        return name_server(self.settings.base_url.replace(REGION, self.settings.region or REGION))

    def find_path(self, *, streaming: bool) -> str:
        """Return the path of a request; a name may contain `:` and `/`, which are encoded."""
        return f"/model/{quote(self.name, safe='')}/converse{'-stream' if streaming else ''}"

    def produce_cache(self) -> BedrockCache:
        """Return an empty cache of encoded history."""
        return BedrockCache()

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for unsupported input, a missing key, or an ARN of another region."""
        parts = self.name.split(":")
        here, there = self.settings.region, parts[3] if parts[0] == "arn" and parts[3:] else ""
        if here and there not in ("", here) and REGION in self.settings.base_url:
            raise ConfigurationError(
                f"the model {self.name} is in {there}, but requests are sent to {here}; set region "
                f"to {there}, or AWS_REGION",
                table=f"providers.{self.provider}",
                key="region",
            )
        super().check(canisters, controls)

    async def inquire(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Load the credentials, so that an expired login is reported before anything is stored."""
        self.check(canisters, controls)
        await self.client.log_in()

    def unsupported(self, content: MediaContent) -> str:
        """Return why the model does not accept a content, or an empty text if it does."""
        return unsupported(content, self, self._native)

    def check_controls(self, controls: Controls) -> None:
        """Raise `ControlInvalid` for controls that the interface does not take."""
        self._pick_extras(controls)
        nativize_controls(controls, self)

    async def assemble(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Request:
        """Assemble the request of a round trip, with history from the cache where possible."""
        cache = context.cache if isinstance(context.cache, BedrockCache) else BedrockCache()
        invokers = await cache.fit_tools(
            invokers, lambda new: fit_tools(self, new, ANTHROPIC, context)
        )
        names = {invoker.name: nativize_name(invoker.name) for invoker in invokers}
        (members, choice, wanted, extras), _ = apply_controls(
            self,
            controls,
            context,
            lambda settled: (
                nativize_controls(settled, self),
                nativize_choice(settled, names),
                settled.tool_choice,
                self._pick_extras(settled),
            ),
        )
        offered = offer_tools(self, invokers, wanted, context)
        tools = extras.pop("toolConfig", {})
        members = merge(self._frame_guardrail(streaming=context.streaming), members)
        members = dict(merge(members, extras))
        citing = self._decide_citing(members)
        if cache.citing != citing:
            cache.citing = citing
            cache.begin(BedrockHistory(self, citing=citing))
        history = await cache.extend(
            canisters,
            context,
            lambda: BedrockHistory(self, citing=citing),
            self.check_canister,
        )
        if history.forbids_thinking and _enables_thinking(members):
            fields = {**members.pop("additionalModelRequestFields")}
            del fields["thinking"]
            members |= {"additionalModelRequestFields": fields} if fields else {}
            text = (
                "reasoning-tokens is not sent until calls that began without reasoning are complete"
            )
            send_notice(self, context, text)
        mark = self._produce_mark()
        points = self._native.cache_points
        fragments = history.messages(mark if "messages" in points else b"")
        if system := history.system(mark if "system" in points else b""):
            fragments += [b',"system":[', *system, b"]"]
        fragments += self._encode_tools(
            cache, history, offered, tools, choice, mark if "tools" in points else b""
        )
        fragments = self._limit_media(fragments, context)
        room = len(encode_json(members))
        return Request(
            fit_request(fragments, self, context, room=room),
            members,
            context.load,
            path=self.find_path(streaming=context.streaming),
        )

    def produce_assimilator(self, names: Mapping[str, str], request: Request) -> BedrockAssimilator:
        """Return the assimilator of one reply, which knows what the model's counts include."""
        made = super().produce_assimilator(names, request)
        assert isinstance(made, BedrockAssimilator)
        made.inclusive = self._native.counts_cached
        return made

    def _produce_mark(self) -> bytes:
        """Return the block that marks the end of a cached prefix, or nothing."""
        if self.settings.cache == "off" or not self._native.cache_points:
            return b""
        hour = self.settings.cache == "1h" and self._native.cache_hour
        return encode_json({"cachePoint": {"type": "default", **({"ttl": "1h"} if hour else {})}})

    def _frame_guardrail(self, *, streaming: bool) -> dict[str, Any]:
        """Return the members for the guardrail of the row."""
        if not self.settings.guardrail:
            return {}
        guardrail: dict[str, Any] = {
            "guardrailIdentifier": self.settings.guardrail,
            "guardrailVersion": self.settings.guardrail_version,
            # The names of what it blocked become the detail of the reply's end.
            "trace": "enabled",
        }
        if streaming:
            # Otherwise words are shown before the guardrail has seen them.
            guardrail["streamProcessingMode"] = "sync"
        return {"guardrailConfig": guardrail}

    def _pick_extras(self, controls: Controls) -> dict[str, Any]:
        """Return the extras for this provider, after checking the members that we set or read."""
        extras = dict(controls.extras.get(self.provider, {}))
        for name in _OURS:
            if name in extras:
                raise ControlInvalid(
                    f"{name!r} cannot be set in extras; it is part of the conversation",
                    control="extras",
                    model=self.name,
                )
        tools = extras.get("toolConfig", {})
        listed = tools.get("tools", ()) if isinstance(tools, dict) else None
        if not isinstance(listed, list | tuple) or not all(isinstance(one, dict) for one in listed):
            raise ControlInvalid(
                "'toolConfig' must be a table, and its 'tools' a list of tables",
                control="extras",
                model=self.name,
            )
        return extras

    def _decide_citing(self, members: Mapping[str, Any]) -> bool:
        """Return True if files can be cited; a reply that follows a schema has no citations."""
        output = members.get("outputConfig")
        shaped = isinstance(output, dict) and "textFormat" in output
        return self.settings.citations and not shaped

    def _encode_tools(
        self,
        cache: BedrockCache,
        history: BedrockHistory,
        invokers: Sequence[Invoker],
        given: Mapping[str, Any],
        choice: Mapping[str, Any] | None,
        mark: bytes,
    ) -> list[Fragment]:
        """Return the member `toolConfig`, which a history with calls must have."""
        native = list(given.get("tools", ()))
        if not invokers and not native:
            native = [_declare(name, _GONE, {"type": "object"}) for name in history.called]
            choice = None
        if not invokers and not native:
            return []
        tools = cache.encode_tools(
            invokers, native, lambda new: [nativize_invoker(one) for one in new]
        )
        marked = any("cachePoint" in tool for tool in native)
        fragments = [b',"toolConfig":{"tools":[', *tools]
        fragments += [b",", mark] if mark and not marked else []
        rest = {name: value for name, value in given.items() if name != "tools"}
        if choice is not None:
            rest["toolChoice"] = choice
        end = b"," + encode_json(rest)[1:] if rest else b"}"
        return [*fragments, b"]" + end]

    def _limit_media(self, fragments: Sequence[Fragment], context: TurnContext) -> list[Fragment]:
        """Replace the oldest images and files that are more than a request may have."""
        limited = list(fragments)
        for kind, most in (("image", self._native.images), ("document", self._native.files)):
            start = b'{"' + kind.encode() + b'":'
            places = [
                place
                for place, one in enumerate(limited)
                if isinstance(one, Slot) and one.before.startswith(start)
            ]
            over = len(places) - most
            for place in places:
                slot = limited[place]
                if over <= 0 or not isinstance(slot, Slot):
                    break
                if slot.origin in context.fresh:
                    continue
                over -= 1
                limited[place] = slot.instead
                reason = f"a request may have {most} of them"
                send_notice(self, context, f"{slot.label} is left out: {reason}", slot.origin)
            if over > 0:
                raise RequestTooLarge(
                    f"the request would have {most + over} images or files of a kind of which "
                    f"{self.name} takes {most}; send fewer at once",
                    provider=self.provider,
                )
        return limited


def _enables_thinking(members: Mapping[str, Any]) -> bool:
    fields = members.get("additionalModelRequestFields")
    thinking = fields.get("thinking") if isinstance(fields, dict) else None
    return isinstance(thinking, dict) and thinking.get("type") == "enabled"


def nativize_invoker(invoker: Invoker) -> dict[str, Any]:
    """Return the declaration of a tool."""
    name = nativize_name(invoker.name)
    return _declare(name, invoker.description or "", invoker.arguments_schema)


def _declare(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    described = {"description": description} if description.strip() else {}
    return {"toolSpec": {"name": name, **described, "inputSchema": {"json": schema}}}
