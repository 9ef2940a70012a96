import os
import subprocess

from vibe_llms.testing import fake_server

with fake_server(["Hello ", "there."]) as server:
    command = ["vibe-llms", "chat", "-n", "-m", "anthropic/claude-sonnet-5-5", "Hi!"]
    subprocess.run(command, env={**os.environ, **server.environment}, check=True)

(received,) = server.received
print(received.interface, received.model, received.body["messages"][0]["content"][0]["text"])
