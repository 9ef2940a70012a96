import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import quote, urljoin

import httpx2

from vibe_llms import ApprovalRequest, Decision, Invoker, VibeLlmsError, open_session


def read_tools(url: str) -> Iterator[Invoker]:
    """Yield a tool for each operation of an OpenAPI 3.1 document."""
    document = json.loads(httpx2.get(url).text.replace("#/components/schemas/", "#/$defs/"))
    base = urljoin(url, document.get("servers", [{"url": "/"}])[0]["url"])
    shared = document.get("components", {}).get("schemas", {})
    for path, operations in document["paths"].items():
        for method in sorted(operations.keys() & {"get", "post", "put", "patch", "delete"}):
            yield produce_tool(method, base.rstrip("/") + path, operations[method], shared)


def produce_tool(method: str, address: str, operation: Any, shared: Any) -> Invoker:
    inputs = operation.get("parameters", [])
    properties = {one["name"]: one["schema"] for one in inputs}
    required = [one["name"] for one in inputs if one.get("required")]
    if body := operation.get("requestBody"):
        properties["body"] = body["content"]["application/json"]["schema"]
        required.append("body")

    def call(**given: Any) -> str:
        in_path = {one["name"]: given.pop(one["name"]) for one in inputs if one["in"] == "path"}
        place = address.format(**{name: quote(str(one), "") for name, one in in_path.items()})
        body = given.pop("body", None)
        answer = httpx2.request(method, place, params=given, json=body, timeout=20)
        return f"{answer.status_code} {answer.text}"

    schema = {"type": "object", "properties": properties, "required": required, "$defs": shared}
    name, description = operation["operationId"], operation.get("summary", "")
    approval: Literal["allow", "ask"] = "allow" if method == "get" else "ask"
    return Invoker.from_schema(
        name, schema, call, description=description, approval=approval, outside=True
    )


def approve(request: ApprovalRequest) -> Decision:
    answer = input(f"{request.invocation.name} {request.invocation.arguments}? [y/n] ")
    return Decision.ALLOW if answer == "y" else Decision.DENY


async def main(url: str, question: str, model: str = "anthropic/claude-sonnet-5-5") -> None:
    async with open_session(approver=approve) as session:
        conversation = await session.begin(model, invokers=list(read_tools(url)))
        print((await conversation.converse(question)).text)


if len(sys.argv) != 3:
    sys.exit("usage: python openapi_tools.py URL QUESTION")
try:
    asyncio.run(main(sys.argv[1], sys.argv[2]))
except (httpx2.HTTPError, ValueError, VibeLlmsError) as error:
    sys.exit(str(error))
