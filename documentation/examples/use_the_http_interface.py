import json
import os
import subprocess

import httpx2

SERVE = ("vibe-llms", "serve", "--port", "8643", "--quiet")

with subprocess.Popen(SERVE, stdout=subprocess.PIPE, text=True) as server:
    assert server.stdout is not None
    for line in (next(server.stdout), next(server.stdout)):
        name, _, value = line.strip().removeprefix("export ").partition("=")
        os.environ[name] = value

    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    with httpx2.Client(base_url="http://127.0.0.1:8643/api", headers=headers) as client:
        with open("notes.txt", "rb") as file:
            notes = client.post("/files?name=notes.txt", content=file.read()).json()
        print("file:", notes["mimetype"], notes["size"])

        client.post("/memory", json={"content": "Ada likes herons."})
        found = client.get("/memory/search?text=herons").json()
        print("remembered:", [one["content"] for one in found["entries"]])

        order = {"model": "scripted/demo", "prompt": "What is in it?", "files": [notes["id"]]}
        run = client.post("/runs", json=order).json()
        with client.stream("GET", f"/runs/{run['id']}/events") as events:
            for line in events.iter_lines():
                if line.startswith("data: "):
                    last = json.loads(line.removeprefix("data: "))
        print("run:", last["status"])

        place = f"/conversations/{run['conversation']}"
        client.patch(place, json={"name": "About my notes"})
        shown = client.get(place).json()
        print(shown["name"], [message["role"] for message in shown["messages"]])
    server.terminate()
