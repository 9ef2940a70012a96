import json
import os
import subprocess
import sys
from pathlib import Path

from openai import APIStatusError, OpenAI, RateLimitError

AGENT = "support"
KEYS = Path("customers.json")


def access_key(customer: str) -> str:
    """Return the key of a customer at the server; a new customer gets one."""
    keys: dict[str, str] = json.loads(KEYS.read_text()) if KEYS.exists() else {}
    if customer not in keys:
        command = ["vibe-llms", "users", "add", customer, "--json"]
        keys[customer] = json.loads(subprocess.check_output(command))["key"]
        KEYS.touch(mode=0o600)
        KEYS.write_text(json.dumps(keys))
    return keys[customer]


def describe_wait(seconds: float) -> str:
    return f"{seconds / 3600:.0f} hours" if seconds > 5400 else f"{seconds / 60:.0f} minutes"


def answer(customer: str, question: str) -> str:
    # Without retries: the customer should not wait until the budget is full again.
    with OpenAI(api_key=access_key(customer), max_retries=0) as client:
        try:
            reply = client.responses.create(model=AGENT, input=question)
        except RateLimitError as error:
            wait = error.response.headers.get("retry-after")
            if wait is None:
                return "That is more than I may read at once; please ask something shorter."
            return f"You have asked a lot today. Please come back in {describe_wait(float(wait))}."
        except APIStatusError:
            return "I cannot answer now. We have been told; please write to help@ferry.example."
    return reply.output_text


if len(sys.argv) != 3:
    sys.exit("usage: python support_desk.py CUSTOMER QUESTION")
os.environ.setdefault("OPENAI_BASE_URL", "http://127.0.0.1:8664/v1")
print(answer(sys.argv[1], sys.argv[2]))
