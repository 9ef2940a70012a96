import json
import subprocess
from pathlib import Path
from typing import Any

# The command of the editor's settings; the demo needs neither a key nor a tool.
settings = json.loads(Path("zed_settings.json").read_text())["agent_servers"]["vibe-llms"]
command = [settings["command"], *settings["args"][:1], "-m", "scripted/demo"]


def ask(number: int, method: str, **params: Any) -> Any:
    """Send a request; print the text that arrives, and return the result."""
    assert agent.stdin is not None
    assert agent.stdout is not None
    request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    agent.stdin.write(f"{json.dumps(request)}\n")
    agent.stdin.flush()
    while (message := json.loads(agent.stdout.readline())).get("id") != number:
        update = message["params"]["update"]
        if update["sessionUpdate"] == "agent_message_chunk":
            print(update["content"]["text"], end="")
    return message["result"]


with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
    ask(0, "initialize", protocolVersion=1)
    session = ask(1, "session/new", cwd="/", mcpServers=[])["sessionId"]
    prompt = [{"type": "text", "text": "Where are conversations stored?"}]
    print(ask(2, "session/prompt", sessionId=session, prompt=prompt)["stopReason"])
    listed = ask(3, "session/list")["sessions"]
    print([one["title"] for one in listed if one["sessionId"] == session])
