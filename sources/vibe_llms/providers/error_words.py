"""Error messages of servers that give neither a status nor a type nor a code.

One table for bodies and streams of all providers: the prompt is too long, the model is not loaded
or unknown, the model's template fails, and the time to wait. Each server has its own sentences;
`tests/providers/test_error_words.py` lists them with their servers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vibe_llms.base.exceptions import (
    ModelUnavailable,
    ProviderError,
    ReplyMalformed,
    RequestRefused,
)

#: Number of characters of a message that are searched.
_MOST_CHARACTERS = 1_500
_MOST_DIGITS = 12

_CONTEXT = r"context[ _-]?(?:length|window|size|limit|budget)"
_TOKENS = r"(?<![\w`])(?:(?:input|prompt|total|requested|request)[ _])*(?:tokens?|token counts?)"
_TOO_MUCH = (
    r"(?:exceed(?:s|ed|ing)?|overflow(?:s|ed)?|surpass(?:es|ed)?|(?:larger|longer|greater) than"
    r"|too (?:long|large|big|many|small)|does not fit|is full)"
)
_MAXIMUM = r"(?:max(?:imum)?|limit|allow|context)"

# The sentences name either the context, or tokens, the prompt, or the input, and their maximum.
_OVERFLOWS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        rf"{_TOO_MUCH}.{{0,80}}\b{_CONTEXT}",
        rf"\b{_CONTEXT}.{{0,60}}{_TOO_MUCH}",
        r"exceed_context_size|context ?window ?exceeded|context (?:the )?overflow",
        rf"{_CONTEXT} is only \d",
        rf"reached {_CONTEXT}",
        r"maximum (?:context|prompt|input|sequence|model) length (?:is|of) \d",
        r"too large for model with \d",
        r"(?:configured )?context size is [\d,]+ tokens",
        rf"{_TOKENS}.{{0,80}}{_TOO_MUCH}.{{0,60}}{_MAXIMUM}",
        (
            r"(?:prompt|input|history|conversation|request|messages?)(?: text| length)?"
            r"(?: is| was| are|:)? too (?:long|large)\b(?! image| file)(?=.{0,80}"
            r"(?:token|context|model|process|max|limit|reduc|short)|[.!:;]?\s*\Z|: ?\d)"
        ),
        (
            r"(?:prompt|input)(?:[ (\d,]*|(?: \w+)?[ (\d,]+(?:tokens?|length|size)\b.{0,40})\)? ?"
            r"exceeds?.{0,60}"
            r"(?:max|limit|allowed|context|session_len)"
        ),
        r"(?:prompt|input|request|context) length.{0,40}(?:greater|longer|larger) than max",
        r"exceeded model token limit|token limit exceeded|too many (?:input )?tokens",
        r"range of input length should be",
        r"reduce (?:the|your) (?:length of (?:the|your) )?(?:messages|prompt|input|context)",
        r"(?:inputs?`? tokens|`inputs`).{0,60}must (?:be <=|have less than)",
        r"n_keep.{0,40}>= ?n_ctx",
        r"sum of prompt length.{0,80}should not exceed",
        r"exceed max message tokens|tokens\)? is too large to process",
        r"request body too large\b.{0,80}max size: \d+ tokens",
        rf"{_TOKENS}.{{0,40}}(?:cannot exceed|only supports up to) \d",
        r"(?:上下文|tokens?|输入|prompt|提示词).{0,20}(?:超过|超出|超长|过长)|超(?:过|出).{0,20}(?:上下文|最大长度|tokens?)",
    )
)
#: Limits that are not overflows: tokens per time, output tokens, and others.
_OTHER_LIMITS = re.compile(
    r"rate.?limit|per[ -](?:min|hour|day|week|month|second)|\bTP[MD]\b|too many requests|throttl"
    r"|quota|\b(?:daily|weekly|monthly|this (?:day|week|month))\b"
    r"|max(?:_completion|_output)?_tokens`?'? (?:is|must|should|cannot|exceeds|too)"
    r"|(?:number of|requested|max(?:imum)?) (?:output|completion)[ _]tokens"
    r"|maximum tokens you requested"
    r"|\b(?:input images|image input|audio|temperature|stop sequences?|metadata)\b",
    re.IGNORECASE,
)
_N = r"\d[\d,_]{0,14}"
#: Units of a limit that is not one of tokens.
_OTHER_UNITS = re.compile(r"\)? ?(?:bytes|characters|chars|[kmg]i?b)\b", re.IGNORECASE)
_SIZES = tuple(
    re.compile(pattern.replace("{n}", _N), re.IGNORECASE | re.DOTALL)
    for pattern in (
        # The tokens first, then the limit.
        r"(?P<tokens>{n}) \+ (?P<more>{n}) > (?P<limit>{n})",
        r"(?P<tokens>{n}) tokens > (?P<limit>{n})",
        r"(?P<tokens>{n}) while limit is (?P<limit>{n})",
        r"contains (?P<tokens>{n}) tokens.{0,60}too large for model with (?P<limit>{n})",
        r"(?P<tokens>{n}) tokens exceeds \D{0,40}(?P<limit>{n})",
        r"n_keep:? \(?(?P<tokens>{n})\)? ?>= ?n_ctx:? \(?(?P<limit>{n})",
        r"first (?P<tokens>{n}) tokens when.{0,80}context length of only (?P<limit>{n})",
        r"limit of (?P<limit>{n}) tokens\. your messages resulted in (?P<tokens>{n})",
        r"total length (?P<tokens>{n})\).{0,60}context length (?P<limit>{n})",
        r"cannot exceed (?P<limit>{n}) - received (?P<tokens>{n})",
        r"token count \(?(?P<tokens>{n})\)? cannot exceed (?P<limit>{n})",
        r"token count is (?P<tokens>{n}) but.{0,40}supports up to (?P<limit>{n})",
        r"max input tokens: (?P<limit>{n}).{0,40}token count: (?P<tokens>{n})",
        r"must (?:be <=|have less than) (?P<limit>{n})(?:\D{0,40}given:? (?P<tokens>{n}))?",
        r"(?:token )?limit: (?P<limit>{n}) \(requested: (?P<tokens>{n})\)",
        (
            r"maximum (?:context|prompt|input|sequence|model) length (?:is|of) (?P<limit>{n})"
            r".{0,120}?(?:contains? (?:at least )?|has |resulted in |requested (?:about )?"
            r"|total of (?:at least )?)(?P<tokens>{n}) (?:input )?tokens"
        ),
        r"prompt is too long: (?P<tokens>{n}), model maximum context length: (?P<limit>{n})",
        r"passed (?P<tokens>{n}) input tokens.{0,120}context length is only (?P<limit>{n})",
        (
            r"(?:length|tokens?|count|contains|has|of|request|prompt|input)[\s:(]*(?:of )?"
            r"\(?(?:length )?(?P<tokens>{n})\)?(?:\.0)?\D{0,80}"
            r"(?:exceed|longer|greater|larger|but the|is over)\D{0,80}?(?P<limit>{n})"
        ),
        r"maximum (?:context|prompt|input|sequence|model) length (?:is|of) (?P<limit>{n})",
        r"context (?:length|size|window) (?:(?:is|of)(?: only)? |\()(?P<limit>{n})",
        r"max size: (?P<limit>{n}) tokens",
        r"number of tokens allowed:? \(?(?P<limit>{n})",
        r"(?:cannot|not) exceed (?:\w+ \()?(?P<limit>{n})",
        r"max_seq_len (?P<limit>{n})",
        r"should be \[\d+, ?(?P<limit>{n})\]",
    )
)
#: Tokens of the input, where those of the reply are counted too.
_INPUT = re.compile(
    rf"\((?P<first>{_N}) (?:tokens )?(?:in|from|for|of) (?:the |your )?(?:messages|prompt|input)\b"
    rf"|(?P<second>{_N}) \+ {_N} > {_N}",
    re.IGNORECASE,
)

_MODEL = re.compile(
    r"no models? (?:(?:is|are|was|has been) )?(?:currently |yet )?loaded"
    r"|(?:please|must) load a model|failed to load (?:the )?model|model (?:was )?unloaded"
    r"|\bmodel\b.{0,120}?\b(?:is |was |has )?not (?:currently |been )?loaded"
    r"|\bmodel\b(?! weights).{0,120}?\b(?:not found|(?:does not|doesn't) exist|not exist"
    r"|could not be found|(?:is )?not (?:a )?valid(?! under)|is unknown|decommissioned"
    r"|has been (?:retired|deprecated|removed))"
    r"|(?:no such|unknown|invalid) model\b|try pulling it first|not a valid model id"
    r"|no endpoints found (?:for|matching)|模型不存在",
    re.IGNORECASE | re.DOTALL,
)
_TEMPLATE = re.compile(
    r"jinja|chat[ _]template|prompt template|rendering prompt|render.{0,40}template"
    r"|template.{0,40}(?:error|fail|exception)|(?:apply|parse).{0,40}template"
    r"|roles must alternate|no user query found|system role (?:is )?not supported"
    r"|only user(?:,| and) .{0,40}roles are supported|does not support tools",
    re.IGNORECASE | re.DOTALL,
)
#: Errors of servers that cannot read what the model wrote.
_UNREADABLE = re.compile(
    r"failed to parse (?:the )?(?:input|output|tool call|generated|model|message)"
    r"|failed to call a function|(?:invalid|malformed) (?:function|tool) call",
    re.IGNORECASE,
)
#: A prompt that a filter of Azure stopped, as gateways in front of it pass it on.
_FILTERED = re.compile(r"ResponsibleAIPolicyViolation|content management policy", re.IGNORECASE)
_KINDS: tuple[tuple[re.Pattern[str], type[ProviderError]], ...] = (
    (_TEMPLATE, RequestRefused),
    (_FILTERED, RequestRefused),
    (_MODEL, ModelUnavailable),
    (_UNREADABLE, ReplyMalformed),
)

_SPAN = (
    r"\d{1,12}(?:\.\d{1,12})?\s*(?:milliseconds?|ms|minutes?|mins?|m|seconds?|secs?|s|hours?|hrs?"
    r"|h|days?|d)(?![a-z])"
)
_WAIT = re.compile(
    r"(?:try again|retry(?:ing)?|wait(?:ing)?|available|resets?|come back)\b[^\d.]{0,40}?"
    rf"(?P<span>{_SPAN}(?:[\s,]*(?:and )?{_SPAN})*)",
    re.IGNORECASE,
)
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)\s*(ms|mi|m|s|h|d)", re.IGNORECASE)
_SECONDS: Mapping[str, float] = {
    "ms": 0.001, "mi": 60.0, "m": 60.0, "s": 1.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip


def find_overflow(message: str) -> tuple[int | None, int | None] | None:
    """Return the tokens and the limit of an overflow, or None; each is None if it is not named.

    >>> find_overflow("prompt token count of 130000 exceeds the limit of 128000")
    (130000, 128000)
    """
    message = message[:_MOST_CHARACTERS]
    if _OTHER_LIMITS.search(message) and "context" not in message.lower():
        return None
    if not any(pattern.search(message) for pattern in _OVERFLOWS):
        return None
    for pattern in _SIZES:
        if found := pattern.search(message):
            if _OTHER_UNITS.match(message, found.end("limit")):
                return None, None
            return read_sizes(found)
    return None, None


def find_input(message: str) -> int | None:
    """Return the tokens of the input in an overflow that also counts the reply, or None.

    >>> find_input("you requested 9000 tokens (1000 in the messages, 8000 in the completion)")
    1000
    """
    found = _INPUT.search(message[:_MOST_CHARACTERS])
    return None if found is None else read_number(found["first"] or found["second"])


def read_sizes(found: re.Match[str]) -> tuple[int | None, int | None]:
    """Return the tokens and the limit of a match with the groups `tokens`, `more`, and `limit`."""
    sizes = {name: read_number(text) for name, text in found.groupdict().items()}
    tokens = sizes.get("tokens")
    if tokens is not None:
        tokens += sizes.get("more") or 0
    return tokens, sizes.get("limit")


def find_kind(message: str, *, failed: bool = True) -> type[ProviderError] | None:
    """Return the class of an error that repeats on every attempt, if the words name one.

    Unless the server has `failed`, the words are about the request, not about the model's output.

    >>> find_kind("No models loaded. Please load a model first.").__name__
    'ModelUnavailable'
    """
    message = message[:_MOST_CHARACTERS]
    found = next((kind for pattern, kind in _KINDS if pattern.search(message)), None)
    return None if found is ReplyMalformed and not failed else found


def find_wait(message: str) -> float | None:
    """Return the seconds to wait that the words ask for.

    >>> [find_wait(f"try again in {span}") for span in ("7.66s", "6m0s", "1 minute 5 seconds")]
    [7.66, 360.0, 65.0]
    """
    found = _WAIT.search(message[:_MOST_CHARACTERS])
    if found is None:
        return None
    return sum(
        float(number) * _SECONDS[unit.lower()] for number, unit in _PART.findall(found["span"])
    )


def read_number(value: object) -> int | None:
    """Return a number of tokens, given as an integer or as digits, or None."""
    if isinstance(value, str):
        digits = value.replace(",", "").replace("_", "")
        return int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
