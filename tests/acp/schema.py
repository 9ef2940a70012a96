"""The published schema of the Agent Client Protocol, and checks of lines against it.

`tests/data/acp/schema-1.7.0.json` is `schema/v1/schema.json` of
github.com/agentclientprotocol/agent-client-protocol at b7f0005493b98de32fabee3e9540e2b64da68535,
the crate agent-client-protocol-schema 1.7.0 (Apache-2.0), unchanged.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = json.loads((Path(__file__).parents[1] / "data/acp/schema-1.7.0.json").read_text("utf-8"))
#: Definitions by the side that receives them, the method, and whether it is a response.
_DEFINITIONS = {
    (one["x-side"], one["x-method"], name.endswith("Response")): name
    for name, one in SCHEMA["$defs"].items()
    if "x-method" in one
}
#: Members with a value of several types, which must have none that their type does not name.
_CLOSED = ("SessionUpdate", "ContentBlock", "SessionConfigOption", "ToolCallContent")


def check_sent(message: dict[str, Any], methods: dict[Any, str]) -> None:
    """Check a message of the agent; `methods` are those of the client's requests, by id."""
    assert message.keys() <= {"jsonrpc", "id", "method", "params", "result", "error"}, message
    assert message["jsonrpc"] == "2.0"
    match message:
        case {"method": "$/cancel_request", "params": params}:
            _check("CancelRequestNotification", params)
        case {"method": method, "params": params}:
            _check(_DEFINITIONS["client", method, False], params)
        case {"result": result, "id": identity}:
            _check(_DEFINITIONS["agent", methods[identity], True], result)
        case {"error": error}:
            assert "id" in message
            _check("Error", error)
        case _:
            raise AssertionError(f"not a message: {message}")
    _validate("", message)


def _check(name: str, value: Any) -> None:
    _validate(name, value)


def _validate(name: str, value: Any) -> None:
    errors = [*_validator(name).iter_errors(value)]
    assert not errors, f"{name or 'message'}: {[error.message for error in errors]}: {value}"


@cache
def _validator(name: str) -> Draft202012Validator:
    """A validator of a definition, or of whole messages. It refuses unknown members too."""
    definitions = {
        key: {**one, "unevaluatedProperties": False} if key in _CLOSED else one
        for key, one in SCHEMA["$defs"].items()
    }
    whole: dict[str, Any] = {**SCHEMA, "$defs": definitions}
    if name:
        whole = {
            "$schema": SCHEMA["$schema"],
            "$defs": definitions,
            "$ref": f"#/$defs/{name}",
            "unevaluatedProperties": False,
        }
    Draft202012Validator.check_schema(whole)
    return Draft202012Validator(whole)
