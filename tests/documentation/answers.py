"""What the fakes of Anthropic, Ollama and Gemini answer to the questions that the pages ask."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.anthropic import FakeAnthropic
from tests.fakes.azure import FakeAzure
from tests.fakes.bedrock import FakeBedrock
from tests.fakes.bedrock_replies import text_reply as bedrock_reply
from tests.fakes.ollama import FakeOllama
from tests.fakes.server import HttpAnswer, ReceivedRequest
from tests.fakes.vertex import FakeVertex
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import text_of
from vibe_llms.testing import ScriptedReply, fake_server
from vibe_llms.testing.wires.anthropic_replies import block, reply, text_block
from vibe_llms.testing.wires.gemini_replies import text_reply as gemini_reply
from vibe_llms.testing.wires.ollama_replies import text_reply
from vibe_llms.testing.wires.responses_replies import message, response_reply

#: The keys that the pages show.
KEY = "sk-ant-your-key"
BEDROCK_KEY = "your-bedrock-key"
AZURE_KEY = "your-azure-key"
VERTEX_KEY = "your-vertex-key"
_TEXTS = {
    "Why is the sky blue?": "Air scatters blue light more than red light.",
    "Explain it to a child.": "The air throws the blue light around, so you see it everywhere.",
    "My cat is called Tom.": "That is a fine name for a cat.",
    "What is my cat called?": "You have not told me yet.",
    "What is in this picture?": "A clear blue sky.",
    "When does the blue ferry leave?": "At noon (harbour.pdf, page 3).",
    "Who wrote the first program?": '{"name": "Ada Lovelace", "born": 1815}',
    "And in these? Nothing of them is downloaded here.": "A cloud, and a report about it.",
}
_CITATION = {
    "type": "char_location",
    "cited_text": "The sun rises at six. ",
    "document_index": 0,
    "document_title": "notes.txt",
    "start_char_index": 0,
    "end_char_index": 22,
    "file_id": None,
}
_PAGE_CITATION = {
    "type": "page_location",
    "cited_text": "Its keeper is Ada Moen,",
    "document_index": 0,
    "document_title": "harbour.pdf",
    "start_page_number": 2,
    "end_page_number": 3,
    "file_id": None,
}


_SEEN = {
    "What happens here?": ("VideoContent", "A door opens."),
    "What do you hear?": ("AudioContent", "A bell."),
    "Who is this?": ("VideoContent", "A large rabbit."),
    "And in this one?": ("VideoContent", "A large rabbit wakes up."),
}


def answer_for_gemini(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    """The answer to the last question, if what it is about came with it."""
    contents = canisters[-1].contents
    asked = text_of(contents)
    kind, answer = _SEEN.get(asked, ("TextualContent", _TEXTS.get(asked, f"You said: {asked}")))
    assert kind in [type(content).__name__ for content in contents]
    return ScriptedReply.from_chunks(*answer.split(" ", 0))


class Answering(FakeAnthropic):
    """Answers by the last words of the person; as all other servers of the pages too."""

    def __init__(self) -> None:
        super().__init__(key=KEY)
        # It is asked in this server's thread, and serves nothing itself.
        self.ollama = FakeOllama()
        self.bedrock = FakeBedrock(key=BEDROCK_KEY)
        self.bedrock.models = [
            {
                "modelId": name,
                "modelName": title,
                "providerName": maker,
                "inputModalities": ["TEXT", "IMAGE"],
                "outputModalities": ["TEXT"],
                "inferenceTypesSupported": [kind],
            }
            for name, title, maker, kind in (
                ("amazon.nova-lite-v1:0", "Nova Lite", "Amazon", "ON_DEMAND"),
                ("anthropic.claude-opus-5", "Claude Opus 5", "Anthropic", "INFERENCE_PROFILE"),
            )
        ]
        arn = "arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-opus-5"
        self.bedrock.profiles = [
            {
                "inferenceProfileId": "global.anthropic.claude-opus-5",
                "inferenceProfileName": "Global Claude Opus 5",
                "models": [{"modelArn": arn}],
                "type": "SYSTEM_DEFINED",
            }
        ]
        self.gemini = fake_server(answer_for_gemini, key="your-key")
        self.azure = FakeAzure(key=AZURE_KEY)
        self.vertex = FakeVertex(key=VERTEX_KEY)
        self.models = [
            {
                "type": "model",
                "id": name,
                "display_name": title,
                "created_at": "2026-09-01T00:00:00Z",
            }
            for name, title in (
                ("claude-sonnet-5-5", "Claude Sonnet 5.5"),
                ("claude-haiku-5-5", "Claude Haiku 5.5"),
            )
        ]

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        """The answer to the question that the request ends with."""
        if request.path.startswith("/api/"):
            if request.path == "/api/chat":
                asked = request.json["messages"][-1]["content"]
                words = _TEXTS.get(asked, f"You said: {json.dumps(asked)}").split(" ")
                spoken = [words[0], *(f" {word}" for word in words[1:])]
                self.ollama.replies = [text_reply(*spoken)]
            answer = self.ollama.respond(request)
            self.refusals += self.ollama.refusals
            self.ollama.refusals = []
            return answer
        if request.path.startswith(("/model/", "/foundation-models", "/inference-profiles")):
            if request.method == "POST":
                asked = request.json["messages"][-1]["content"][0]["text"]
                self.bedrock.replies = [bedrock_reply(_TEXTS.get(asked, f"You said: {asked}"))]
            answer = self.bedrock.respond(request)
            self.refusals += self.bedrock.refusals
            self.bedrock.refusals = []
            return answer
        if request.path.startswith(("/v1beta/", "/upload/")):
            answered = self.gemini.respond(request)
            self.refusals += self.gemini.refusals
            return answered
        if request.path.startswith("/v1/publishers/"):
            # A film comes first.
            *before, last = request.json["contents"][-1]["parts"]
            assert all(one["fileData"]["fileUri"].startswith("gs://") for one in before)
            asked = last["text"]
            said = _SEEN[asked][1] if before else _TEXTS.get(asked, f"You said: {asked}")
            self.vertex.replies = [gemini_reply(said)]
            answer = self.vertex.respond(request)
            self.refusals += self.vertex.refusals
            self.vertex.refusals = []
            return answer
        if request.path.startswith("/openai/"):
            asked = request.json["input"][-1]["content"][-1]["text"]
            self.azure.replies = [response_reply(message(_TEXTS.get(asked, f"You said: {asked}")))]
            answer = self.azure.respond(request)
            self.refusals += self.azure.refusals
            self.azure.refusals = []
            return answer
        if request.path == "/v1/messages":
            self.replies = [choose(request.json)]
        return super().respond(request)


def choose(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events of the reply to a request."""
    # What comes over HTTP has its files behind the question.
    parts = [part for part in body["messages"][-1]["content"] if part["type"] == "text"]
    asked = parts[-1]["text"]
    for question, answer, citation in (
        ("When does the sun rise?", "At six.", _CITATION),
        ("Who keeps the lighthouse?", "Ada Moen keeps the lighthouse.", _PAGE_CITATION),
    ):
        if asked == question:
            cited = block(
                0,
                {"type": "text", "text": "", "citations": []},
                {"type": "text_delta", "text": answer},
                {"type": "citations_delta", "citation": citation},
            )
            return reply(cited)
    if asked.startswith("The user said") and "My cat is called Tom." in asked:
        fact = {"statement": "The user's cat is called Tom", "importance": 0.8}
        return reply(text_block(0, json.dumps({"facts": [fact]})))
    if asked.startswith("The user said"):
        return reply(text_block(0, '{"facts": []}'))
    if asked == "What is my cat called?" and "cat is called Tom" in json.dumps(body):
        return reply(text_block(0, "Your cat is called Tom."))
    if asked == "And who built the machine?":
        pieces = ("{", '"name": "Charles', ' Babbage", "born": 17', "91}")
        return reply(text_block(0, *pieces))
    return reply(text_block(0, _TEXTS.get(asked, f"You said: {json.dumps(asked)}")))
