"""The servers that the pages are played against, and what they answer in the cookbook."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from tests.documentation.answers import Answering
from tests.documentation.transcripts import newcomer
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    ResultCanister,
    SupervisorCanister,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import ImageContent, text_of
from vibe_llms.testing import FakeServer, Part, ScriptedReply
from vibe_llms.testing.listening import HttpAnswer, ReceivedRequest
from vibe_llms.testing.wires.core import answer_json

#: The key that the pages of the cookbook show, of any provider.
KEY = "your-key"

Answer = Callable[[Sequence[Canister], Sequence[Invoker]], ScriptedReply]


_PAGE = b"""<!doctype html>
<title>Opening hours</title>
<article>
<h1>Opening hours</h1>
<p>The library is open from ten to six on weekdays, and from ten to two on Saturdays.</p>
<p>On Sundays, and on the days between Christmas and the new year, it stays closed.</p>
</article>
"""


class CookbookServer(FakeServer):
    """Providers with the answers of a recipe, and a web of one page, with a search engine."""

    def __init__(self, recipe: str) -> None:
        answer = ANSWERS[recipe]
        super().__init__(answer() if isinstance(answer, type) else answer, key=KEY)

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        """Return a page, or what a provider answers."""
        page = urlsplit(request.path).path
        if page == "/search":
            addresses = (f"{self.url}/hours", "https://blog.example/library")
            found = [{"title": "Opening hours", "content": "", "url": url} for url in addresses]
            return answer_json({"results": found})
        if page == "/hours":
            headers = {"content-type": "text/html; charset=utf-8"}
            return HttpAnswer(headers=headers, chunks=[_PAGE])
        return super().respond(request)


def produce_server(name: str) -> Answering | FakeServer:
    """Return the server of a page: one of its own for each recipe of the cookbook."""
    path = PurePath(name)
    if path.parent.name == "cookbook" and path.stem in ANSWERS:
        return CookbookServer(path.stem)
    return Answering()


def produce_environment(server: Answering | FakeServer, home: Path) -> Mapping[str, str]:
    """Return the environment of a new user whose providers are at the server."""
    environment = newcomer(home, server.url)
    if isinstance(server, FakeServer):
        environment |= {k: v for k, v in server.environment.items() if not k.endswith("_API_KEY")}
        environment["SEARXNG_URL"] = server.url
        settings = Path(environment["VIBE_LLMS_HOME"]) / "config.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(f'web.allow-hosts = ["{urlsplit(server.url).netloc}"]\n')
    return environment


def say(text: str) -> ScriptedReply:
    return ScriptedReply.from_chunks(text)


def say_json(value: object) -> ScriptedReply:
    return say(json.dumps(value))


def call(name: str, **arguments: Any) -> ScriptedReply:
    return ScriptedReply(parts=(Part(invocation=name, arguments=arguments),))


def words(canister: Canister) -> str:
    """Return the text of a message; empty for a call."""
    return text_of(getattr(canister, "contents", ()))


def texts(canisters: Sequence[Canister], kind: type[Canister]) -> list[str]:
    """Return the texts of the messages of a kind."""
    return [words(one) for one in canisters if isinstance(one, kind)]


def answer_chat(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    """Stop in the middle, so that there is time to press Ctrl-C."""
    begin = "Tides are the rise and fall of the sea."
    if words(canisters[-1]) == "Tell me about tides.":
        parts = (Part(text=begin), Part(delay_seconds=20), Part(text=" They"))
        return ScriptedReply(parts=parts)
    assert begin in words(canisters[1])
    return say("The moon pulls the water.")


def answer_about_papers(canisters: Sequence[Canister], tools: Sequence[Invoker]) -> ScriptedReply:
    if isinstance(canisters[-1], ResultCanister):
        assert "noon" in words(canisters[-1])
        return say("At noon (harbour.pdf, page 3).")
    (search,) = [tool.name for tool in tools if tool.name.endswith("search_document")]
    return call(search, request=words(canisters[-1]))


def answer_with_lines(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    assert any("Signal flag" in words(one) for one in canisters)
    lines = [
        ("2026-11-03", "Rope, 20 m", 2, "19.90"),
        ("2026-11-03", "Lamp oil, 5 l", 1, "24.00"),
        ("2026-11-17", "Signal flag", 12, "4.25"),
    ]
    names = ("delivered", "article", "quantity", "price")
    return say_json({"value": [dict(zip(names, line, strict=True)) for line in lines]})


def answer_in_german(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    (rules,) = texts(canisters, SupervisorCanister)
    assert "- pier = Anleger" in rules
    replies = {
        "The ferry leaves from the north pier at noon.": "Die Fähre fährt mittags am Nordpier ab.",
        "Translate it again, with: pier = Anleger": "Die Fähre fährt mittags am Nordanleger ab.",
        "In fog, ask the harbour master.": "Fragen Sie bei Nebel die Hafenmeisterin.",
    }
    return say(replies[words(canisters[-1])])


class Sorting:
    """Sorts messages. The first request about the thanks fails, after the others have ended."""

    def __init__(self) -> None:
        self._failed = False

    def __call__(self, canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
        message = words(canisters[-1])
        if message.startswith("Thank you") and not self._failed:
            self._failed = True
            failure = Part(error="payment-required", message="no credit left")
            return ScriptedReply(parts=(Part(delay_seconds=4), failure))
        for word, label in (("charged", "billing"), ("leave", "timetable"), ("Does", "timetable")):
            if word in message and "umbrella" not in message:
                return say_json({"value": label})
        return say_json({"value": "lost property" if "umbrella" in message else "other"})


def answer_with_summaries(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    (rule,) = texts(canisters, SupervisorCanister)
    if rule.startswith("These are summaries"):
        assert "[Part 1]" in words(canisters[-1])
        return say("The harbour has two ferries, a lighthouse, and rules for mooring.")
    return say(f"What {rule.split()[1:5]} says.")


_FIXED = "def mean(values):\n    return sum(values) / len(values) if values else 0.0\n"


def answer_as_coder(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    results = texts(canisters, ResultCanister)
    match len(results):
        case 0:
            return call("read_file", path="../secret.txt")
        case 1:
            assert "outside of the project" in results[0]
            return call("read_file", path="mean.py")
        case 2:
            return call("write_file", path="mean.py", text=_FIXED.replace("0.0", "None"))
        case 3:
            assert "return 0.0" in results[2]
            return call("write_file", path="mean.py", text=_FIXED)
        case 4:
            return call("run_tests")
    assert "1 passed" in results[4]
    return say("mean([]) is 0.0 now, and the test passes.")


def answer_with_digest(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    assert "The pump was repaired." in "".join(map(words, canisters))
    return say("- The pump was repaired.")


def answer_or_judge(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    (rules,) = texts(canisters, SupervisorCanister)
    asked = words(canisters[-1])
    if rules.startswith("You judge"):
        score = 5 if "Sorry" in asked else 3 if "noon" in asked else 4
        return say_json({"reason": "It fits.", "score": score})
    answer = "At noon." if "leave" in asked else "We send it back."
    return say(f"Sorry to hear that! {answer}" if "feelings" in rules else answer)


def answer_learner(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    said = words(canisters[-1])
    if said.startswith("The user said"):
        fact = {"statement": "The user finds the letter å hard", "importance": 0.8}
        return say_json({"facts": [fact] if "å" in said else []})
    if "letter å hard" in "".join(map(words, canisters[:-1])):
        return say("Let us practice å. What is a boat called?")
    return say("Then we begin with words that have it: båt means boat.")


def answer_researcher(canisters: Sequence[Canister], tools: Sequence[Invoker]) -> ScriptedReply:
    results = texts(canisters, ResultCanister)
    (search,) = [tool.name for tool in tools if tool.name.endswith("search")]
    (fetch,) = [tool.name for tool in tools if tool.name.endswith("fetch_page")]
    if not results:
        return call(search, query="library opening hours")
    address = re.findall(r"http://\S+", results[0])[0]
    if len(results) == 1:
        return call(fetch, url=address)
    assert "stays closed" in results[1]
    assert "https://blog.example/library" in results[0]
    text = "On Sundays the library stays closed [1]. A blog says the same [2]."
    return say_json({"text": text, "sources": [address, "https://blog.example/library"]})


def answer_from_service(canisters: Sequence[Canister], tools: Sequence[Invoker]) -> ScriptedReply:
    assert {tool.name for tool in tools} == {"show_boat", "book"}
    results = texts(canisters, ResultCanister)
    if not results:
        return call("show_boat", boat="blue")
    if len(results) == 1:
        assert results[0] == '200 {"free_seats": 4}'
        return call("book", body={"boat": "blue", "seats": 3})
    assert '"booked": 3' in results[1]
    return say("Three seats on the blue boat are booked.")


def answer_in_background(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    said = texts(canisters, UserCanister)
    if said == ["The pump is loud."]:
        return ScriptedReply(parts=(Part(delay_seconds=5), Part(text="Since when?")))
    return say(f"You have written {len(said)} messages: {'; '.join(said)}")


def answer_channel(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    said = texts(canisters, UserCanister)
    if said == ["ada: When does the boat leave?"]:
        return say("At noon, Ada.")
    assert said == ["ada: When does the boat leave?", "eve: And back?"]
    return say("At six, Eve; Ada asked when it leaves.")


def answer_customer(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    (rules,) = texts(canisters, SupervisorCanister)
    assert "Never promise a refund" in rules
    usage = Usage(uncached_input_tokens=900, output_tokens=100)
    return ScriptedReply(parts=(Part(text="At noon."),), usage=usage)


def answer_on_temperature(canisters: Sequence[Canister], tools: Sequence[Invoker]) -> ScriptedReply:
    assert texts(canisters, SupervisorCanister) == ["Be brief."]
    results = texts(canisters, ResultCanister)
    if len(texts(canisters, UserCanister)) == 2:
        assert results == ["-4"]
        return say("Gloves, too.")
    return say("A warm coat: it is -4 °C.") if results else call(tools[0].name, city="Oslo")


def answer_for_secretary(canisters: Sequence[Canister], tools: Sequence[Invoker]) -> ScriptedReply:
    results = texts(canisters, ResultCanister)
    if not results:
        calls = [
            Part(
                invocation=tools[0].name, arguments={"to": name, "text": "The boat leaves at noon."}
            )
            for name in ("Ada", "Eve")
        ]
        return ScriptedReply(parts=tuple(calls))
    assert results[0] == "sent to Ada"
    assert results[1] != "sent to Eve"
    return say_json({"sent": 1, "summary": "Ada knows; Eve was not to be told."})


def answer_on_picture(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    first = next(one for one in canisters if isinstance(one, UserCanister))
    assert any(isinstance(content, ImageContent) for content in first.contents)
    if len(texts(canisters, UserCanister)) == 2:
        return say("Blue above, and blue between the clouds.")
    return say_json({"subject": "sky", "colors": ["blue", "white"]})


def refuse(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
    assert canisters
    return ScriptedReply(parts=(Part(error="overloaded", message="Overloaded"),))


def answer_differently(text: str) -> Answer:
    def answer(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
        assert len(texts(canisters, UserCanister)) == 1
        assert not texts(canisters, AssistantCanister)
        return say(text)

    return answer


ANSWERS: Mapping[str, Answer | Mapping[str, Answer] | type[Sorting]] = {
    "approve-a-coding-helper": answer_as_coder,
    "write-a-nightly-digest": answer_with_digest,
    "evaluate-prompts": answer_or_judge,
    "tutor-with-memory": answer_learner,
    "research-with-sources": answer_researcher,
    "chat-in-a-terminal": answer_chat,
    "chat-with-your-pdfs": answer_about_papers,
    "extract-a-table": answer_with_lines,
    "compare-two-models": {
        "claude-sonnet-5-5": answer_differently("Air scatters blue light more than red light."),
        "gpt-6.1-sol": answer_differently(
            "Because of Rayleigh scattering: short waves are scattered more, so blue comes from "
            "all sides."
        ),
    },
    "move-from-openai": answer_on_temperature,
    "move-from-litellm": {
        "claude-sonnet-5-5": refuse,
        "gpt-6.1-sol": answer_differently("Air scatters blue light more than red light."),
    },
    "move-from-langchain": answer_for_secretary,
    "move-from-llm": answer_on_picture,
    "turn-an-openapi-document-into-tools": answer_from_service,
    "continue-from-a-webhook": answer_in_background,
    "answer-in-a-team-chat": answer_channel,
    "serve-customers-with-budgets": answer_customer,
    "translate-with-a-glossary": answer_in_german,
    "classify-a-csv": Sorting,
    "summarize-a-long-document": answer_with_summaries,
}
