"""Limits the memory and output of a kernel from inside, before it runs any code.

This file is sent to the kernel as text, because a kernel in a cage does not see this library. A
message that is too long would break the connection, and the kernel would receive an interrupt only
after a flood of output is read. Code can undo these limits; then those that the server enforces end
the kernel.
"""

from __future__ import annotations

from typing import Any

#: MIME type of the value that replaces one that is too long to send.
FULL = "application/vnd.vibe-llms.full"
_VALUES = ("display_data", "update_display_data", "execute_result")
_REPLIES = ("error", "execute_reply")


def bound(addresses: int, output: int) -> None:
    """Limit the address space of this process, and the output of each call."""
    import contextlib
    import resource
    import sys

    from IPython.core.getipython import get_ipython

    resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
    shell: Any = get_ipython()
    session = shell.kernel.session
    send = session.send
    # Slightly above the limit, so that the server sees that it was reached.
    left = most = output + 1

    streams: list[Any] = [sys.stdout, sys.stderr]

    def begin() -> None:
        nonlocal left, streams
        left = most
        # Not earlier: IPython restores its functions after the call that runs this.
        for stream in streams:
            stream.write = limit(stream.write)
        streams = []

    def limit(write: Any) -> Any:
        def limited(text: str) -> Any:
            nonlocal left
            size = len(text)
            if size > left:
                text = text[:left]
            left = max(left - size, 0)
            if text:
                write(text)
            return size

        return limited

    def send_limited(
        stream: Any, message: Any, content: Any = None, *more: Any, **most: Any
    ) -> Any:
        nonlocal left
        whole = isinstance(message, dict)
        kind = message["header"]["msg_type"] if whole else message
        reported = message.get("content") if whole else content
        if kind.startswith("comm_"):
            return None
        if kind in _VALUES and isinstance(reported, dict):
            size = sum(len(repr(one)) for one in reported.get("data", {}).values())
            if size > left:
                reported.update(data={FULL: ""}, metadata={})
            left = max(left - size, 0)
        elif kind in _REPLIES and isinstance(reported, dict):
            reported.update(payload=[], user_expressions={})
            reported["evalue"] = str(reported.get("evalue", ""))[:output]
            lines = reported.get("traceback", [])
            reported["traceback"] = [line[: output // len(lines) + 1] for line in lines]
        return send(stream, message, content, *more, **most)

    session.send = send_limited
    # `_tee` would keep a copy of all printed output.
    shell._tee = lambda **_: contextlib.nullcontext()
    shell.events.register("pre_execute", begin)
