import json
import os
import subprocess

from openai import OpenAI

SERVE = ("vibe-llms", "serve", "--port", "8661", "--quiet")
LIST = ("vibe-llms", "list", "--json")

with subprocess.Popen(SERVE, stdout=subprocess.PIPE, text=True) as server:
    assert server.stdout is not None
    for line in (next(server.stdout), next(server.stdout)):
        name, _, value = line.strip().removeprefix("export ").partition("=")
        os.environ[name] = value

    with OpenAI() as client:
        stream = client.chat.completions.create(
            model="scripted/demo", messages=[{"role": "user", "content": "Hello!"}], stream=True
        )
        print("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))

        first = client.responses.create(model="scripted/demo", input="Hello again!")
        second = client.responses.create(input="Thanks.", previous_response_id=first.id)
        print("response:", second.status)

        file = client.files.create(file=("trip.md", b"We saw a heron."), purpose="user_data")
        client.responses.create(
            model="scripted/demo",
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "Read this."},
                        {"type": "input_file", "file_id": file.id},
                    ],
                }
            ],
        )
        print("file:", file.filename, file.bytes)
    server.terminate()

print("stored:", [one["title"] for one in json.loads(subprocess.check_output(LIST))])
