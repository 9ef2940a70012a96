"""`open_session`, by which programs begin; what a session needs is loaded when one is opened.

Importing the function costs little, so a command that opens no session starts at once
(documentation/adr/0012-lazy-public-names.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vibe_llms.events import EventHandler, ignore_events

if TYPE_CHECKING:
    from pathlib import Path

    from vibe_llms.configuration import Configuration
    from vibe_llms.conversations.tools import Tool
    from vibe_llms.invocation.approval import Approver
    from vibe_llms.invocation.questions import Elicitor
    from vibe_llms.providers.provider_pool import ImportGuard
    from vibe_llms.session import Session
    from vibe_llms.storage.interfaces import Archive
    from vibe_llms.tracing import Tracer


def open_session(
    *,
    event_handler: EventHandler = ignore_events,
    home: str | Path | None = None,
    configuration: Configuration | Mapping[str, Any] | None = None,
    archive: Archive | None = None,
    keys: Mapping[str, str] | None = None,
    interactive: bool = False,
    import_guard: ImportGuard | None = None,
    approver: Approver | None = None,
    elicitor: Elicitor | None = None,
    tracer: Tracer | None = None,
    invokers: Iterable[Tool] = (),
) -> Session:
    """A session, closed with the block::

        async with open_session() as session:
            conversation = await session.begin("scripted/demo")

    In a notebook, `session = await open_session()` keeps it open until the kernel ends.

    `home` puts configuration and archive under one folder, as `VIBE_LLMS_HOME` does.
    `configuration` is laid over the user's own, or replaces it if it is a `Configuration`. `keys`
    are keys by rows, used before any other. `interactive` says that a person watches.
    `import_guard` surrounds the import of a provider's module, given the `import-seconds` of its
    row. Imports have no timeout by default; the command sets one.
    `approver` decides on calls of tools that ask before they run; without one they do not run.
    `elicitor` answers what ensembles ask a person; without one they cannot ask. In turns begun with
    `start` they ask the user of the run in its place.
    `tracer` records spans and metrics in place of the one that `[telemetry]` configures.
    `invokers` are tools that turns begun with `start` may use: another process that continues such
    a turn finds them by their names.
    """
    from pathlib import Path

    from vibe_llms.configuration import LOCAL, Configuration, Places, load_configuration
    from vibe_llms.providers.provider_pool import unguarded
    from vibe_llms.session import Session
    from vibe_llms.storage.backends import open_backend

    if not isinstance(configuration, Configuration):
        places = None if home is None else Places.under(Path(home))
        configuration = load_configuration(places, overrides=configuration)
    backend = open_backend(configuration)
    return Session(
        configuration,
        archive or backend.open_archive(LOCAL, configuration.places),
        event_handler=event_handler,
        keys=keys,
        interactive=interactive,
        import_guard=import_guard or unguarded,
        approver=approver,
        elicitor=elicitor,
        tracer=tracer,
        invokers=invokers,
        backend=backend,
        owns_backend=True,
    )
