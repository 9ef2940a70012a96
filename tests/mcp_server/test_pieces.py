"""The small pieces of the server: states, bounds, schemas of forms, and clients."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.base.exceptions import RequestError
from vibe_llms.mcp_server.bounds import cut_text
from vibe_llms.mcp_server.eras import McpClient, negotiate
from vibe_llms.mcp_server.jsonrpc import ProtocolError, convert_message, read_message
from vibe_llms.mcp_server.offer import READ_ONLY, TOOLS, choose_tools
from vibe_llms.mcp_server.states import StateSeal


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_state_is_read_where_it_was_written() -> None:
    clock = Clock()
    seal = StateSeal(b"secret", "ada", clock)
    text = seal.write({"run": "x"}, b"call", seconds=10)
    assert seal.read(text, b"call") == {"run": "x"}
    assert text.isascii()
    for other in (StateSeal(b"other", "ada", clock), StateSeal(b"secret", "eve", clock)):
        assert other.read(text, b"call") is None
    assert seal.read(text, b"other") is None
    clock.now += 10
    assert seal.read(text, b"call") is None
    # One without a limit is valid forever.
    assert seal.read(seal.write({}, b""), b"") == {}


@given(st.text(max_size=200))
def test_no_other_text_is_a_state(text: str) -> None:
    assert StateSeal(b"secret", "ada").read(text, b"") is None


@given(st.data())
def test_no_changed_state_is_read(data: st.DataObject) -> None:
    seal = StateSeal(b"secret", "ada", Clock())
    text = seal.write({"run": "x"}, b"")
    place = data.draw(st.integers(0, len(text) - 2))
    letter = data.draw(st.sampled_from("ABCabc012-_"))
    changed = text[:place] + letter + text[place + 1 :]
    assert (seal.read(changed, b"") is None) == (changed != text)


@given(st.text(), st.integers(1, 100))
def test_a_text_is_cut_at_its_longest_beginning(text: str, most: int) -> None:
    def measure(some: str) -> int:
        return len(msgspec.json.encode(some)) - 2

    begun, cut = cut_text(text, most)
    assert text.startswith(begun)
    assert measure(begun) <= most
    assert cut == (begun != text)
    assert not cut or measure(text[: len(begun) + 1]) > most


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_any_json_is_a_message_or_is_refused(value: Any) -> None:
    with pytest.raises(ProtocolError):
        convert_message(value)


@given(
    st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0")},
        optional={
            "id": st.none() | st.integers() | st.text() | st.booleans() | st.floats(),
            "method": st.text() | st.none(),
            "params": st.none() | st.dictionaries(st.text(), st.integers()) | st.text(),
            "result": st.none() | st.dictionaries(st.text(), st.integers()),
            "error": st.none() | st.dictionaries(st.text(), st.integers()),
        },
    )
)
def test_an_object_is_a_message_or_is_refused_in_words(value: dict[str, Any]) -> None:
    # Anything else that is raised fails the test.
    with suppress(ProtocolError):
        assert convert_message(value)


@pytest.mark.parametrize("data", [b"", b"nul", b"{}x", b'"\xff"', b'{"a":' * 5000])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="not valid JSON") as raised:
        read_message(data)
    assert raised.value.code == -32700


@pytest.mark.parametrize(
    ("capabilities", "form", "url"),
    [
        ({}, False, False),
        ({"elicitation": None}, False, False),
        # Without parts, forms are meant. Source: MCP 2025-11-25, "Elicitation", "Capabilities".
        ({"elicitation": {}}, True, False),
        ({"elicitation": {"form": {}}}, True, False),
        ({"elicitation": {"url": {}}}, False, True),
        ({"elicitation": {"form": {}, "url": {}}}, True, True),
    ],
)
def test_a_client_says_how_it_can_ask(capabilities: Any, form: bool, url: bool) -> None:
    client = McpClient(version="2025-11-25", capabilities=capabilities)
    assert client.supports("elicitation", "form") == form
    assert client.supports("elicitation", "url") == url


@pytest.mark.parametrize(
    "params", [{}, {"protocolVersion": 1}, {"protocolVersion": "x", "capabilities": 1}]
)
def test_a_handshake_that_is_wrong_is_refused(params: Any) -> None:
    with pytest.raises(ProtocolError) as raised:
        negotiate(params)
    assert raised.value.code == -32602


def test_tools_are_chosen_in_their_order() -> None:
    assert choose_tools() == TOOLS
    assert choose_tools(read_only=True) == READ_ONLY
    assert choose_tools(["wait", "chat", "wait"]) == ["chat", "wait"]
    with pytest.raises(RequestError, match="'decide' not found"):
        choose_tools(["decide"])
    with pytest.raises(RequestError, match="'cancel' does not only read"):
        choose_tools(["search_memory", "cancel"], read_only=True)
