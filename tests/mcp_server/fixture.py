"""The things that the suite of the MCP authors looks for, offered with the server's own code.

    python -m tests.mcp_server.fixture

It serves `/mcp` in a new home without keys, and prints the address. The names are the suite's:
https://github.com/modelcontextprotocol/conformance.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.pictures import make_png
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.mcp_server.calls import ClientRequest, McpCall
from vibe_llms.mcp_server.catalog import Listing, McpCatalog, ResourcePage, ServedTool, ToolOutput
from vibe_llms.server import mcp
from vibe_llms.server.running import RunningServer
from vibe_llms.server.settings import read_server_settings

PNG = base64.b64encode(make_png()).decode()
WAV = base64.b64encode(b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0").decode()
TEXT = {"type": "text", "text": "This is a simple text response for testing."}
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
NO_ARGUMENTS: Listing = {"type": "object", "properties": {}}
SCHEMA_2020: Listing = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
Run = Callable[[Mapping[str, Any], McpCall], Awaitable[ToolOutput]]


def embed(uri: str, kind: str, text: str) -> Listing:
    """A resource in a message."""
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": text}}


def elicit(message: str, required: Sequence[str] = (), **fields: Any) -> ClientRequest:
    """A form."""
    schema = {"type": "object", "properties": fields, "required": [*required]}
    return ClientRequest("elicitation/create", {"message": message, "requestedSchema": schema})


def sample(text: str, tokens: int = 100) -> ClientRequest:
    """A question to the client's model."""
    messages = [{"role": "user", "content": {"type": "text", "text": text}}]
    return ClientRequest("sampling/createMessage", {"messages": messages, "maxTokens": tokens})


ROOTS = ClientRequest("roots/list", {})
NAME = elicit("What is your name?", ["name"], name={"type": "string"})
CONFIRM = elicit("Please confirm", ["ok"], ok={"type": "boolean"})


def say(*contents: Listing) -> Run:
    """A tool that returns contents."""

    async def run(_: Mapping[str, Any], __: McpCall) -> ToolOutput:
        return ToolOutput(content=contents)

    return run


async def fail(_: Mapping[str, Any], __: McpCall) -> ToolOutput:
    """A tool that fails."""
    return ToolOutput.from_text("This tool intentionally returns an error for testing", failed=True)


async def log(_: Mapping[str, Any], call: McpCall) -> ToolOutput:
    """A tool that logs."""
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await call.log("info", text)
        await asyncio.sleep(0.05)
    return ToolOutput.from_text("done")


async def progress(_: Mapping[str, Any], call: McpCall) -> ToolOutput:
    """A tool that reports progress."""
    for done in (0, 50, 100):
        await call.report(done, 100)
        await asyncio.sleep(0.05)
    return ToolOutput.from_text("done")


async def ask_model(arguments: Mapping[str, Any], call: McpCall) -> ToolOutput:
    """A tool that asks the client's model."""
    answers = await call.ask({"asked": sample(arguments["prompt"])})
    return ToolOutput.from_text(f"LLM response: {answers['asked']['content']['text']}")


async def ask_user(arguments: Mapping[str, Any], call: McpCall) -> ToolOutput:
    """A tool that asks the user."""
    form = elicit(
        arguments["message"],
        ["username", "email"],
        username={"type": "string", "description": "User's response"},
        email={"type": "string", "description": "User's email address"},
    )
    answers = await call.ask({"asked": form})
    return ToolOutput.from_text(f"User response: {json.dumps(answers['asked'])}")


def ask_form(**fields: Any) -> Run:
    """A tool that shows a form."""

    async def run(_: Mapping[str, Any], call: McpCall) -> ToolOutput:
        answer = (await call.ask({"form": elicit("Fill it in", **fields)}))["form"]
        action, content = answer.get("action"), json.dumps(answer.get("content"))
        return ToolOutput.from_text(f"Elicitation completed: action={action}, content={content}")

    return run


async def greet(_: Mapping[str, Any], call: McpCall) -> ToolOutput:
    """A tool that asks for a name until it gets one."""
    while True:
        answer = (await call.ask({"user_name": NAME}))["user_name"]
        content = answer.get("content")
        name = content.get("name") if isinstance(content, Mapping) else None
        if answer.get("action") == "accept" and isinstance(name, str):
            return ToolOutput.from_text(f"Hello, {name}!")


def ask_once(state: Listing | None = None, /, **requests: ClientRequest) -> Run:
    """A tool that asks several things at once, and returns the answers."""

    async def run(_: Mapping[str, Any], call: McpCall) -> ToolOutput:
        wanted = {key: one for key, one in requests.items() if call.client.supports(one.capability)}
        answers = await call.ask(wanted, state)
        text = "state-ok " if call.state == state and state is not None else ""
        return ToolOutput.from_text(text + json.dumps(answers))

    return run


async def ask_twice(_: Mapping[str, Any], call: McpCall) -> ToolOutput:
    """A tool that asks in two rounds, with the first answer in its state."""
    name = (call.state or {}).get("name")
    if name is None:
        form = elicit("Step 1: What is your name?", ["name"], name={"type": "string"})
        name = (await call.ask({"step1": form}, {"round": 1}))["step1"]["content"]["name"]
    form = elicit("Step 2: What is your favorite color?", ["color"], color={"type": "string"})
    color = (await call.ask({"step2": form}, {"name": name}))["step2"]["content"]["color"]
    return ToolOutput.from_text(f"{name} likes {color}")


async def need_sampling(_: Mapping[str, Any], call: McpCall) -> ToolOutput:
    """A tool that needs a capability."""
    await call.ask({"asked": sample("x")})
    return ToolOutput.from_text("done")


async def ask_while_streaming(_: Mapping[str, Any], call: McpCall) -> ToolOutput:
    """A tool that reports, and then asks."""
    await call.report(1)
    await call.ask({"asked": CONFIRM})
    return ToolOutput.from_text("done")


def choices(*values: str) -> Sequence[Listing]:
    """Values with titles."""
    return [{"const": one, "title": one.title()} for one in values]


ENUM = ["option1", "option2", "option3"]
DEFAULTS = ask_form(
    name={"type": "string", "default": "John Doe"},
    age={"type": "integer", "default": 30},
    score={"type": "number", "default": 95.5},
    status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    verified={"type": "boolean", "default": True},
)
ENUMS = ask_form(
    untitledSingle={"type": "string", "enum": ENUM},
    titledSingle={"type": "string", "oneOf": choices("value1", "value2", "value3")},
    legacyEnum={
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    untitledMulti={"type": "array", "items": {"type": "string", "enum": ENUM}},
    titledMulti={"type": "array", "items": {"anyOf": choices("value1", "value2", "value3")}},
)
PREFIX = "test_input_required_result"
CAPITAL = sample("What is the capital of France?")
TOOLS: Mapping[str, tuple[Run, Listing]] = {
    "test_simple_text": (say(TEXT), NO_ARGUMENTS),
    "test_image_content": (say(IMAGE), NO_ARGUMENTS),
    "test_audio_content": (
        say({"type": "audio", "data": WAV, "mimeType": "audio/wav"}),
        NO_ARGUMENTS,
    ),
    "test_embedded_resource": (
        say(embed("test://embedded-resource", "text/plain", "This is an embedded resource.")),
        NO_ARGUMENTS,
    ),
    "test_multiple_content_types": (
        say(
            {"type": "text", "text": "Multiple content types test:"},
            IMAGE,
            embed("test://mixed-content-resource", "application/json", '{"test":"data"}'),
        ),
        NO_ARGUMENTS,
    ),
    "test_tool_with_logging": (log, NO_ARGUMENTS),
    "test_logging_tool": (log, NO_ARGUMENTS),
    "test_error_handling": (fail, NO_ARGUMENTS),
    "test_tool_with_progress": (progress, NO_ARGUMENTS),
    "test_sampling": (
        ask_model,
        {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
    ),
    "test_elicitation": (
        ask_user,
        {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
    ),
    "test_elicitation_sep1034_defaults": (DEFAULTS, NO_ARGUMENTS),
    "test_elicitation_sep1330_enums": (ENUMS, NO_ARGUMENTS),
    "json_schema_2020_12_tool": (say(TEXT), SCHEMA_2020),
    "test_missing_capability": (need_sampling, NO_ARGUMENTS),
    "test_streaming_elicitation": (ask_while_streaming, NO_ARGUMENTS),
    f"{PREFIX}_elicitation": (greet, NO_ARGUMENTS),
    f"{PREFIX}_sampling": (ask_once(capital_question=CAPITAL), NO_ARGUMENTS),
    f"{PREFIX}_list_roots": (ask_once(client_roots=ROOTS), NO_ARGUMENTS),
    f"{PREFIX}_request_state": (ask_once({"step": 1}, confirm=CONFIRM), NO_ARGUMENTS),
    f"{PREFIX}_multiple_inputs": (
        ask_once(
            {"step": 1},
            user_name=NAME,
            greeting=sample("Generate a greeting", 50),
            client_roots=ROOTS,
        ),
        NO_ARGUMENTS,
    ),
    f"{PREFIX}_multi_round": (ask_twice, NO_ARGUMENTS),
    f"{PREFIX}_tampered_state": (ask_once({"step": 1}, confirm=CONFIRM), NO_ARGUMENTS),
    f"{PREFIX}_capabilities": (ask_once(user_name=NAME, capital_question=CAPITAL), NO_ARGUMENTS),
}


class Resources:
    """The suite's resources."""

    async def list(self, cursor: str) -> ResourcePage:
        """Both of them."""
        names = {"test://static-text": "text/plain", "test://static-binary": "image/png"}
        return ResourcePage(
            [
                {"uri": uri, "name": uri, "description": "A test.", "mimeType": kind}
                for uri, kind in names.items()
            ]
        )

    async def list_templates(self) -> Sequence[Listing]:
        """The template."""
        return [{"uriTemplate": "test://template/{id}/data", "name": "template"}]

    async def read(self, uri: str) -> Sequence[Listing] | None:
        """One of them, or what the template gives."""
        if uri == "test://static-text":
            text = "This is the content of the static text resource."
            return [{"uri": uri, "mimeType": "text/plain", "text": text}]
        if uri == "test://static-binary":
            return [{"uri": uri, "mimeType": "image/png", "blob": PNG}]
        if uri.startswith("test://template/"):
            identity = uri.split("/")[3]
            data = {"id": identity, "templateTest": True, "data": f"Data for ID: {identity}"}
            return [{"uri": uri, "mimeType": "application/json", "text": json.dumps(data)}]
        return None

    async def complete(self, uri: str, argument: str, begun: str) -> Sequence[str]:
        """A number."""
        return [f"{begun}1"]


class Prompts:
    """The suite's prompts."""

    arguments: Mapping[str, Sequence[str]] = {
        "test_simple_prompt": (),
        "test_prompt_with_arguments": ("arg1", "arg2"),
        "test_prompt_with_embedded_resource": ("resourceUri",),
        "test_prompt_with_image": (),
        f"{PREFIX}_prompt": (),
    }

    async def list(self) -> Sequence[Listing]:
        """All of them."""
        return [
            {
                "name": name,
                "description": "A test.",
                "arguments": [{"name": one, "required": True} for one in arguments],
            }
            for name, arguments in self.arguments.items()
        ]

    async def get(self, name: str, arguments: Mapping[str, str], call: McpCall) -> Listing | None:
        """One of them."""
        contents: Sequence[Listing]
        match name:
            case "test_simple_prompt":
                contents = [{"type": "text", "text": "This is a simple prompt for testing."}]
            case "test_prompt_with_arguments":
                one, other = arguments["arg1"], arguments["arg2"]
                text = f"Prompt with arguments: arg1='{one}', arg2='{other}'"
                contents = [{"type": "text", "text": text}]
            case "test_prompt_with_embedded_resource":
                text = "Embedded resource content for testing."
                embedded = embed(arguments["resourceUri"], "text/plain", text)
                ask = {"type": "text", "text": "Please process the embedded resource above."}
                contents = [embedded, ask]
            case "test_prompt_with_image":
                contents = [IMAGE, {"type": "text", "text": "Please analyze the image above."}]
            case _ if name == f"{PREFIX}_prompt":
                message = "What context should the prompt use?"
                form = elicit(message, ["context"], context={"type": "string"})
                answer = (await call.ask({"user_context": form}))["user_context"]
                contents = [{"type": "text", "text": str(answer["content"]["context"])}]
            case _:
                return None
        return {"messages": [{"role": "user", "content": content} for content in contents]}


def produce_catalog(*_: Any) -> McpCatalog:
    """The catalog of the suite, instead of conversations."""
    tools = [
        ServedTool({"name": name, "description": f"{name}.", "inputSchema": schema}, run)
        for name, (run, schema) in TOOLS.items()
    ]
    return McpCatalog(tools=tools, resources=Resources(), prompts=Prompts())


async def main(home: Path) -> None:
    """Serve until a signal."""
    setattr(mcp, "produce_catalog", produce_catalog)  # noqa: B010  (it is not exported)
    configuration = load_configuration(Places.under(home), overrides={"server": {"port": 0}})
    settings = read_server_settings(configuration)

    def show() -> None:
        print(f"{running.url}/mcp", flush=True)

    running = RunningServer(configuration, settings, keys=False, log=lambda _: None, opened=show)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, running.end)
    await running.serve()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
