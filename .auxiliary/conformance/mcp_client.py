#!/usr/bin/env python
"""A client for the MCP authors' conformance suite, built only on what this library offers to all.

The suite starts a server, runs `python mcp_client.py URL`, and judges what it sees. It says by
MCP_CONFORMANCE_SCENARIO what is wanted, and gives what that needs in MCP_CONFORMANCE_CONTEXT.
"""

import asyncio
import json
import os
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from vibe_llms import ElicitationAnswer, ElicitationRequest, Invoker, open_session
from vibe_llms.base.exceptions import ArgumentsInvalid, EnsembleFailed
from vibe_llms.ensembles.mcp import McpEnsemble

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
VERSION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
METADATA = "https://conformance-test.local/client-metadata.json"


def answer(request: ElicitationRequest) -> ElicitationAnswer:
    """Accept every form as it is, and other servers to sign in at; go where an address leads."""
    if request.url:
        urllib.request.urlopen(request.url).close()  # a page that leads back to us
    allowed = {field.name: True for field in request.fields if field.name == "allow"}
    return ElicitationAnswer("accept", allowed)


def sign_in(url: str) -> dict[str, object]:
    """The table `oauth` of the row."""
    if "client_id" not in CONTEXT:
        return {"client-metadata-url": METADATA}
    table: dict[str, object] = {"client-id": CONTEXT["client_id"]}
    if "client_secret" in CONTEXT:
        os.environ["CLIENT_SECRET"] = CONTEXT["client_secret"]
        table["client-secret-environment"] = "CLIENT_SECRET"
    if "client-credentials" in SCENARIO:
        about = urllib.parse.urljoin(url, "/.well-known/oauth-protected-resource/mcp")
        with urllib.request.urlopen(about) as found:
            issuer = json.load(found)["authorization_servers"][0]
        table |= {"grant": "client-credentials", "issuer": issuer}
    if "private_key_pem" in CONTEXT:
        key = Path(tempfile.mkdtemp()) / "key.pem"
        key.write_text(CONTEXT["private_key_pem"])
        table |= {"private-key-file": str(key), "signing-algorithm": CONTEXT["signing_algorithm"]}
    return table


def plan(tools: Sequence[Invoker]) -> list[tuple[str, str]]:
    """Which tools to call, and with what: as the suite says, or each once with something."""
    if "toolCalls" in CONTEXT:
        return [(one["name"], json.dumps(one["arguments"])) for one in CONTEXT["toolCalls"]]
    schema = tools[0].arguments_schema if tools else {}
    some = {"number": 1, "integer": 1, "boolean": True, "array": [], "object": schema}
    return [
        (
            tool.name,
            json.dumps(
                {
                    name: some.get(one.get("type"), "a")
                    for name, one in tool.arguments_schema.get("properties", {}).items()
                }
            ),
        )
        for tool in tools
    ]


async def main(url: str) -> None:
    row = {"module": "vibe_llms.ensembles.mcp", "url": url, "oauth": sign_in(url)}
    if VERSION:
        row["protocol"] = "stateless" if VERSION >= "2026" else "handshake"
    with tempfile.TemporaryDirectory() as home:
        async with open_session(
            home=home, configuration={"ensembles": {"server": row}}, elicitor=answer
        ) as session:
            server = await session.open_ensemble("server")
            assert isinstance(server, McpEnsemble)
            for name, arguments in plan(server.invokers):
                try:
                    output = await server.invoke(name, arguments)
                    print(name, "failed:" if output.failed else "returned:", output.text)
                except (ArgumentsInvalid, EnsembleFailed) as error:
                    print(error, file=sys.stderr)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1]))
    except EnsembleFailed as error:
        sys.exit(str(error))
