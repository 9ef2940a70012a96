"""An MCP server without any package whose tools are described by a file that may change.

    python mcp_described.py TOOLS.json

Every tool gives its arguments back, and says that it ran in `TOOLS.json.ran`, one line a call.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TOOLS = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        match request["method"]:
            case "initialize":
                info = {"name": "described", "version": "1"}
                version = request["params"]["protocolVersion"]
                answer["result"] = {
                    "protocolVersion": version,
                    "capabilities": {"tools": {}},
                    "serverInfo": info,
                }
            case "tools/list":
                answer["result"] = {"tools": json.loads(TOOLS.read_text())}
            case "tools/call":
                called = request["params"]
                with TOOLS.with_name(f"{TOOLS.name}.ran").open("a") as ran:
                    ran.write(f"{called['name']}\n")
                text = json.dumps(called.get("arguments", {}))
                answer["result"] = {"content": [{"type": "text", "text": text}]}
            case method:
                answer["error"] = {"code": -32601, "message": f"there is no {method}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
