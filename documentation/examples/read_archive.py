import json
import os
from pathlib import Path

home = Path(os.environ["VIBE_LLMS_HOME"])
for file in home.glob("conversations/*/messages.jsonl"):
    # Not splitlines(): JSON may contain other line-ending characters.
    for line in file.read_bytes().split(b"\n")[:-1]:
        message = json.loads(line)
        for content in message.get("contents", []):
            text = content.get("data", "")
            if isinstance(text, dict) and text["by"] == "hash":
                text = (home / "content" / text["hash"] / "data").read_text()
            print(f"{message['role']}: {text}")
