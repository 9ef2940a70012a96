"""The command `examples`: lists and copies the files that pages of the documentation use."""

from __future__ import annotations

import errno
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from vibe_llms.base.configuration import shipped_folder
from vibe_llms.base.exceptions import RequestError
from vibe_llms.base.files import LARGEST_SETTINGS, read_file
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.shared_options import json_option, yes_option
from vibe_llms.cli.terminal import columns, is_terminal, note, write, write_json
from vibe_llms.cli.text import draw_columns


def find_examples() -> Path:
    """Return the folder with the examples, in an installation or a checkout."""
    shipped = shipped_folder()
    installed = shipped / "examples"
    return installed if installed.is_dir() else shipped.parent / "documentation" / "examples"


def survey_pages() -> Mapping[str, Sequence[str]]:
    """Return the files that each page uses."""
    text = read_file(shipped_folder() / "examples.toml", LARGEST_SETTINGS).decode()
    pages: Mapping[str, Sequence[str]] = tomllib.loads(text)
    return pages


def _complete(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    pages = survey_pages()
    names = [*pages, *sorted({file for files in pages.values() for file in files})]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command("examples")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=_complete)
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Copy to this folder instead of the current one; without NAME, all files.",
)
@yes_option
@json_option
def examples(names: tuple[str, ...], folder: str | None, yes: bool, as_json: bool) -> int:
    """List the files that pages of the documentation use, or copy some.

    NAME is a file, or a page such as define-agents for all files of that page. Asks before it
    overwrites a file.
    """
    pages = survey_pages()
    if not names and folder is None:
        if as_json:
            write_json(json.dumps(pages))
        else:
            _list(pages)
        return 0
    wanted = [file for name in names for file in _find(name, pages)]
    wanted = wanted or sorted({file for files in pages.values() for file in files})
    target = Path(folder or ".").expanduser()
    copies = [copy for file in dict.fromkeys(wanted) for copy in _survey(file, target)]
    kept, written = False, 0
    for source, path in copies:
        if path.is_dir():
            raise RequestError(f"{path} is a folder; use --to DIR")
        if _is_same(source, path):
            continue
        if path.exists() or path.is_symlink():
            question = f"{path} exists. Overwrite it?"
            if not confirm(question, yes=yes, remedy="use -y to overwrite it, or --to DIR"):
                kept = True
                note(f"kept {path}")
                continue
        _copy(source, path)
        written += 1
        write(sys.stdout, f"{path}\n")
    if not (written or kept):
        note("all files are already there")
    return 1 if kept else 0


COMMANDS: dict[str, click.Command] = {"examples": examples}


def _list(pages: Mapping[str, Sequence[str]]) -> None:
    seen = is_terminal(sys.stdout)
    rows = [(page, ", ".join(files)) for page, files in pages.items()]
    for line in draw_columns(rows, columns(sys.stdout) if seen else None):
        write(sys.stdout, f"{line}\n")
    if seen:
        note("to copy the files of a page: vibe-llms examples NAME", dim=True)


def _find(name: str, pages: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the file of a name, or all files of a page."""
    page = name.rpartition("/")[2].removesuffix(".md")
    if page in pages:
        return pages[page]
    files = [one.name for one in find_examples().iterdir() if one.name != "__pycache__"]
    if name in files:
        return [name]
    close = get_close_matches(name, [*pages, *files], n=1)
    hint = f"did you mean {close[0]!r}?" if close else "to list all: vibe-llms examples"
    raise RequestError(f"no example {name!r}; {hint}")


def _survey(file: str, target: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each file of an example, which may be a folder, with the path of its copy."""
    source = find_examples() / file
    if not source.is_dir():
        yield source, target / file
        return
    for one in sorted(source.rglob("*")):
        # Python may have compiled files of an installation.
        if one.is_file() and "__pycache__" not in one.parts:
            yield one, target / file / one.relative_to(source)


def _is_same(source: Path, path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    size = source.stat().st_size
    return path.stat().st_size == size and read_file(path, size) == read_file(source, size)


def _copy(source: Path, path: Path) -> None:
    """Copy a file, replacing an existing file or link, but not the target of a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        with path.open("xb") as file:
            file.write(read_file(source, source.stat().st_size))
    except FileExistsError:
        raise OSError(errno.EEXIST, "another program has just created it", str(path)) from None
