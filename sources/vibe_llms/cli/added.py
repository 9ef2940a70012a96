"""Messages that are typed in the REPL while an answer is written, and added to its turn."""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.base.exceptions import RequestError
from vibe_llms.cli import other_programs
from vibe_llms.cli.display import Display
from vibe_llms.cli.shared_options import LEAVING
from vibe_llms.cli.text import cut
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import text_of
from vibe_llms.messages.events import (
    Event,
    Notice,
    NoticeEvent,
    SteeringDeliveredEvent,
    SteeringQueuedEvent,
    SteeringWithdrawnEvent,
)
from vibe_llms.messages.hidden import one_line

#: Lines without a slash that are commands.
BARE = LEAVING | {"help"}
#: Begins a block of several lines, which is read at the prompt.
_QUOTES = '"""'
_SHOWN_CELLS = 50
#: Digits of a number that no list of messages has.
_DIGITS = 7


class Added:
    """An event handler that shows added messages as notes of a `display`.

    What was not sent is not reported, because the REPL moves it to the prompt.
    """

    def __init__(self, display: Display) -> None:
        self._display = display

    def __call__(self, event: Event) -> None:
        """Show an event."""
        match event:
            case SteeringQueuedEvent(canister=message):
                self._note(f"queued: {_outline(message)}")
            case SteeringDeliveredEvent(canister=message):
                # Below the text before it, and above the next.
                self._display.pause()
                self._note(f"sent: {_outline(message)}")
                self._display.pause()
            case SteeringWithdrawnEvent(canister=message, reason=reason):
                self._note(f"{'not sent' if reason else 'taken back'}: {_outline(message)}")
                if reason:
                    self._note(reason)
            case NoticeEvent(notice=Notice(subject="steering")):
                pass
            case _:
                self._display(event)

    def _note(self, text: str) -> None:
        self._display(NoticeEvent(notice=Notice("steering", text)))


def find_message(line: str) -> str | None:
    """Return the message that a typed line sends, or None for a command or a block.

    >>> find_message("Wait!"), find_message("//x"), find_message("/undo"), find_message("exit")
    ('Wait!', '/x', None, None)
    """
    if line.startswith("//"):
        return line[1:]
    typed = line.strip()
    if not typed:
        return ""
    command = (
        typed.lower().removesuffix("()") in BARE
        or typed.startswith(("/", "!", _QUOTES))
        or other_programs.translate(line) != line
        or other_programs.find_in_chat(line) is not None
    )
    return None if command else line


async def change_queue(conversation: Conversation, words: Sequence[str]) -> str:
    """Carry out `/queue` with these words; return the report."""
    queued = conversation.queued
    match [*words]:
        case []:
            rows = [f"{number}. {_outline(one)}" for number, one in enumerate(queued, 1)]
            return "\n".join(rows) or "(nothing is queued)"
        case [number] if number.isascii() and number.isdigit() and len(number) < _DIGITS:
            if not 0 < int(number) <= len(queued):
                raise RequestError(f"no queued message {number}; there are {len(queued)}")
            await conversation.take_back(queued[int(number) - 1].identity)
            return ""
        case _:
            raise RequestError("/queue lists the queued messages, /queue N takes one back")


def _outline(message: UserCanister) -> str:
    return cut(one_line(text_of(message.contents)), _SHOWN_CELLS)
