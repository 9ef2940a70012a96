import sys

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

client = OpenAI()
messages: list[ChatCompletionMessageParam] = []
for question in sys.argv[1:]:
    messages.append({"role": "user", "content": question})
    stream = client.chat.completions.create(model="guide", messages=messages, stream=True)
    answer = ""
    for chunk in stream:
        if chunk.choices:
            text = chunk.choices[0].delta.content or ""
            print(text, end="", flush=True)
            answer += text
    print()
    messages.append({"role": "assistant", "content": answer})
