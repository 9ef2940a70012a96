"""A provider whose models repeat your words in capitals."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from vibe_llms import providers

_ENDS = {
    "": providers.StopReason.FINISHED,
    "words": providers.StopReason.LENGTH,
    "use": providers.StopReason.INVOCATIONS,
}
_WHO = {"assistant": "model", "supervisor": "system"}


class ShoutSettings(providers.HttpSettings, frozen=True):
    """The keys of a row, in addition to those that every row has."""

    ending: str = "!"


class _Line(msgspec.Struct, rename={"arguments": "with"}):
    shout: str = ""
    hush: str = ""
    use: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    end: str | None = None
    heard: int = 0
    shouted: int = 0


class ShoutAssimilator(providers.LineAssimilator):
    """Reads one reply: a line of JSON for each step, and one for the end."""

    line = msgspec.json.Decoder(_Line)

    def advance(self, data: bytes) -> Iterator[providers.Delta]:
        """Convert one line to deltas."""
        line = self.decode(self.line, data)
        if line.hush:
            raise self.read_error(data)
        if line.use:
            yield from self.call(line.use, bytes(line.arguments).decode())
        elif line.end is not None:
            yield providers.UsageDelta(providers.Usage(line.heard, output_tokens=line.shouted))
            yield providers.ReplyClosed(_ENDS.get(line.end, line.end), native_reason=line.end)
        else:
            yield providers.TextDelta(line.shout)


class ShoutModel(providers.HttpModel[ShoutSettings]):
    """One model."""

    module = __name__
    path = "/shout"
    models_path = "/models"
    attributes_files = (Path(__file__).with_name("models.toml"),)
    controls: ClassVar = {"output-tokens": "words"}
    assimilator = ShoutAssimilator
    errors = providers.ErrorMap(
        types={"quiet": providers.RequestRefused}, members={"message": "hush", "type": "kind"}
    )

    @classmethod
    def read_models(cls, body: bytes) -> Mapping[str, Mapping[str, Any]]:
        """Read the names of the models; the server sends no attributes."""
        return {name: {} for name in msgspec.json.decode(body, type=list[str])}

    def encode(self, given: providers.ModelInput) -> Mapping[str, Any]:
        """Return the members of a request."""
        return {
            "model": self.name,
            "ending": self.settings.ending,
            "said": [member for one in given.said if (member := _say(one))],
            "tools": [_declare(invoker) for invoker in given.invokers],
            **given.options,
        }


def _declare(invoker: providers.Invoker) -> Mapping[str, Any]:
    name = providers.nativize_name(invoker.name)
    return {"name": name, "about": invoker.description, "takes": invoker.arguments_schema}


def _say(one: providers.Conversion) -> Mapping[str, Any]:
    """Encode a canister; empty if it has no text."""
    match one.canister:
        case providers.InvocationCanister(name=name, identity=identity) as call:
            arguments = providers.nativize_arguments(call)
            name = providers.nativize_name(name)
            return {"who": "model", "id": identity, "use": name, "with": arguments}
        case providers.ResultCanister(invocation=identity):
            return {"who": "tool", "id": identity, "text": one.words()}
    text = one.words()
    return {"who": _WHO.get(one.role, "person"), "text": text} if text else {}


ShoutProvider = providers.HttpProvider.of(ShoutModel, ShoutSettings)
providers.register("shout", ShoutProvider)
