"""The provider behind the server: a reasoning model that is reached by Chat Completions.

It thinks before each reply, keeps to the schema and the tool that a request asks for, and tells
what it was sent, so that a client's test sees whether images and earlier turns have arrived. It
refuses requests as strictly as OpenAI does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.scripted.demo import improvise, last_words
from vibe_llms.providers.scripted.scripts import Part, ScriptedReply
from vibe_llms.testing.server import FakeServer
from vibe_llms.testing.wires.core import AskedReply

#: The question that is asked again and again, to count the turns that are sent.
TURN = re.compile(r"Which turn is this\?")
#: What Codex says about the machine before the first question.
_PREFACE = re.compile(r"<(\w+)>.*?</\1>", re.DOTALL)
_THOUGHT = Part(reasoning="Let me think about that. ")


class Upstream(FakeServer):
    """Answers each request by what it says."""

    def __init__(self) -> None:
        super().__init__(improvise, models=("thinker",), recording=False)

    def _choose(self, asked: AskedReply) -> ScriptedReply:
        return ScriptedReply(parts=(_THOUGHT, *_answer(asked)))


def _answer(asked: AskedReply) -> Sequence[Part]:
    canisters = _leave_prefaces_out(asked.canisters)
    words = last_words(canisters).strip()
    if "Count slowly" in words:
        # The rest never comes: the client has to leave.
        return Part(text=("one ", "two ", "three ")), Part(stall=True)
    if TURN.search(words):
        turns = sum(len(TURN.findall(last_words([one]))) for one in canisters)
        return (Part(text=f"This is turn {turns}."),)
    if "picture" in words and (images := _survey_images(canisters)):
        return (Part(text=f"I see {', '.join(images)}."),)
    controls = _read_controls(asked.body)
    if use := re.match(r"Use (\w+) ", words):
        # The whole name may end in a hash.
        names = (one.name for one in asked.invokers if one.name.startswith(use[1]))
        controls = Controls(tool_choice=next(names, "auto"))
    return improvise(canisters, asked.invokers, controls).parts


def _leave_prefaces_out(canisters: Sequence[Canister]) -> Sequence[Canister]:
    """Return the messages without the tagged texts that programs put before the user's own."""
    return [
        msgspec.structs.replace(one, contents=tuple(map(_leave_preface_out, one.contents)))
        if isinstance(one, UserCanister)
        else one
        for one in canisters
    ]


def _leave_preface_out(content: Any) -> Any:
    if not (isinstance(content, TextualContent) and isinstance(content.data, str)):
        return content
    return TextualContent(_PREFACE.sub("", content.data))


def _survey_images(canisters: Sequence[Canister]) -> Sequence[str]:
    """Return the types of the images of the user; some programs send them before the question."""
    return [
        content.mimetype
        for one in canisters
        if isinstance(one, UserCanister)
        for content in one.contents
        if isinstance(content, ImageContent)
    ]


def _read_controls(body: Any) -> Controls:
    match body.get("tool_choice"):
        case "required":
            choice = "any"
        case {"function": {"name": str(choice)}} | str(choice):
            pass
        case _:
            choice = "auto"
    match body.get("response_format"):
        case {"json_schema": {"schema": schema}}:
            return Controls(tool_choice=choice, response_schema=schema)
    return Controls(tool_choice=choice)
