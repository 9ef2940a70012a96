"""Canisters to what the server is told."""

from collections.abc import Mapping, Sequence
from typing import Any

from vibe_llms import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    Notice,
    ReasoningContent,
    ResultCanister,
    SupervisorCanister,
    TextualContent,
)
from vibe_llms.exceptions import ContentUnsupported
from vibe_llms.providers.conversions import Conversion, name_document
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.names import nativize_name


class ShoutMessagesProcessor:
    """Each canister becomes an object, and those without a word become nothing."""

    def check(self, canisters: Sequence[Canister], model: Model) -> None:
        """Raise for what this very call adds and nobody can shout: a picture, say."""
        for canister in canisters:
            for content in canister.contents:
                if not isinstance(content, TextualContent | ReasoningContent):
                    raise ContentUnsupported(f"{model.name} takes nothing but text")

    def nativize(
        self, canister: Canister, model: Model, texts: Mapping[str, bytes]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Notice]]:
        """The objects of a canister, and what of it is not said as it is."""
        conversion = Conversion(canister, model, "vibe_llms_shout", texts)
        words: list[str] = []
        for content in canister.contents:
            match content:
                case TextualContent(data=data):
                    words.append(conversion.text(data))
                case ReasoningContent():
                    conversion.leave_out("reasoning")
                case _:
                    words.append(conversion.describe(content))
        text = "\n".join(words)
        match canister:
            case InvocationCanister():
                return [self._call(canister)], conversion.notices
            case ResultCanister():
                said = {"who": "tool", "id": canister.invocation, "text": text}
                return [said], conversion.notices
            case AssistantCanister():
                who = "model"
            case SupervisorCanister():
                who = "system"
            case DocumentCanister():
                # Without the folders of the user's machine.
                title, _ = name_document(canister)
                who, text = "person", f"{title}\n{text}".strip()
            case _:
                who = "person"
        return [{"who": who, "text": text}] if text else [], conversion.notices

    def _call(self, call: InvocationCanister) -> Mapping[str, Any]:
        name = nativize_name(call.name)
        return {"who": "model", "id": call.identity, "use": name, "with": call.parsed or {}}
