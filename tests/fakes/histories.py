"""Any history that the types allow, as strategies for Hypothesis: ours, others', and nonsense.

What a model of Anthropic's is said to have issued itself is known to the strict fake, and is as
the server would have sent it; all else may be anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from msgspec import Raw, Struct

from tests.fakes.anthropic import Issued
from tests.fakes.canisters import produce_canisters
from tests.fakes.strict import dump
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    Provenance,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UnknownCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    Issuer,
    Location,
    NativeContent,
    NativePayload,
    ReasoningContent,
    Reference,
    TextualContent,
    UnknownContent,
    Upload,
)
from vibe_llms.providers.anthropic.messages import MODULE

#: Text with anything in it, lone surrogates included, and often with nothing to be seen.
texts = st.one_of(
    st.sampled_from(
        ["", " ", "\n\t", "\ud800", "a\udfff", "\ud83d", "\ude00", "\u2028", "a", "word"]
    ),
    st.text(st.characters(), max_size=6),
)
#: As a server sends it.
clean_texts = st.sampled_from(["It is.", "é😀", "\u2028 ", "x\n"])
issuers = st.sampled_from(
    [
        Issuer("vibe_llms.providers.openai.responses", "openai", "gpt-9"),
        Issuer(MODULE, "gateway", "claude-opus-5"),
        Issuer(MODULE, "anthropic", "claude-haiku-4-5"),
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "a", "é"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=3,
)  # fmt: skip
foreign_payloads = st.builds(
    lambda issuer, value: NativePayload(issuer, Raw(json.dumps(value).encode())), issuers, values
)
mimetypes = st.sampled_from(
    ["", "image/png", "image/tiff", "application/pdf", "text/csv", "text/plain", "\ud800", "a/b"]
)
media = st.one_of(
    st.binary(max_size=3),
    st.binary(max_size=3).map(Reference.from_bytes),
    st.sampled_from(["https://example.org/\ud800", "http://a", "ftp://a", "\udfff"]).map(Location),
    st.builds(Upload, texts, st.sampled_from(["anthropic", "openai"])),
)
textual = st.builds(
    TextualContent,
    st.one_of(texts, st.binary(max_size=3).map(Reference.from_bytes)),
    native=st.none() | foreign_payloads,
)
contents: st.SearchStrategy[Content] = st.one_of(
    textual,
    textual,
    st.builds(ImageContent, media, mimetypes),
    st.builds(FileContent, media, mimetypes, texts),
    st.builds(AudioContent, media, mimetypes),
    st.builds(ReasoningContent, texts, native=st.none() | foreign_payloads),
    st.builds(NativeContent, texts, native=st.none() | foreign_payloads),
    st.builds(UnknownContent, texts),
)
several = st.lists(contents, max_size=3).map(tuple)
arguments = st.one_of(
    st.sampled_from(
        ["", "{}", '{"a": 1.50}', '{"a":1,"a":2}', '{"a":{"b":1,"b":2}}', "{", "[1]", "null",
         '{"a":"\\ud800"}', '{"a":1e999}', '{"a":"\ud800"}', " {} ", '{"":' + "[" * 2000]
    ),
    texts,
    values.map(json.dumps),
)  # fmt: skip
replies = st.sampled_from(["", "1", "2", "3"])
endings = st.none() | st.sampled_from([*StopReason, *[StopReason.PAUSED] * 8]).map(Ending)
provenances = st.none() | st.builds(
    lambda issuer: Provenance(issuer.module, issuer.row, issuer.model), issuers
)
spoken = st.one_of(
    st.builds(UserCanister, several),
    st.builds(SupervisorCanister, several),
    st.builds(DocumentCanister, several, title=texts, source=texts),
    st.builds(AssistantCanister, several, reply=replies, provenance=provenances, ending=endings),
    st.builds(UnknownCanister, label=texts),
    # As archives hold them: every field filled, and nothing that goes together.
    st.integers(0, 2**32).map(lambda seed: next(produce_canisters(seed, 1))),
)
calls = st.builds(
    InvocationCanister,
    name=st.one_of(texts, st.sampled_from(["time/now", "f", "a__b", "n" * 70])),
    arguments=arguments,
    call=st.one_of(texts, st.sampled_from(["toolu_1", "toolu_2", "call_é", "x" * 65])),
    reply=replies,
    ending=endings,
    native=st.none() | foreign_payloads,
)


class History(Struct):
    """Canisters, and what the fake server knows of them."""

    canisters: Sequence[Canister]
    issued: Issued

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.canisters))


@st.composite
def histories(draw: st.DrawFn, model: str, *, size: int = 8) -> History:
    """A history, of which parts may have come from this very model."""
    own = _Own(draw, model)
    canisters: list[Canister] = []
    made: list[InvocationCanister] = []
    for _ in range(draw(st.integers(0, size))):
        kind = draw(st.sampled_from(["spoken", "spoken", "own", "call", "call", "result", "again"]))
        match kind:
            case "spoken":
                canisters.append(draw(spoken))
            case "own":
                canisters += own.reply()
            case "call":
                made.append(draw(calls))
                canisters.append(made[-1])
            case "result":
                identity = draw(st.sampled_from(made)).identity if made else draw(texts)
                canisters.append(
                    ResultCanister(draw(several), invocation=identity, failed=draw(st.booleans()))
                )
            case _ if canisters and canisters[-1] not in own.said:
                canisters.append(canisters[-1])
    return History(canisters, own.issued)


class _Own:
    """What the model has said, as the server sent it and will know it again."""

    def __init__(self, draw: st.DrawFn, model: str) -> None:
        self.draw = draw
        self.issuer = Issuer(MODULE, "anthropic", model)
        self.provenance = Provenance(MODULE, "anthropic", model)
        self.issued = Issued()
        self.said: list[Canister] = []
        self.count = 0

    def payload(self, members: Mapping[str, Any]) -> NativePayload:
        data = json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()
        return NativePayload(self.issuer, Raw(data))

    def reply(self) -> list[Canister]:
        """A reply: thinking, text, tools of the server's, perhaps calls."""
        self.count += 1
        reply = f"own{self.count}"
        contents: list[Content] = []
        for _ in range(self.draw(st.integers(0, 4))):
            contents += self.draw(
                st.sampled_from([self.text, self.think, self.hide, self.search])
            )()
        reason = self.draw(st.sampled_from([None, StopReason.PAUSED, StopReason.FINISHED]))
        ending = None if reason is None else Ending(reason)
        common: dict[str, Any] = {"reply": reply, "provenance": self.provenance}
        said: list[Canister] = [AssistantCanister(tuple(contents), ending=ending, **common)]
        if reason is None:
            for number in range(self.draw(st.integers(0, 3))):
                extra = self.draw(st.sampled_from([None, {"caller": {"type": "direct"}}]))
                native = None if extra is None else self.payload(extra)
                call = f"toolu_{self.count}_{number}"
                said.append(InvocationCanister(name="f", call=call, native=native, **common))
        self.said += said
        return said

    def text(self) -> list[Content]:
        text = self.draw(clean_texts)
        self.issued.pauses.add(dump({"type": "text", "text": text}))
        return [TextualContent(text)]

    def think(self) -> list[Content]:
        self.count += 1
        text, signature = self.draw(clean_texts), f"S{self.count}"
        self.issued.signatures[signature] = dump([self.issuer.model, text])
        return [ReasoningContent(text, native=self.payload({"signature": signature}))]

    def hide(self) -> list[Content]:
        self.count += 1
        block = {"type": "redacted_thinking", "data": f"R{self.count}"}
        self.issued.signatures[block["data"]] = dump([self.issuer.model, ""])
        return [ReasoningContent(native=self.payload(block))]

    def search(self) -> list[Content]:
        """A tool of the server's, which has returned or not."""
        self.count += 1
        identity = f"srvtoolu_{self.count}"
        use = {"type": "server_tool_use", "id": identity, "name": "web_search", "input": {}}
        result = {"type": "web_search_tool_result", "tool_use_id": identity, "content": []}
        blocks: list[dict[str, Any]] = [use, result] if self.draw(st.booleans()) else [use]
        for block in blocks:
            self.issued.blocks.add(dump(block))
            self.issued.pauses.add(dump(block))
        return [NativeContent(str(block["type"]), native=self.payload(block)) for block in blocks]
