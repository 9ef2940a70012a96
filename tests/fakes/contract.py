"""Replies under the contract: in all the forms that models write them, good, bad and quoted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, SupervisorCanister, UserCanister
from vibe_llms.providers.scripted.demo import last_words
from vibe_llms.testing import Part, ScriptedReply

CALL = '{"type":"tool_call","name":"look","arguments":{"where":"up"}}'
FINAL = '{"type":"final","content":"It is \\"blue\\".\\nTruly \\ud83d\\ude00 \\u00e9."}'
SAID = 'It is "blue".\nTruly \U0001f600 \u00e9.'

#: Replies that call `look` with `{"where":"up"}`, once, and say nothing.
CALLING = {
    "plain": CALL,
    "spread over lines": '\n{\n  "type": "tool_call",\n  "name": "look",\n'
    '  "arguments": {"where":"up"}\n}\n',
    "fenced": f"```json\n{CALL}\n```",
    "fenced without a language": f"```\n{CALL}\n```\n",
    "fenced on one line": f"```json {CALL} ```",
    "tilde fence": f"~~~json\n{CALL}\n~~~",
    "tagged": f"<tool_call>\n{CALL}\n</tool_call>",
    "tagged and without a type": '<tool_call>{"name":"look","arguments":{"where":"up"}}',
    "tag not closed": f"<tool_call>{CALL}",
    "marked as Mistral does": f"[TOOL_CALLS][{CALL}]",
    "marked as Llama does": '<|python_tag|>{"name":"look","parameters":{"where":"up"}}<|eom_id|>',
    "end of a turn behind it": f"{CALL}<|im_end|>",
    "without a type": '{"name":"look","arguments":{"where":"up"}}',
    "parameters": '{"type":"tool_call","name":"look","parameters":{"where":"up"}}',
    "tool for name": '{"type":"tool_call","tool":"look","arguments":{"where":"up"}}',
    "function": '{"type":"function","function":{"name":"look","arguments":{"where":"up"}}}',
    "kind spelled otherwise": '{"type":"Tool-Call","name":"look","arguments":{"where":"up"}}',
    "arguments as text": '{"type":"tool_call","name":"look","arguments":"{\\"where\\":\\"up\\"}"}',
    "type at the end": '{"name":"look","arguments":{"where":"up"},"type":"tool_call"}',
    "arguments first": '{"arguments":{"where":"up"},"type":"tool_call","name":"look"}',
    "a list": f"[{CALL}]",
    "tool as the type": '{"type":"look","arguments":{"where":"up"}}',
    "tool as the type, parameters": '{"type": "look", "parameters": {"where":"up"}}',
    "tool as the type, fenced": '```json\n{"type":"look","arguments":{"where":"up"}}\n```',
    "tool as the type, at the end": '{"arguments":{"where":"up"},"type":"look"}',
    "Chat Completions": '{"tool_calls":[{"id":"call_1","type":"function","function":'
    '{"name":"look","arguments":"{\\"where\\":\\"up\\"}"}}]}',
    "Chat Completions, arguments as an object": '{"tool_calls":[{"function":'
    '{"name":"look","arguments":{"where":"up"}}}]}',
    "Chat Completions, short": '{"tool_calls":[{"name":"look","arguments":{"where":"up"}}]}',
    "Chat Completions, one call": '{"tool_calls":{"name":"look","arguments":{"where":"up"}}}',
    "Chat Completions, a whole message": '{"role":"assistant","content":null,"tool_calls":'
    '[{"type":"function","function":{"name":"look","arguments":{"where":"up"}}}]}',
    "Chat Completions, fenced": '```json\n{"tool_calls":[{"type":"look","arguments":'
    '{"where":"up"}}]}\n```',
    "Chat Completions as it was": '{"function_call":{"name":"look","arguments":'
    '"{\\"where\\":\\"up\\"}"}}',
    "an empty answer before it": '{"type":"final","content":""}' + CALL,
}  # fmt: skip

#: Replies, what they show and how many calls they make.
SAYING: dict[str, tuple[str, str, int]] = {
    "answer": (FINAL, SAID, 0),
    "answer in a fence": (f"```json\n{FINAL}\n```", SAID, 0),
    "answer spread": ('{ "type" : "final" ,\n "content" : "Hi" }', "Hi", 0),
    "answer as a list": ('[{"type":"final","content":"Hi"}]', "Hi", 0),
    "content first": ('{"content":"Hi","type":"final"}', "Hi", 0),
    "content alone": ('{"content":"Hi"}', "Hi", 0),
    "answer that is an object": ('{"type":"final","content":{"a": [1, 2]}}', '{"a":[1,2]}', 0),
    "answer that is a number": ('{"type":"final","content":12}', "12", 0),
    "answer that is nothing": ('{"type":"final","content":null}', "", 0),
    "answer and more members": ('{"type":"final","content":"Hi","mood":"\\"}"}', "Hi", 0),
    "more members before": ('{"type":"final","mood":"good","content":"Hi"}', "Hi", 0),
    "answer not closed": ('{"type":"final","content":"Hi', "Hi", 0),
    "answer whose brace is missing": ('{"type":"final","content":"Hi"', "Hi", 0),
    "quotes not escaped": ('{"type":"final","content":"He said "yes" and "no"."}',
                           'He said "yes" and "no".', 0),
    "quotes and a comma": ('{"type":"final","content":"A "b", "c" and d"}', 'A "b", "c" and d', 0),
    "line breaks not escaped": ('{"type":"final","content":"a\nb\tc"}', "a\nb\tc", 0),
    "TeX not escaped": ('{"type":"final","content":"\\alpha \\u12 \\"x"}', '\\alpha \\u12 "x', 0),
    "half a pair": ('{"type":"final","content":"a\\ud83d b"}', "a\ufffd b", 0),
    "escape cut at the end": ('{"type":"final","content":"a\\', "a", 0),
    "answer, then calls": (f"{FINAL}\n{CALL}\n{CALL}", SAID, 2),
    "answer, then a call in a fence": (f"{FINAL}\n```json\n{CALL}\n```", SAID, 1),
    "answer and calls of Chat Completions": (
        f'{{"content":"I look.","tool_calls":[{CALL},{{"type":"look","args":{{"where":"up"}}}}]}}',
        "I look.", 2),
    "no calls of Chat Completions": ('{"role":"assistant","content":"Hi","tool_calls":[]}',
                                     "Hi", 0),
    "answers": ('{"type":"final","content":"a"}\n{"type":"final","content":"b"}', "a\nb", 0),
    "calls a line each": (f"{CALL}\n{CALL}", "", 2),
    "calls in a list": (f"[{CALL}, {CALL}]", "", 2),
    "calls in tags": (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "", 2),
    "call, then an answer made up": (f"{CALL}\n{FINAL}", "", 1),
    "answer with words behind it": (f"{FINAL} Hope it helps!", SAID, 0),
    "answer, call, words": (f"{FINAL}\n{CALL}\nThat is it.", SAID, 0),
    "empty": ("", "", 0),
}  # fmt: skip

#: Replies that are plain text: they are shown as they are, and nothing runs.
PROSE = {
    "words": "The sky is blue.",
    "words after a line break": "\n\n The sky is blue.\n",
    "nothing to be seen": " \n ",
    "a list": "- one\n- two",
    "a link": "[see](https://example.org)",
    "a footnote": "[1] See there.",
    "brackets": "[TOOLS] are good.",
    "an open bracket": "[",
    "code": "`look` is a tool.",
    "double quotes of code": "``look`` is a tool.",
    "a fence of Python": "```python\nprint({})\n```",
    "a fence that stays open": "```",
    "a fence of four": f"````json\n{CALL}\n````",
    "tags": "<think>Hm.</think> Yes.",
    "a part of a tag": "<tool",
    "no tag": "< 3 is less",
    "a template": "{{ name }} is {a}",
    "a brace": "{",
    "a brace and words": "{ is a brace",
    "braces": "{}",
    "JSON that was asked for": '{"city": "Oslo", "sky": "blue"}',
    "JSON of a name": '{"name": "Ada", "born": 1815}',
    "JSON of a name that breaks off": '{"name": "Ada", "born": 18',
    "JSON of a schema": '{"type": "object", "properties": {}}',
    "JSON with a type that is no tool": '{"type": "lock", "arguments": {"a": 1}}',
    "JSON of a role": '{"role": "admin", "since": 2020}',
    "JSON of calls that are none": '{"tool_calls": 3, "day": "Monday"}',
    "JSON with a type that is none": '{"type": 1, "content": 2}',
    "JSON of a content": '{"content": {"a": 1}}',
    "JSON with a kind of its own": '{"content": "a", "type": "note"}',
    "a list of numbers": "[1, 2, 3]",
    "a list of objects": '[{"a": 1}, {"a": 2}]',
    "words before a call": f"Let me look.\n{CALL}",
    "words before a fenced call": f"Let me look:\n```json\n{CALL}\n```",
    "a quoted call": f'The page says "{CALL}".',
    "a call in code": f"`{CALL}`",
}

#: Replies that were meant to be in the form: they are asked for again.
BROKEN = {
    "a brace too many": CALL + "}",
    "no end": CALL[:-1],
    "no end of the name": '{"type":"tool_call","na',
    "words behind it": f"{CALL} I am waiting.",
    "words on the next line": f"{CALL}\nI am waiting.",
    "words behind a fence": f"```json\n{CALL}\n```\nThis is what the page says.",
    "words between": f"{CALL} and {CALL}",
    "other JSON behind it": f'{CALL}\n{{"sky":"blue"}}',
    "single quotes": CALL.replace('"', "'"),
    "bare names": '{type: "tool_call", name: "look"}',
    "a comma too many": '{"type":"tool_call","name":"look","arguments":{"where":"up",}}',
    "no name": '{"type":"tool_call","arguments":{"where":"up"}}',
    "an empty name": '{"type":"tool_call","name":"","arguments":{}}',
    "a line break in an argument": CALL.replace("up", "u\np"),
    "not a number": '{"type":"tool_call","name":"look","arguments":{"where":NaN}}',
    "half a pair in an argument": CALL.replace("up", "\\ud800"),
    "nested too deeply": '{"type":"tool_call","name":"look","arguments":' + '{"a":' * 100_000,
    "nested too deeply and closed": '{"type":"tool_call","name":"look","arguments":'
    + "[" * 100_000 + "]" * 100_000 + "}",
    "tool as the type, without arguments": '{"type":"look","where":"up"}',
    "tool as the type, not closed": '{"type":"look","arguments":{"where":"up"}',
    "Chat Completions, a call without a name": '{"tool_calls":[{"arguments":{"where":"up"}}]}',
    "Chat Completions, a call that is text": '{"tool_calls":["look"]}',
    "Chat Completions, not closed": '{"tool_calls":[{"name":"look","arguments":{"where":"up"}}',
    "a tool that is none, without a type": '{"name":"lock","arguments":{}}',
    "an answer without content": '{"type":"final","text":"Hi"}',
}  # fmt: skip


def splits(text: str) -> Iterator[Sequence[str]]:
    """The text in two pieces, in every way, and character by character."""
    yield from ((text[:place], text[place:]) for place in range(len(text) + 1))
    yield tuple(text)


def improvise(canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
    """A model that has no calls of its own and keeps to the contract, word by word.

    It calls every tool whose name is said to it, and says what the tools returned.
    """
    assert not invokers, "the contract offers no tools but in words"
    reported = [_text(one) for one in canisters if isinstance(one, SupervisorCanister)]
    tools = [
        json.loads(line)
        for text in reported
        for line in text.partition("The tools, one per line:\n")[2].splitlines()
    ]
    words = last_words(canisters)
    if not tools:
        return ScriptedReply.from_chunks("I have ", "no tools.")
    if results := re.findall(r'^\{"type":"tool_result".*\}$', words, re.MULTILINE):
        contents = [json.loads(result)["content"] for result in results]
        return _say({"type": "final", "content": f"It returned: {' '.join(contents)}"})
    plain = re.sub(r"[^a-z]+", " ", words.casefold())
    named = [tool["name"] for tool in tools if re.sub(r"[^a-z]+", " ", tool["name"]) in plain]
    if not named:
        return _say({"type": "final", "content": "Hello to you!"})
    return _say(*({"type": "tool_call", "name": name, "arguments": {}} for name in named))


def _say(*objects: object) -> ScriptedReply:
    text = "\n".join(map(json.dumps, objects))
    return ScriptedReply(parts=(Part(text=tuple(re.findall(r".{1,7}|\n", text))),))


def _text(canister: Canister) -> str:
    return canister.text if isinstance(canister, SupervisorCanister | UserCanister) else ""
