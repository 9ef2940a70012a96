"""Random canisters of every role, with everything in them that a line must carry."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeVar

import msgspec

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
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Citation,
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
    Upload,
    VideoContent,
)

T = TypeVar("T")

#: What has broken archives elsewhere: other line ends, controls, marks and quotes.
AWKWARD = '\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1e\r\n\t\0\x1f\x7f\x9b\ufeff\ufffe\uffff"\\/{}[],: '
_PLANES = [(plane << 16, (plane << 16) + 0xFFFF) for plane in range(17)]
_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)


def produce_canisters(seed: int, number: int) -> Iterator[Canister]:
    """So many canisters, the same ones for the same seed."""
    chance = _Chance(seed)
    for _ in range(number):
        yield chance.canister()


class _Chance:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def canister(self) -> Canister:
        common: dict[str, Any] = {"created": self.time()}
        if self.often():
            common["identity"] = self.text()
        spoken: dict[str, Any] = {"contents": self.several(self.content)}
        reply: dict[str, Any] = {
            "reply": self.text(),
            "provenance": self.perhaps(
                lambda: Provenance(self.text(), self.text(), self.text(), self.text())
            ),
            "ending": self.perhaps(self.ending),
        }
        match self.random.randrange(6):
            case 0:
                return UserCanister(**spoken, **common)
            case 1:
                return SupervisorCanister(**spoken, **common)
            case 2:
                return DocumentCanister(**spoken, **common, title=self.text(), source=self.text())
            case 3:
                return AssistantCanister(**spoken, **common, **reply)
            case 4:
                return InvocationCanister(
                    name=self.text(),
                    arguments=self.text(),
                    call=self.text(),
                    native=self.perhaps(self.payload),
                    **common,
                    **reply,
                )
            case _:
                return ResultCanister(
                    **spoken, **common, invocation=self.text(), failed=self.often()
                )

    def content(self) -> Content:
        native = self.perhaps(self.payload)
        mimetype = self.random.choice(["", "text/plain", "image/png", self.text()])
        match self.random.randrange(8):
            case 0 | 1 | 2:
                citations = self.several(self.citation)
                return TextualContent(self.words(), mimetype, citations, native=native)
            case 3:
                return ReasoningContent(self.words(), native=native)
            case 4:
                return NativeContent(self.text(), native=native)
            case 5:
                return FileContent(self.media(), mimetype, self.text(), native=native)
            case _:
                kind: Any = self.random.choice([ImageContent, AudioContent, VideoContent])
                content: Content = kind(self.media(), mimetype, native=native)
                return content

    def words(self) -> str | Reference:
        return self.reference() if self.random.random() < 0.2 else self.text()

    def media(self) -> bytes | Reference | Location | Upload:
        match self.random.randrange(4):
            case 0:
                return self.random.randbytes(self.random.randrange(20))
            case 1:
                return self.reference()
            case 2:
                return Location(self.text())
            case _:
                return Upload(self.text(), self.text())

    def reference(self) -> Reference:
        return Reference.from_bytes(self.random.randbytes(4))

    def citation(self) -> Citation:
        start, end = self.perhaps(self.number), self.perhaps(self.number)
        return Citation(self.text(), self.text(), self.text(), start, end, self.text())

    def payload(self) -> NativePayload:
        data = msgspec.json.encode(self.value())
        return NativePayload(Issuer(self.text(), self.text(), self.text()), msgspec.Raw(data))

    def value(self, depth: int = 0) -> Any:
        match self.random.randrange(7 if depth < 3 else 5):
            case 0:
                return self.random.choice([None, True, False])
            case 1:
                return self.random.randint(-(2**63), 2**64 - 1)
            case 2:
                return self.random.random() * 10 ** self.random.randint(-9, 9)
            case 3 | 4:
                return self.text()
            case 5:
                return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
            case _:
                return {self.text(): self.value(depth + 1) for _ in range(self.random.randrange(4))}

    def ending(self) -> Ending:
        return Ending(
            self.random.choice([*map(str, StopReason), self.text()]),
            self.perhaps(lambda: Usage(*(self.number() for _ in range(5)))),
            self.often(),
            self.text(),
            self.text(),
            self.several(self.text),
        )

    def text(self) -> str:
        match self.random.randrange(8):
            case 0:
                return ""
            case 1:
                return "".join(self.random.choices(AWKWARD, k=self.random.randrange(1, 9)))
            case 2:
                return "".join(self.character() for _ in range(self.random.randrange(1, 7)))
            case 3 if self.random.random() < 0.02:
                return "long " * 50_000
            case _:
                return "".join(self.random.choices("abc d", k=self.random.randrange(1, 20)))

    def character(self) -> str:
        """Any character of any plane that a file can hold, so no surrogate."""
        code = self.random.randint(*self.random.choice(_PLANES))
        return "\ufffd" if 0xD800 <= code <= 0xDFFF else chr(code)

    def time(self) -> datetime:
        zone = self.random.choice(
            [UTC, timezone(timedelta(minutes=self.random.randint(-720, 720)))]
        )
        moment = _EPOCH + timedelta(microseconds=self.random.randint(-5 * 10**16, 5 * 10**16))
        return moment.astimezone(zone)

    def number(self) -> int:
        return self.random.choice([0, 1, 255, 2**53 + 1, 2**63 - 1])

    def often(self) -> bool:
        return self.random.random() < 0.5

    def perhaps(self, make: Callable[[], T]) -> T | None:
        return make() if self.often() else None

    def several(self, make: Callable[[], T]) -> tuple[T, ...]:
        return tuple(make() for _ in range(self.random.choice([0, 1, 1, 2, 3])))
