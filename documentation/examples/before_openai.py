import json
import sys

from openai import OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam


def temperature(city: str) -> int:
    return {"Oslo": -4}.get(city, 20)


TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "temperature",
        "description": "Return the temperature in a city, in degrees Celsius.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
client = OpenAI()
messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": "Be brief."}]
for question in sys.argv[1:]:
    messages.append({"role": "user", "content": question})
    while True:
        reply = client.chat.completions.create(model="gpt-6.1-sol", messages=messages, tools=[TOOL])
        message = reply.choices[0].message
        messages.append(message.to_dict())  # type: ignore[arg-type]
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            assert call.type == "function"
            result = temperature(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    print(message.content)
