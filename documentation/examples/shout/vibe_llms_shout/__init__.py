"""A provider whose models repeat your words in capitals."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct, json

from vibe_llms import providers

_ENDS = {"done": "finished", "words": "length", "use": "invocations"}
_ERROR = {"error": "hush", "message": "says", "type": "kind"}
_WHO = {"assistant": "model", "supervisor": "system"}


class ShoutSettings(providers.HttpSettings, frozen=True):
    """The keys of a row, in addition to those that every row has."""

    ending: str = "!"


class _Data(Struct):
    text: str = ""
    id: str = ""
    name: str = ""
    piece: str = ""
    why: str = ""
    used: tuple[int, int] = (0, 0)


class ShoutAssimilator(providers.EventAssimilator):
    """Reads one reply: `event_name` says what an event is, and `data` is its JSON."""

    decoder = json.Decoder(_Data)

    def advance(self, data: bytes) -> Iterator[providers.Delta]:
        """Convert one event to deltas."""
        one = self.decode(self.decoder, data)
        match self.event_name:
            case "hush":
                raise self.read_error(data)
            case "shout":
                yield providers.TextDelta(one.text)
            case "use.begin" | "use.piece":
                yield from self.call(one.name, one.piece, one.id, index=one.id)
            case "end":
                yield providers.UsageDelta(providers.Usage(one.used[0], output_tokens=one.used[1]))
                yield providers.ReplyClosed(_ENDS.get(one.why, one.why), native_reason=one.why)


class ShoutModel(providers.HttpModel[ShoutSettings]):
    """One model."""

    module = __name__
    path = "/shout"
    models_path = "/models"
    attributes_files = (Path(__file__).with_name("models.toml"),)
    controls: ClassVar = {"output-tokens": "words"}
    assimilator = ShoutAssimilator
    errors = providers.ErrorMap(types={"quiet": providers.RequestRefused}, members=_ERROR)

    @classmethod
    def authorize(cls, key: str) -> Mapping[str, str]:
        """Send the key in the server's own header."""
        return {"x-shout-key": key}

    @classmethod
    def read_models(cls, body: bytes) -> Mapping[str, Mapping[str, Any]]:
        """Read the names of the models, and how many tokens each reads."""
        sizes = json.decode(body, type=dict[str, int]).items()
        return {name: {"context-tokens": size} for name, size in sizes}

    def encode(self, given: providers.ModelInput) -> Mapping[str, Any]:
        """Return the members of a request."""
        return {
            "model": self.name,
            "ending": self.settings.ending,
            "said": [member for one in given.said if (member := _say(one))],
            "tools": [
                {"name": name, "about": tool.description, "takes": tool.arguments_schema}
                for name, tool in given.tools.items()
            ],
            **given.options,
        }


def _say(one: providers.Conversion) -> Mapping[str, Any]:
    match one.canister:
        case providers.InvocationCanister(name=name, identity=identity) as call:
            use, arguments = providers.nativize_name(name), providers.nativize_arguments(call)
            return {"who": "model", "id": identity, "use": use, "with": arguments}
        case providers.ResultCanister(invocation=identity):
            return {"who": "tool", "id": identity, "text": one.words()}
    text = one.words()
    return {"who": _WHO.get(one.role, "person"), "text": text} if text else {}


ShoutProvider = providers.HttpProvider.of(ShoutModel, ShoutSettings)
providers.register("shout", ShoutProvider)
