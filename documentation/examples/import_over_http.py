import os
import subprocess
import time
from typing import Any

import httpx2

SERVE = ("vibe-llms", "serve", "--port", "8648", "--quiet")


def show(state: dict[str, Any]) -> None:
    counts = {name: number for name, number in state["counts"].items() if number}
    print("dry run:" if state["dry_run"] else "import:", state["state"], counts)


def wait(client: httpx2.Client, state: dict[str, Any]) -> dict[str, Any]:
    while state["state"] in ("waiting", "running"):
        time.sleep(0.1)
        state = client.get(f"/imports/{state['id']}").json()
    show(state)
    return state


with subprocess.Popen(SERVE, stdout=subprocess.PIPE, text=True) as server:
    assert server.stdout is not None
    for line in (next(server.stdout), next(server.stdout)):
        name, _, value = line.strip().removeprefix("export ").partition("=")
        os.environ[name] = value

    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    with httpx2.Client(base_url="http://127.0.0.1:8648/api", headers=headers) as client:
        query = {"name": "conversations.json", "dry_run": "true", "tag": "old"}
        with open("conversations.json", "rb") as file:
            # The file is sent in parts, and not read into memory.
            state = client.post("/imports", params=query, content=file).json()
        wait(client, state)
        started = client.post(f"/imports/{state['id']}/start").json()
        wait(client, started)
        report = client.get(f"/imports/{state['id']}/report").json()
        for one in report["conversations"]:
            print(f"{one['status']}: {one['title']}", *one["reasons"])
    server.terminate()
