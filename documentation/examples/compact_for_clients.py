import os
import subprocess
from typing import Any

from anthropic import Anthropic
from openai import OpenAI

SERVE = ("vibe-llms", "serve", "--port", "8666", "--quiet")
MODEL = "scripted/sailor"
QUESTION = "How do I sail around the island?"

with subprocess.Popen(SERVE, stdout=subprocess.PIPE, text=True) as server:
    assert server.stdout is not None
    for line in (next(server.stdout), next(server.stdout)):
        name, _, value = line.strip().removeprefix("export ").partition("=")
        os.environ[name] = value

    messages: list[Any] = []
    with OpenAI() as client:
        for _day in range(5):
            messages.append({"role": "user", "content": QUESTION})
            answer = client.responses.create(model=MODEL, input=messages, store=False)
            messages.append({"role": "assistant", "content": answer.output_text})
        compacted = client.responses.compact(model=MODEL, input=messages)
        items: list[Any] = [one.to_dict() for one in compacted.output]
        items.append({"role": "user", "content": QUESTION})
        later = client.responses.create(model=MODEL, input=items, store=False)
        assert answer.usage
        assert later.usage
        print(answer.usage.input_tokens, "tokens, then", later.usage.input_tokens)

    edit: Any = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 900}}
    url = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
    with Anthropic(base_url=url, api_key=os.environ["OPENAI_API_KEY"]) as other:
        messages.append({"role": "user", "content": QUESTION})
        reply = other.beta.messages.create(
            model=MODEL, max_tokens=500, messages=messages, context_management={"edits": [edit]}
        )
        print([block.type for block in reply.content])
    server.terminate()
