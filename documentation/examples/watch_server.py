import http.client
import os
import subprocess

from openai import OpenAI

SERVE = ("vibe-llms", "serve", "--port", "8644", "--quiet")
SHOWN = (
    *("vibe_llms_requests_total", "vibe_llms_tokens_total"),
    *("vibe_llms_runs{", "vibe_llms_ended_runs_total"),
)

with subprocess.Popen(SERVE, stdout=subprocess.PIPE, text=True) as server:
    assert server.stdout is not None
    for line in (next(server.stdout), next(server.stdout)):
        name, _, value = line.strip().removeprefix("export ").partition("=")
        os.environ[name] = value

    with OpenAI() as client:
        client.responses.create(model="scripted/demo", input="Hello!")

    metrics = http.client.HTTPConnection("127.0.0.1", 8644)
    metrics.request("GET", "/metrics", headers={"x-api-key": os.environ["OPENAI_API_KEY"]})
    for line in metrics.getresponse().read().decode().splitlines():
        if line.startswith(SHOWN):
            print(line)
    metrics.close()
    server.terminate()
