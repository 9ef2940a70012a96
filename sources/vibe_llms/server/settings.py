"""The settings of the server: the table `[server]`."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from vibe_llms.base.configuration import Configuration, Positive, Seconds

#: Seconds for which a link that logs a browser in is valid.
CODE_SECONDS = 600.0
_NAME = r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?"
_HOST = re.compile(_NAME)
#: An origin as browsers send it: in lowercase and without a path.
_ORIGIN = re.compile(rf"https?://({_NAME}|\[[0-9a-f:]+\])(:\d+)?")


class ServerSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[server]`: address, allowed clients, and limits on requests.

    Without `page`, the server has no web page, where a login lasts for `login_seconds`. Shutdown
    takes at most `shutdown_seconds`.
    `allowed_hosts` are host names besides `localhost` by which clients may call the server; IP
    addresses always work. `allowed_origins` are web sites whose pages may call it from a browser.
    `media_hosts` are hosts whose addresses clients may send in place of images and files; `*`
    matches any public host. `request_messages`, `request_parts`, `request_characters`, and
    `request_tools` limit the messages of a request, the parts and the characters of all its
    messages, and its tools.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8600
    page: bool = True
    login_seconds: Seconds = 30 * 86_400.0
    shutdown_seconds: Seconds = 10.0
    idle_seconds: Seconds = 600.0
    header_bytes: Positive = 64 * 1024
    body_bytes: Positive = 64 * 1024 * 1024
    import_bytes: Positive = 4 * 1024 * 1024 * 1024
    request_messages: Positive = 10_000
    request_parts: Positive = 10_000
    # About the two million tokens of the longest contexts; files do not count.
    request_characters: Positive = 8 * 1024 * 1024
    request_tools: Positive = 1000
    receive_seconds: Seconds = 60.0
    turn_seconds: Seconds = 900.0
    connections: Positive = 10_000
    user_connections: Positive = 2000
    user_turns: Positive = 64
    user_files: Positive = 1000
    user_streams: Positive = 1000
    parallel_runs: Positive = 512
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    media_hosts: tuple[str, ...] = ()


def read_server_settings(configuration: Configuration) -> ServerSettings:
    """Read the table `[server]` of a configuration."""
    settings = configuration.read(ServerSettings, configuration.server, "server")
    for key, values, form, example in (
        ("allowed-hosts", settings.allowed_hosts, _HOST, "chat.example.org"),
        ("allowed-origins", settings.allowed_origins, _ORIGIN, "https://chat.example.org"),
    ):
        for value in values:
            if not form.fullmatch(value):
                raise configuration.error(
                    f"{value!r} is not valid; write it like {example!r}", "server", key
                )
    return settings
