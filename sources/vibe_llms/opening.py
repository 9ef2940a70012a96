"""`open_session`, the entry point of programs; its dependencies are loaded when it is called.

Importing the function costs little, so commands without a session start fast
(documentation/adr/0012-lazy-public-names.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vibe_llms.messages.events import EventHandler, ignore_events

if TYPE_CHECKING:
    from pathlib import Path

    from vibe_llms.base.configuration import Configuration
    from vibe_llms.conversations.tools import Tool
    from vibe_llms.invocation.approval import Approver
    from vibe_llms.invocation.questions import Elicitor
    from vibe_llms.messages.tracing import Tracer
    from vibe_llms.providers.provider_pool import ImportGuard
    from vibe_llms.session.core import Session
    from vibe_llms.storage.interfaces import Archive


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
    """Open a session, which the block closes:

    ```python
    async with open_session() as session:
        conversation = await session.begin("scripted/demo")
    ```

    In a notebook, `session = await open_session()` keeps it open until the kernel ends.

    `home` is a folder for configuration and archive, like `VIBE_LLMS_HOME`. `configuration`
    overrides the user's own, or replaces it if it is a `Configuration`. `keys` are API keys by row;
    they take precedence over all others. `interactive` is True if a person is present.

    `import_guard` wraps the import of a provider's module and takes the `import-seconds` of its
    row. Imports have no timeout by default; the command sets one. `tracer` records spans and
    metrics instead of the one that `[telemetry]` configures.

    `approver` decides on calls of tools that ask before they run; without one, they do not run.
    `elicitor` answers questions of ensembles to a person; without one, they cannot ask. In turns
    begun with `start`, the user of the run takes the place of both. `invokers` are tools for such
    turns: another process that continues a turn finds them by name.
    """
    from pathlib import Path

    from vibe_llms.base.configuration import LOCAL, Configuration, Places, load_configuration
    from vibe_llms.providers.provider_pool import unguarded
    from vibe_llms.session.core import Session
    from vibe_llms.session.parts import SessionParts
    from vibe_llms.storage.backends import open_backend

    if not isinstance(configuration, Configuration):
        places = None if home is None else Places.under(Path(home))
        configuration = load_configuration(places, overrides=configuration)
    backend = open_backend(configuration)
    parts = SessionParts(
        configuration=configuration,
        archive=archive or backend.open_archive(LOCAL, configuration.places),
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
    return Session(parts)
