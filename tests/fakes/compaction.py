"""Strict fakes of providers that summarize a conversation themselves.

What is a rule of Anthropic's is in the errors of the package anthropic 2.14 (`compaction_*`); what
is one of OpenAI's, in the types of openai 3.57.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from anthropic.types.beta.beta_compaction_config_param import BetaCompactionConfigParam
from msgspec.structs import replace
from openai.types.responses.response_compact_params import ResponseCompactParams

from tests.fakes.anthropic import FakeAnthropic, check_request
from tests.fakes.anthropic import answer_json as answer_anthropic
from tests.fakes.anthropic import failure as fail_anthropic
from tests.fakes.openai import RESPONSES, FakeOpenAI
from tests.fakes.openai import answer_json as answer_openai
from tests.fakes.openai import failure as fail_openai
from tests.fakes.server import HttpAnswer, ReceivedRequest
from tests.fakes.strict import Refused, validate

BETA = "compact-2026-09-04"
SUMMARY = "The user wants a boat of oak, and the keel is laid. The mast comes next."
#: Tokens of the summary itself, which Anthropic reports beside those of the message.
ITERATION = {
    "type": "compaction",
    "input_tokens": 700,
    "output_tokens": 30,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 300,
}


class CompactingAnthropic(FakeAnthropic):
    """Anthropic's server; with `forgets`, it does not know its own summaries any more."""

    def __init__(self) -> None:
        super().__init__()
        self.compactions = 0
        self.returned = 0
        self.forgets = False
        self.summary: str | None = SUMMARY
        self._contents: dict[str, str | None] = {}

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if not request.path.endswith("/v1/messages"):
            return super().respond(request)
        asked = request.json
        try:
            blocks = [
                (place, number, block)
                for place, message in enumerate(asked["messages"])
                if isinstance(message["content"], list)
                for number, block in enumerate(message["content"])
                if block["type"] == "compaction"
            ]
            if blocks:
                self._check(request, blocks)
                first, *others = asked["messages"]
                rest = first["content"][1:]
                messages = [{**first, "content": rest}, *others] if rest else others
                body = json.dumps({**asked, "messages": messages}).encode()
                request = replace(request, body=body)
            if "compaction" in asked:
                return self._compact(request, request.json)
        except Refused as error:
            self.refusals.append(str(error))
            return fail_anthropic(400, "invalid_request_error", str(error))
        self.returned += bool(blocks)
        return super().respond(request)

    def _compact(self, request: ReceivedRequest, asked: Mapping[str, Any]) -> HttpAnswer:
        if BETA not in request.headers.get("anthropic-beta", ""):
            raise Refused("compaction: Extra inputs are not permitted")
        validate(BetaCompactionConfigParam, asked["compaction"])
        others = {name: value for name, value in asked.items() if name != "compaction"}
        check_request(replace(request, body=json.dumps(others).encode()), self.issued)
        for name in ("context_management", "stop_sequences"):
            if name in asked:
                raise Refused(f"{name} cannot be combined with compaction")
        if "format" in asked.get("output_config", {}):
            raise Refused("output_config.format cannot be combined with compaction")
        for fallback in asked.get("fallbacks", ()):
            if "format" in fallback.get("output_config", {}):
                raise Refused("fallbacks.output_config.format cannot be combined with compaction")
        self.compactions += 1
        signature = f"SIG{self.compactions}"
        self._contents[signature] = self.summary
        block = {"type": "compaction", "content": self.summary, "signature": signature}
        usage = {
            "input_tokens": 0,
            "output_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "iterations": [ITERATION],
        }
        message = {
            "id": f"msg_compact_{self.compactions}",
            "type": "message",
            "role": "assistant",
            "model": asked["model"],
            "content": [block],
            "stop_reason": "compaction",
            "stop_sequence": None,
            "usage": usage,
        }
        return answer_anthropic(message)

    def _check(self, request: ReceivedRequest, blocks: list[tuple[int, int, Any]]) -> None:
        if BETA not in request.headers.get("anthropic-beta", ""):
            raise Refused("messages.0.content.0: unknown block 'compaction'")
        if len(blocks) > 1:
            raise Refused("compaction_block_ambiguous")
        [(place, number, block)] = blocks
        if (place, number) != (0, 0) or request.json["messages"][0]["role"] != "assistant":
            raise Refused("compaction_block_misplaced")
        signature = block.get("signature")
        if self.forgets or signature not in self._contents:
            raise Refused("compaction_signature_invalid")
        if block.get("content") != self._contents[signature]:
            raise Refused("compaction_content_mismatch")


class CompactingOpenAI(FakeOpenAI):
    """OpenAI's server; with `forgets`, its keys were rotated."""

    def __init__(self) -> None:
        super().__init__()
        self.compactions = 0
        self.returned = 0
        self.forgets = False

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        asked = request.json if request.body else {}
        if request.path == f"{RESPONSES}/compact":
            return self._compact(asked)
        if request.path != RESPONSES:
            return super().respond(request)
        items = asked["input"] if isinstance(asked["input"], list) else []
        known = [one for one in items if one.get("type") == "compaction"]
        if not known:
            return super().respond(request)
        if self.forgets or any(not one["encrypted_content"].startswith("ENC") for one in known):
            self.refusals.append("invalid_encrypted_content")
            return fail_openai(
                400,
                "invalid_request_error",
                "The encrypted content could not be verified.",
                "invalid_encrypted_content",
            )
        self.returned += 1
        others = [one for one in items if one.get("type") != "compaction"]
        return super().respond(
            replace(request, body=json.dumps({**asked, "input": others}).encode())
        )

    def _compact(self, asked: Mapping[str, Any]) -> HttpAnswer:
        try:
            validate(ResponseCompactParams, asked)
        except Refused as error:
            self.refusals.append(str(error))
            return fail_openai(400, "invalid_request_error", str(error))
        self.compactions += 1
        item = {
            "id": f"cmp_{self.compactions}",
            "type": "compaction",
            "encrypted_content": f"ENC{self.compactions}",
        }
        users = [
            {"type": "message", "id": f"msg_{n}", "status": "completed", **one}
            for n, one in enumerate(asked["input"])
            if one.get("role") == "user"
        ]
        usage = {
            "input_tokens": 900,
            "input_tokens_details": {"cached_tokens": 300},
            "output_tokens": 40,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 940,
        }
        return answer_openai(
            {
                "id": f"resp_{self.compactions}",
                "object": "response.compaction",
                "created_at": 1,
                "output": [*users, item],
                "usage": usage,
            }
        )
