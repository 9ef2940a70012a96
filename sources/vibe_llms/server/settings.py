"""The settings of the server: the table `[server]`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from vibe_llms.configuration import Configuration, Positive, Seconds


class ServerSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[server]`: where it listens, whom it answers, and limits on requests.

    `allowed_hosts` are names besides `localhost` that clients may call it by; addresses always
    work. `allowed_origins` are web sites whose pages may call it from a browser. `media_hosts` are
    hosts whose web addresses clients may send in place of images and files; `*` is any public one.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8600
    shutdown_seconds: Seconds = 10.0
    idle_seconds: Seconds = 600.0
    header_bytes: Positive = 64 * 1024
    body_bytes: Positive = 64 * 1024 * 1024
    receive_seconds: Seconds = 60.0
    turn_seconds: Seconds = 900.0
    user_turns: Positive = 64
    user_files: Positive = 1000
    parallel_runs: Positive = 512
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    media_hosts: tuple[str, ...] = ()


def read_server_settings(configuration: Configuration) -> ServerSettings:
    """The table `[server]` of a configuration."""
    return configuration.read(ServerSettings, configuration.server, "server")
