"""Our tools by their names in other systems: found last, only if offered, and under our rules."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from vibe_llms.invocation.approval import ApprovalRequest, Decision
from vibe_llms.invocation.ensembles import EnsembleRules
from vibe_llms.invocation.execution import Execution, execute
from vibe_llms.invocation.invokers import Approval, Invoker, find_invoker, gather_invokers
from vibe_llms.invocation.other_names import OTHER_NAMES, OtherNames, find_tool
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.opening import open_session
from vibe_llms.testing import Part, Script, ScriptedReply, scripted_model


def search(request: str, source: str = "") -> str:
    """Search."""
    return f"{request} in {source}"


def produce(name: str, function: Any = search, **options: Any) -> Invoker:
    bare = Invoker.from_function(function, name=name, **options)
    tool = name.partition("/")[2]
    names = OTHER_NAMES.get(f"documents/{tool}", OtherNames())
    return msgspec.structs.replace(bare, other_names=names, ensemble=name.partition("/")[0])


OURS = produce("docs/search_document")
READ = produce("docs/read_document")


def found(name: str, *tools: Any) -> str:
    tool = find_invoker(gather_invokers(tools), name)
    return tool.name if tool else ""


@pytest.mark.parametrize("name", ["rag_search_tool", "RAG-search-tool", "search_document"])
def test_a_tool_is_found_by_its_name_in_another_system(name: str) -> None:
    assert found(name, OURS, READ) == "docs/search_document"


def test_a_name_in_another_system_yields_to_every_name_of_an_offered_tool() -> None:
    theirs = Invoker.from_function(lambda: 1, name="rag_search_tool")
    alias = Invoker.from_function(lambda: 1, name="mine", aliases=["rag_search_tool"])
    spelled = Invoker.from_function(lambda: 1, name="Rag-Search-Tool")
    for own in (theirs, alias, spelled):
        assert found("rag_search_tool", OURS, own) == own.name
    assert found("docs/search_document", OURS, theirs) == "docs/search_document"


def test_a_tool_that_is_not_offered_or_not_the_only_one_is_not_found() -> None:
    assert found("rag_search_tool", READ) == ""
    assert found("rag_search_tool", OURS, produce("more/search_document")) == ""


def test_no_name_means_two_tools() -> None:
    counted = Counter(name for one in OTHER_NAMES.values() for name in one.names)
    assert {name: count for name, count in counted.items() if count > 1} == {}
    assert find_tool("rag_search_tool") == "documents/search_document"
    assert find_tool("time/now") == "time/now"


async def test_every_tool_of_the_table_exists_and_has_the_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    rows = ["documents", "memory", "images", "python"]
    async with open_session() as session:
        conversation = await session.begin("scripted/demo", ensembles=rows, save=False)
        offered = conversation.invokers
        for name, one in OTHER_NAMES.items():
            assert offered[name].other_names == one
            properties = offered[name].arguments_schema["properties"]
            assert {ours.removesuffix("[]") for ours in one.arguments.values()} <= set(properties)
            assert not set(one.arguments) & set(properties)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"request": "a", "file_url": "b"}, {"request": "a", "source": "b"}),
        ({"request": "a", "source": "b"}, {"request": "a", "source": "b"}),
        ({"source": "b", "file_url": "c"}, {"source": "b", "file_url": "c"}),
        ({"other": 1}, {"other": 1}),
    ],
)
def test_arguments_get_our_names_if_they_differ(given: Any, meant: Any) -> None:
    call = InvocationCanister(name="x", arguments=json.dumps(given))
    properties = OURS.arguments_schema["properties"]
    translated = OURS.other_names.translate(call, properties)
    assert translated.parsed == meant
    assert (translated is call) == (given == meant)
    assert translated.identity == call.identity


@pytest.mark.parametrize("arguments", ["", "{", "[]", "null"])
def test_arguments_that_are_no_object_stay(arguments: str) -> None:
    call = InvocationCanister(name="x", arguments=arguments)
    assert OURS.other_names.translate(call, {}) is call


def test_an_argument_that_is_a_list_here_may_be_a_single_value_there() -> None:
    names = OtherNames((), {"memory_id": "ids[]"})
    call = InvocationCanister(name="x", arguments='{"memory_id":"a"}')
    assert names.translate(call, {"ids": {}}).parsed == {"ids": ["a"]}


def test_an_argument_that_the_tool_has_keeps_its_name() -> None:
    names = OtherNames((), {"file_url": "source"})
    call = InvocationCanister(name="x", arguments='{"file_url":"a"}')
    assert names.translate(call, {"file_url": {}, "source": {}}) is call


@pytest.mark.parametrize(
    ("approvals", "rule"),
    [
        ({"rag_search_tool": "deny"}, "deny"),
        ({"rag_search_tool": "ask"}, "ask"),
        ({"rag_search_tool": "allow", "search_document": "deny"}, "deny"),
        ({"rag_search_tool": "deny", "search_document": "always"}, "deny"),
        ({"rag_search_tool": "always"}, "always"),
        ({"file_content_extraction_tool": "always"}, "ask"),
        ({}, "ask"),
    ],
)
def test_the_strictest_rule_for_a_tool_applies(approvals: Any, rule: Approval) -> None:
    rules = EnsembleRules(approval="ask", approvals=approvals)
    assert rules.apply(OURS, reads_only=True).approval == rule


def test_a_rule_for_a_tool_of_the_same_name_as_ours_elsewhere_frees_no_other() -> None:
    """A server's own tools are not ours, even if they are called like ours."""
    rules = EnsembleRules(approval="ask", approvals={"rag_search_tool": "allow"})
    plain = Invoker.from_function(search, name="documents/search_document")
    assert rules.apply(plain, reads_only=True).approval == "ask"


def call(name: str, **arguments: Any) -> ScriptedReply:
    return ScriptedReply(parts=(Part(invocation=name, arguments=arguments),))


async def ask(*calls: ScriptedReply, answer: Decision, **row: Any) -> tuple[list[Any], list[Any]]:
    """The requests for approval, and the texts of the results."""
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Decision:
        asked.append(request)
        return answer

    model = scripted_model(Script((*calls, ScriptedReply.from_chunks("Done."))))
    configuration = {"ensembles": {"memory": row}}
    async with open_session(approver=approve, configuration=configuration) as session:
        conversation = await session.begin(model, ensembles=["memory"], save=False)
        turn = await conversation.converse("Go")
    results = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    return asked, [one.text for one in results]


@pytest.mark.usefixtures("home")
async def test_a_call_by_another_name_asks_as_a_call_by_ours() -> None:
    asked, (said,) = await ask(call("delete_memory", memory_id="nothing"), answer=Decision.DENY)
    (request,) = asked
    assert request.invoker.name == "memory/delete_memories"
    assert request.invocation.parsed == {"ids": ["nothing"]}
    assert said.startswith("The call was not allowed")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("key", ["delete_memories", "delete_memory"])
@pytest.mark.parametrize("name", ["delete_memory", "delete_all_memories", "memory/delete_memories"])
async def test_a_denied_tool_is_denied_by_all_its_names(name: str, key: str) -> None:
    asked, (said,) = await ask(
        call(name, memory_id="x"), answer=Decision.ALLOW, approvals={key: "deny"}
    )
    assert asked == []
    assert "the user has denied this tool" in said


@pytest.mark.usefixtures("home")
async def test_deleting_all_asks_each_time_by_any_name() -> None:
    calls = [call(name, all=True) for name in ("delete_memory", "delete_all_memories")]
    asked, _ = await ask(*calls, answer=Decision.ALWAYS_TOOL, approval="always")
    assert [one.each_time for one in asked] == [True, True]


@pytest.mark.usefixtures("home")
async def test_memory_is_stored_and_found_by_the_names_of_dial() -> None:
    _, (stored, found_) = await ask(
        call("store_memory", content="The user's cat is called Tom.", topics=["cat"]),
        call("search_long_term_memory", query="cat", limit=3),
        answer=Decision.ALLOW,
    )
    assert stored.startswith("Remembered:")
    assert "called Tom" in found_


async def test_a_stored_call_by_another_name_runs_as_a_call_by_ours() -> None:
    kept: list[ResultCanister] = []

    async def keep(results: Sequence[ResultCanister]) -> None:
        kept.extend(results)

    execution = Execution(invokers=gather_invokers([OURS]), event_handler=lambda _: None, keep=keep)
    stored = InvocationCanister(
        name="rag_search_tool", arguments='{"request":"tides","file_url":"harbour.pdf"}'
    )
    await execute([stored], execution)
    (result,) = kept
    assert (result.text, result.invocation) == ("tides in harbour.pdf", stored.identity)
