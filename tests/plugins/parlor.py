"""A provider for a service that does all in its own way, as a stranger would write it.

Its errors have a form of their own and may come in the middle of a stream, and the pieces of its
tool calls are mixed.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from vibe_llms import providers

_ENDS = {"done": "finished", "tools": "invocations", "full": "length", "no": "refused"}
_WHO = {"assistant": "parlor", "supervisor": "rules"}


class _Event(msgspec.Struct):
    kind: str
    text: str = ""
    slot: int = 0
    name: str = ""
    id: str = ""
    why: str = ""
    spent: tuple[int, int] = (0, 0)


class ParlorAssimilator(providers.EventAssimilator):
    """Reads one reply."""

    event = msgspec.json.Decoder(_Event)

    def advance(self, data: bytes) -> Iterator[providers.Delta]:
        """Convert one event to deltas."""
        event = self.decode(self.event, data)
        match event.kind:
            case "text":
                yield providers.TextDelta(event.text)
            case "thought":
                yield providers.ReasoningDelta(event.text)
            case "tool":
                yield from self.call(event.name, event.text, event.id, index=event.slot)
            case "end":
                yield providers.UsageDelta(providers.Usage(event.spent[0], 0, 0, event.spent[1]))
                yield providers.ReplyClosed(_ENDS.get(event.why, event.why), event.why)
            case "fault":
                raise self.read_error(data)


class ParlorModel(providers.HttpModel[providers.HttpSettings]):
    """One model."""

    module = __name__
    path = "/talk"
    models_path = "/models"
    assimilator = ParlorAssimilator
    controls: ClassVar = {"temperature": "heat", "output-tokens": "most", "stop": "until"}
    errors = providers.ErrorMap(
        members={"error": "fault", "message": "reason", "type": "sort"},
        types={
            "key": providers.CredentialRefused,
            "busy": providers.ProviderOverloaded,
            "long": providers.ContextOverflow,
            "broke": providers.PaymentRequired,
        },
    )

    @classmethod
    def authorize(cls, key: str) -> Mapping[str, str]:
        """Send the key in the header of the service."""
        return {"x-parlor-key": key}

    @classmethod
    def read_models(cls, body: bytes) -> Mapping[str, Mapping[str, Any]]:
        """Read the names of the models and how much they read."""
        listed = msgspec.json.decode(body, type=dict[str, int])
        return {name: {"context-tokens": tokens} for name, tokens in listed.items()}

    def encode(self, given: providers.ModelInput) -> Mapping[str, Any]:
        """Return the members of a request."""
        return {
            "model": self.name,
            "stream": given.streaming,
            "lines": [_encode(one) for one in given.said],
            "tools": [
                {"name": providers.nativize_name(tool.name), "schema": tool.arguments_schema}
                for tool in given.invokers
            ],
            **given.options,
        }


def _encode(one: providers.Conversion) -> Mapping[str, Any]:
    match one.canister:
        case providers.InvocationCanister(name=name, identity=identity) as call:
            arguments = providers.nativize_arguments(call)
            return {"tool": providers.nativize_name(name), "id": identity, "with": arguments}
        case providers.ResultCanister(invocation=identity, failed=failed):
            return {"id": identity, "result": one.words(), "failed": failed}
    return {"who": _WHO.get(one.role, "guest"), "text": one.words()}


ParlorProvider = providers.HttpProvider.of(ParlorModel, providers.HttpSettings)
providers.register("parlor", ParlorProvider)
