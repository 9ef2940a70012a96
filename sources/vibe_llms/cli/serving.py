"""The commands `serve`, `web`, `worker` and `users`: the server, its workers, and its users."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import replace

from vibe_llms.base.configuration import LOCAL, Configuration, load_configuration
from vibe_llms.base.exceptions import PackageMissing, RequestError
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.running import ENDINGS, asynchronous, signals
from vibe_llms.cli.shared_options import json_option, yes_option
from vibe_llms.cli.starts import Start, note_timed, warnings_printed
from vibe_llms.cli.terminal import note, shown, write, write_json, write_row
from vibe_llms.providers.addresses import survey_given
from vibe_llms.server.settings import CODE_SECONDS, ServerSettings, read_server_settings
from vibe_llms.server.sockets import is_in_use, is_loopback
from vibe_llms.storage.backends import Backend, opened_backend
from vibe_llms.storage.user_stores import produce_logins, produce_users
from vibe_llms.storage.users import find_user_places

if TYPE_CHECKING:
    from vibe_llms.server.running import RunningServer

_LOOPBACK = "127.0.0.1"
#: Variables that tell of a browser, or of a screen for one.
_DISPLAYS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


@click.command("serve")
@click.option("--host", help="Listen on this address instead of 127.0.0.1.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Listen on this port instead of 8600; 0 chooses one.",
)
@click.option("--no-key", is_flag=True, help="Ask for no key; on this machine only.")
@click.option("-q", "--quiet", is_flag=True, help="Print no line for each request.")
@asynchronous
async def serve(host: str | None, port: int | None, no_key: bool, quiet: bool) -> None:
    """Answer requests of OpenAI clients over HTTP.

    The first start makes a key and prints the settings that a client needs. Ctrl-C or SIGTERM ends
    it.
    """
    configuration = load_configuration()
    settings = read_server_settings(configuration)
    settings = replace(
        settings,
        host=settings.host if host is None else host,
        port=settings.port if port is None else port,
    )

    def show_key(key: str) -> None:
        note("set these for the client; the key is not shown again:")
        write(sys.stdout, _export(server.url, key))

    start = Start(None if no_key else show_key)
    server = _open_server(configuration, settings, start, keys=not no_key, quiet=quiet)
    await _serve(server, start)


@click.command("web")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Listen on this port instead of 8600, or another one if that is in use.",
)
@click.option("--no-open", is_flag=True, help="Open no browser; print the link only.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each request.")
@asynchronous
async def web(port: int | None, no_open: bool, verbose: bool) -> None:
    """Open the web page in a browser.

    Starts a server like `serve`, on this machine only, and logs the browser in with a link that
    works once. Ctrl-C or SIGTERM ends it.
    """
    configuration = load_configuration()
    settings = read_server_settings(configuration)
    if not settings.page:
        raise RequestError("the web page is turned off; set page = true in [server]")
    host = settings.host if is_loopback(settings.host) else _LOOPBACK
    if port is None and is_in_use(host, settings.port):
        note(f"port {settings.port} is in use; taking a free one")
        port = 0
    settings = replace(settings, host=host, port=settings.port if port is None else port)

    def show_link() -> None:
        link = server.invite(LOCAL)
        browser = not no_open and _has_browser()
        opened = "opening the page; if no browser shows it, follow" if browser else "open"
        note(f"{opened} this link, which works once and for {CODE_SECONDS / 60:.0f} minutes:")
        write(sys.stdout, f"{link}\n")
        if browser:
            import webbrowser

            # Some browsers run until the user closes them.
            threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()

    start = Start()
    server = _open_server(configuration, settings, start, quiet=not verbose, opened=show_link)
    await _serve(server, start)


@click.command("worker")
@asynchronous
async def worker() -> None:
    """Work on runs of all users, without a server.

    Several workers and servers share the runs. Ctrl-C or SIGTERM ends it; another one continues
    its runs at once.
    """
    from vibe_llms.server.working import work

    configuration = load_configuration()
    ended = asyncio.Event()
    start = Start()

    async def begin(backend: Backend) -> None:
        await start.prepare(backend)
        note("working on runs; Ctrl-C ends it")
        _note_addresses(configuration)
        start.watch(backend)

    with signals(dict.fromkeys((signal.SIGINT, *ENDINGS), ended.set)):
        await work(configuration, read_server_settings(configuration), ended, begin)


@click.group("users")
def users() -> None:
    """Manage the users of the server.

    Each user has conversations, memory and files of their own. `local` has those of this command.
    """


@users.command("add")
@click.argument("name")
@json_option
@asynchronous
async def add(name: str, as_json: bool) -> None:
    """Add a user, and print the key; it is not shown again."""
    async with opened_backend(load_configuration()) as backend:
        _print_key(name, await produce_users(backend).add(name), as_json=as_json)
    home = find_user_places(backend.configuration.places, name).data
    if name != LOCAL and home.exists():
        note(f"an earlier user had this name; {name} now has their conversations: {home}")


@users.command("rotate")
@click.argument("name")
@json_option
@asynchronous
async def rotate(name: str, as_json: bool) -> None:
    """Replace the key of a user, and print the new one."""
    async with opened_backend(load_configuration()) as backend:
        _print_key(name, await produce_users(backend).rotate(name), as_json=as_json)


@users.command("list")
@json_option
@asynchronous
async def list_users(as_json: bool) -> None:
    """List the users."""
    async with opened_backend(load_configuration()) as backend:
        known = await produce_users(backend).survey()
    if as_json:
        rows = [{"name": name, "created": f"{one.created:%FT%TZ}"} for name, one in known.items()]
        write_json(json.dumps(rows))
        return
    for name, one in known.items():
        write(sys.stdout, f"{shown(name)}  {one.created:%Y-%m-%d}\n")
    if not known:
        note("no users; the first start of the server makes one: vibe-llms serve")


@users.command("rm")
@click.argument("name")
@yes_option
@json_option
@asynchronous
async def remove(name: str, yes: bool, as_json: bool) -> int:
    """Remove a user, whose key is then refused and whose runs are cancelled.

    Conversations, memory and files stay.
    """
    from vibe_llms.runs.core import cancel_runs

    async with opened_backend(load_configuration()) as backend:
        users = produce_users(backend)
        await users.require(name)
        if not confirm(f"Remove the user {name}?", yes=yes):
            return 1
        await users.remove(name)
        # Runs of local also belong to this command.
        cancelled = 0 if name == LOCAL else await cancel_runs(backend, name)
    home = find_user_places(backend.configuration.places, name).data
    if as_json:
        left = str(home) if home.exists() else None
        write_json(json.dumps({"name": name, "cancelled_runs": cancelled, "folder": left}))
        return 0
    if cancelled:
        note(f"cancelled {cancelled} {'run' if cancelled == 1 else 'runs'}")
    if name == LOCAL:
        note("removed local; the conversations of this command are kept")
    elif home.exists():
        note(f"removed {name}; to delete the conversations, memory and files too: rm -r {home}")
    else:
        note(f"removed {name}")
    return 0


@users.command("sessions")
@click.argument("name", default="")
@click.option("--end", "ended", multiple=True, metavar="ID", help="End a session; repeatable.")
@json_option
@asynchronous
async def list_sessions(name: str, ended: tuple[str, ...], as_json: bool) -> None:
    """List the sessions of the web page, of all users or of one, or end some.

    A session also ends when its time is over, and with the key of its user: users rotate, users rm.
    """
    async with opened_backend(load_configuration()) as backend:
        if name and name != LOCAL:
            await produce_users(backend).require(name)
        logins = produce_logins(backend)
        found = {one.id: one for one in await logins.survey(name)}
        for identity in ended:
            if identity not in found:
                raise RequestError(
                    f"session {identity!r} not found; see: vibe-llms users sessions {name}".rstrip()
                )
        for identity in dict.fromkeys(ended):
            await logins.end(found[identity])
    listed = [one for one in found.values() if not ended or one.id in ended]
    if as_json:
        write_json(msgspec.json.encode(listed).decode())
        return
    for one in listed:
        if ended:
            note(f"ended the session {one.id} of {shown(one.user)}")
            continue
        dates = f"since {one.created:%Y-%m-%d %H:%M}, until {one.expires:%Y-%m-%d %H:%M} UTC"
        write_row(f"{one.id}  {one.user}", shown(f"{dates}  {one.client}"), gap=2)
    if not listed:
        note("no sessions; they begin when a user logs in at the web page")


COMMANDS: dict[str, click.Command] = {
    "serve": serve,
    "users": users,
    "web": web,
    "worker": worker,
}


def _open_server(
    configuration: Configuration,
    settings: ServerSettings,
    start: Start,
    *,
    quiet: bool,
    keys: bool = True,
    opened: Callable[[], object] = lambda: None,
) -> RunningServer:
    """Return a server that prints its address when it listens, and then calls `opened`."""
    try:
        from vibe_llms.server.running import RunningServer
    except ImportError as error:
        raise PackageMissing(
            "the server", package=error.name or "uvicorn", command='pip install "vibe-llms[server]"'
        ) from error

    def announce() -> None:
        note(f"serving on {server.url}; Ctrl-C ends it")
        _note_addresses(configuration, server.url)
        start.watch(server.backend)
        opened()
        # Exempt the loaded objects from garbage collection. See adr/0103.
        gc.collect()
        gc.freeze()

    log = _ignore if quiet else note_timed
    server = RunningServer(configuration, settings, keys=keys, log=log, opened=announce)
    return server


async def _serve(server: RunningServer, start: Start) -> None:
    """Answer requests until a signal arrives."""
    # Asyncio warns of every write to a connection that the client has just closed.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    with (
        warnings_printed("vibe_llms.server", note_timed),
        signals({signal.SIGINT: server.end, **dict.fromkeys(ENDINGS, server.end)}),
    ):
        await server.serve(start.prepare)


def _has_browser() -> bool:
    """Return True if a browser can show a page. One that runs in the terminal would fill it."""
    return any(os.environ.get(name) for name in _DISPLAYS) or sys.platform == "darwin"


def _note_addresses(configuration: Configuration, own: str = "") -> None:
    """Print the server addresses that environment variables set."""
    for name, address in survey_given(configuration):
        text = f"note: {name}: requests are sent to {address.describe()}"
        if own and f"{address.url}/".startswith(f"{own}/"):
            text += ", which is this server; it refuses them"
        note(text)


def _print_key(name: str, key: str, *, as_json: bool) -> None:
    if as_json:
        write_json(json.dumps({"name": name, "key": key}))
    else:
        write(sys.stdout, f"{key}\n")


def _export(url: str, key: str) -> str:
    return f"export OPENAI_BASE_URL={url}/v1\nexport OPENAI_API_KEY={key}\n"


def _ignore(_: str) -> None:
    """Print nothing."""
