"""`python -m vibe_llms.testing SCRIPT.toml`: the fake server for programs in other processes."""

from __future__ import annotations

import argparse
import shlex
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vibe_llms.base.exceptions import ScriptInvalid
from vibe_llms.providers.scripted.demo import improvise
from vibe_llms.providers.scripted.scripts import read_script
from vibe_llms.testing.server import KEY, fake_server

_UNUSABLE = 66
_TAKEN = 69


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the variables that lead programs to the server, and serve until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m vibe_llms.testing",
        description="A fake server of the APIs of Anthropic, OpenAI, Gemini and Ollama that "
        "answers from a script, offline. It prints the environment variables that point programs "
        "to it; Ctrl-C stops it.",
    )
    parser.add_argument("script", nargs="?", help="a script in TOML (default: the model `demo`)")
    parser.add_argument("--port", type=int, default=0, help="the port (default: any free port)")
    parser.add_argument("--key", default=KEY, help="the key that requests must send")
    given = parser.parse_args(arguments)
    try:
        script = improvise if given.script is None else read_script(Path(given.script))
    except ScriptInvalid as error:
        print(f"vibe_llms.testing: {error}", file=sys.stderr)  # noqa: T201
        return _UNUSABLE
    with suppress(KeyboardInterrupt):
        try:
            with fake_server(script, key=given.key, port=given.port, recording=False) as server:
                for name, value in server.environment.items():
                    print(f"export {name}={shlex.quote(value)}", flush=True)  # noqa: T201
                threading.Event().wait()
        except OSError as error:
            print(  # noqa: T201
                f"vibe_llms.testing: port {given.port}: {error.strerror}", file=sys.stderr
            )
            return _TAKEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
