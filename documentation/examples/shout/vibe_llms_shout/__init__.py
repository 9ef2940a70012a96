"""A provider whose models repeat your words in capitals."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from vibe_llms import (
    AssistantCanister,
    DocumentCanister,
    InvocationCanister,
    Invoker,
    ReasoningContent,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    TextualContent,
    Usage,
)
from vibe_llms.exceptions import ModelUnavailable
from vibe_llms.providers import (
    ArgumentsDelta,
    Conversion,
    Delta,
    ErrorMap,
    HttpModel,
    HttpProvider,
    HttpSettings,
    InvocationClosed,
    InvocationOpened,
    LineAssimilator,
    ModelInput,
    ReplyClosed,
    TextDelta,
    UsageDelta,
    name_document,
    nativize_name,
    register,
)

_ENDS = {"": StopReason.FINISHED, "words": StopReason.LENGTH, "use": StopReason.INVOCATIONS}


class ShoutSettings(HttpSettings, frozen=True):
    """The keys of a row, in addition to those that every row has."""

    ending: str = "!"


class _Line(Struct, rename={"arguments": "with"}):
    shout: str = ""
    use: str = ""
    arguments: Raw = Raw(b"{}")
    end: str | None = None
    heard: int = 0
    shouted: int = 0


class ShoutAssimilator(LineAssimilator):
    """Reads one reply: a line of JSON for each step, and one for the end."""

    line = msgspec.json.Decoder(_Line)

    def advance(self, data: bytes) -> Iterator[Delta]:
        """Convert one line to deltas."""
        line = self.decode(self.line, data)
        if line.use:
            yield InvocationOpened(self.name_of(line.use))
            yield ArgumentsDelta(bytes(line.arguments).decode())
            yield InvocationClosed()
        elif line.end is not None:
            yield UsageDelta(Usage(line.heard, output_tokens=line.shouted))
            yield ReplyClosed(_ENDS.get(line.end, line.end), native_reason=line.end)
        else:
            yield TextDelta(line.shout)


class ShoutModel(HttpModel[ShoutSettings]):
    """One model."""

    module = __name__
    path = "/shout"
    models_path = "/models"
    attributes_files = (Path(__file__).with_name("models.toml"),)
    assimilator = ShoutAssimilator
    errors = ErrorMap({404: ModelUnavailable})

    @classmethod
    def read_models(cls, body: bytes) -> Mapping[str, Mapping[str, Any]]:
        """Read the names of the models; the server sends no attributes."""
        return {name: {} for name in msgspec.json.decode(body, type=list[str])}

    def encode(self, given: ModelInput) -> Mapping[str, Any]:
        """Return the members of a request."""
        limit = given.controls.output_tokens
        return {
            "model": self.name,
            "ending": self.settings.ending,
            "said": [member for one in given.said if (member := _say(one))],
            "tools": [_declare(invoker) for invoker in given.invokers],
            **({} if limit is None else {"words": limit}),
        }


def _declare(invoker: Invoker) -> Mapping[str, Any]:
    name = nativize_name(invoker.name)
    return {"name": name, "about": invoker.description, "takes": invoker.arguments_schema}


def _say(one: Conversion) -> Mapping[str, Any]:
    """Encode a canister; empty if it has no text."""
    words: list[str] = []
    for content in one.canister.contents:
        match content:
            case TextualContent(data=data):
                words.append(one.text(data))
            case ReasoningContent():
                one.leave_out("reasoning")
            case _:
                words.append(one.describe(content))
    text = "\n".join(words)
    match one.canister:
        case InvocationCanister(name=name, identity=identity, parsed=parsed):
            use = {"id": identity, "use": nativize_name(name), "with": parsed or {}}
            return {"who": "model", **use}
        case ResultCanister(invocation=call):
            return {"who": "tool", "id": call, "text": text}
        case AssistantCanister():
            who = "model"
        case SupervisorCanister():
            who = "system"
        case DocumentCanister() as document:
            # The title has no folders of the user's machine.
            title, _ = name_document(document)
            who, text = "person", f"{title}\n{text}".strip()
        case _:
            who = "person"
    return {"who": who, "text": text} if text else {}


ShoutProvider = HttpProvider.of(ShoutModel, ShoutSettings)
register("shout", ShoutProvider)
