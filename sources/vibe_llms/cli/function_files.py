"""The option `--functions`: offers the functions of Python files that the user approved."""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import FunctionsInvalid
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.running import interruptible
from vibe_llms.conversations.hosts import ENSEMBLES
from vibe_llms.ensembles.function_files import (
    FilePin,
    FunctionFile,
    load_functions,
    read_functions,
)
from vibe_llms.ensembles.functions import FunctionEnsemble
from vibe_llms.messages.hidden import visible


def open_functions(
    configuration: Configuration, paths: Sequence[str], *, yes: bool = False, run: bool = False
) -> Sequence[FunctionEnsemble]:
    """Return the tools of files, and ask about each file that is new or has changed.

    `yes` approves the files without a question; `run` runs them this time only. Raises
    `FunctionsInvalid` if a file cannot be used, and `RequestError` if there is no one to ask.
    """
    files = [read_functions(path) for path in dict.fromkeys(paths)]
    names = {row.name for row in configuration.rows(ENSEMBLES)}
    for file in files:
        if file.name in names:
            raise FunctionsInvalid(
                f"there already are tools named {file.name}/…; rename the file", path=file.path
            )
        names.add(file.name)
    for file in files:
        pin = FilePin(configuration.places.state, file)
        if run or pin.approved:
            continue
        _ask(file, pin, yes=yes)
        pin.approve()
    with interruptible():
        return [load_functions(file) for file in files]


def _ask(file: FunctionFile, pin: FilePin, *, yes: bool) -> None:
    change = pin.change
    about = [
        visible(f"{file.path} {'has changed since you approved it' if change else 'is new'}:"),
        *(visible(f"  {line}") for line in change),
        visible(f"  functions: {', '.join(file.functions)}"),
        "Its code runs as you, and can do all that you can.",
    ]
    agreed = confirm(
        "Run it, and offer its functions?",
        yes=yes,
        about=about,
        remedy=f"{file.path} {'has changed' if change else 'is not approved'}; to approve it: "
        f"vibe-llms tools list --functions {file.path} -y",
    )
    if not agreed:
        raise FunctionsInvalid("not approved, so it was not run", path=file.path)
