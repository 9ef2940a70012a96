"""No page says what is not so: blocks are run, links followed, names looked up.

Blocks of Python and TOML repeat a file of `documentation/examples`, named in their title; blocks of
a console are played and their output compared; blocks of JSON lines are decoded. The pages that are
made from code are made again.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

import vibe_llms
from tests.documentation.answers import KEY
from tests.documentation.cookbook import produce_environment, produce_server
from tests.documentation.pages import (
    DOCUMENTATION,
    EXAMPLES,
    PAGES,
    PLAYED,
    ROOT,
    Block,
    Page,
    playable,
    take_apart,
)
from tests.documentation.transcripts import Shell, read_commands
from tests.fakes.llamacpp import write_model
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.cli.commands import command as root_command
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.memory.entries import GLOBAL, decode_entry, encode_entry
from vibe_llms.memory.settings import read_memory_settings
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.messages.events import Notice
from vibe_llms.opening import open_session
from vibe_llms.providers.scripted.scripts import read_script
from vibe_llms.session.core import Session

#: Of the cookbook, pages with at most this many commands are played each time.
_FEW_COMMANDS = 2


def _is_slow(name: str) -> bool:
    """Whether a page is not played each time, as README and the tutorial are.

    The other pages start the program some 600 times.
    """
    if "/cookbook/" in name:
        blocks = [block for block in PAGES[name].blocks if block.language in PLAYED]
        return sum(len(playable(block)) for block in blocks) > _FEW_COMMANDS
    return "/" in name and "/tutorial/" not in name


_STAGED = [
    pytest.param(name, marks=[pytest.mark.slow] if _is_slow(name) else [])
    for name, page in PAGES.items()
    if any(block.language in PLAYED for block in page.blocks)
]


@contextmanager
def open_shell(name: str, folder: Path) -> Iterator[Shell]:
    """A shell in a copy of the examples, as a reader has them who saved each from its page."""
    work = folder / "you" / "work"
    shutil.copytree(EXAMPLES, work)
    with produce_server(name) as server:
        environment = produce_environment(server, folder / "you")
        yield Shell(environment, work, folder / "state")
        assert list(server.refusals) == []


def play_page(name: str, folder: Path) -> None:
    """`AssertionError` where something else happens than the page says."""
    with open_shell(name, folder) as shell:
        for block in PAGES[name].blocks:
            if block.language in PLAYED:
                try:
                    shell.play(playable(block))
                except AssertionError as error:
                    raise AssertionError(f"{block.place}: {error}") from error


@pytest.mark.parametrize("name", _STAGED)
def test_what_a_page_shows_of_a_console_happens(name: str, tmp_path: Path) -> None:
    play_page(name, tmp_path)


def test_no_two_pages_serve_on_the_same_port() -> None:
    users: dict[str, set[str]] = {}
    for name, page in PAGES.items():
        for block in page.blocks:
            if block.language in ("console", "python"):
                for port in re.findall(r"(?:127\.0\.0\.1:|port[ =]+)(\d{4})\b", block.text):
                    users.setdefault(port, set()).add(name)
    assert "8643" in users
    assert [names for names in users.values() if len(names) > 1] == []


def test_the_readme_opens_with_its_two_commands() -> None:
    blocks = PAGES["README.md"].blocks
    assert [block.text for block in blocks[:2]] == [
        'python -m pip install . && vibe-llms chat "What can you do?"\n',
        "python -m pip install -e '.[dev]' && python -m pytest -n auto\n",
    ]


def _unplayed() -> list[str]:
    played = {
        word
        for page in PAGES.values()
        for block in page.blocks
        if block.language in PLAYED
        for word in re.findall(r"[\w.-]+\.py", block.text)
    }
    return sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in played)


@pytest.mark.parametrize("name", _unplayed())
def test_an_example_that_no_console_shows_runs_too(name: str, tmp_path: Path) -> None:
    with open_shell(name, tmp_path) as shell:
        shell.play(read_commands(f"$ ANTHROPIC_API_KEY={KEY} python {name}\n…\n"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
async def test_an_example_in_toml_is_understood(
    path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path.name.startswith("script"):
        assert read_script(path).replies
        return
    monkeypatch.syspath_prepend(EXAMPLES / "shout")
    monkeypatch.syspath_prepend(EXAMPLES)
    home.mkdir()
    shutil.copy(path, home / "config.toml")
    configuration = load_configuration(Places(home, home, home))
    if address := read_memory_settings(configuration).embedder:
        await produce_embedder(configuration, address).close()
    embedders = [row.name for row in configuration.rows("embedders")]
    for name in embedders:
        await produce_embedder(configuration, name).close()
    async with open_session(configuration=configuration) as session:
        problems = [one.problem for one in session.survey_providers() if one.problem]
        if path.name == "config_plugin.toml":
            assert "Run: vibe-llms plugins install shout" in problems.pop()
            return
        assert problems == []
        for alias, address in configuration.aliases.items():
            if address not in embedders:
                session.locate_model(alias)
        # Most providers take any name, but the model of this one is a file.
        known = {"llamacpp": str(write_model(home / "demo.gguf"))}
        for row in session.survey_providers():
            if configuration.row("providers", row.name).settings.get("credential") == "caller":
                # Its key comes with a request to the server.
                continue
            name = row.default_model or known.get(row.name, "demo")
            await session.access_model(f"{row.name}/{name}")


@pytest.mark.parametrize("page", list(PAGES.values()), ids=lambda page: page.name)
def test_every_block_is_one_that_is_checked(page: Page) -> None:
    check_blocks(page)


#: Commands that other tests carry out, or that need what is not here.
_ELSEWHERE = ("python -m pytest ", "python -m pip wheel ", "sudo ", "podman ")
#: Languages of blocks that repeat a file.
_EXAMPLES = frozenset(
    ("python", "toml", "json", "ini", "dockerfile", "nginx", "haproxy", "yaml", "bash")
)


def check_blocks(page: Page) -> None:
    """`AssertionError` where a block differs from its source, or no test checks its kind."""
    for block in page.blocks:
        match block.language:
            case language if language in _EXAMPLES:
                assert block.title, f"{block.place}: name its file: ```{block.language} title=..."
                assert block.text == (EXAMPLES / block.title).read_text(), (
                    f"{block.place}: {block.title} is another; run .auxiliary/scripts/reference"
                )
                if is_foreign(block):
                    ast.parse(block.text, block.title)
            case "jsonl":
                for line in block.text.encode().splitlines():
                    canister = decode_canister(line)
                    assert encode_canister(canister) == line, block.place
            case "markdown":
                entry = decode_entry(block.text.encode(), GLOBAL, block.place)
                assert encode_entry(entry).decode() == block.text, block.place
            case "text" | "pycon":
                assert block.generated, f"{block.place}: no test checks this block"
            case "console" | "sh":
                assert playable(block) is not None
            case "":
                # Too slow to be played: what is started must at least be there. What needs root or
                # a container engine has tests of its own, as far as it can be run here.
                for command in block.text.splitlines():
                    if not command.startswith(_ELSEWHERE):
                        named = [word for word in shlex.split(command) if "/" in word]
                        assert named, block.place
                        assert (ROOT / named[0]).exists(), block.place
            case language:
                raise AssertionError(f"{block.place}: no test checks blocks of {language!r}")


def test_every_example_is_shown_on_a_page() -> None:
    shown = {block.title for page in PAGES.values() for block in page.blocks}
    played = {
        word
        for page in PAGES.values()
        for block in page.blocks
        if block.language in PLAYED
        for word in re.findall(r"[\w.-]+", block.text)
    }
    names = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert sorted(names - shown - played) == []
    assert names


@pytest.mark.parametrize("page", list(PAGES.values()), ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Page) -> None:
    check_links(page, PAGES)


def check_links(page: Page, pages: Mapping[str, Page]) -> None:
    """`AssertionError` where a link within the documentation leads nowhere."""
    for link in page.links:
        if link.startswith(("http://", "https://")):
            continue
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        assert not target or path.exists(), f"{page.name}: {link} leads nowhere"
        if anchor:
            assert anchor in pages[str(path.relative_to(ROOT))].anchors, (
                f"{page.name}: {link}: there is no such heading"
            )


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[str] = set()
    waiting = ["README.md"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        page = PAGES[name]
        for link in page.links:
            target = (page.path.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_relative_to(ROOT):
                waiting.append(str(target.relative_to(ROOT)))
    assert reached == set(PAGES)


def test_a_record_that_is_superseded_says_so_and_so_does_the_index() -> None:
    folder = DOCUMENTATION / "adr"
    index = (folder / "index.md").read_text("utf-8")
    listed = {
        row[0]: set(re.findall(r"\((\d{4})", row[1].partition("superseded")[2]))
        for row in re.findall(r"^\| \[(\d{4})\]\(.*?\|.*\|(.*)\|$", index, re.MULTILINE)
    }
    assert list(listed) == sorted(path.name[:4] for path in folder.glob("0*.md"))
    for path in folder.glob("0*.md"):
        found = re.search(r"^(?:- )?Status: (.*?)\n(?:\n|- )", path.read_text("utf-8"), re.M | re.S)
        assert found is not None, path.name
        by = set(re.findall(r"\((\d{4})", found[1].partition("superseded")[2]))
        assert by == listed[path.name[:4]], path.name
        for other in re.findall(r"\((\d{4})", found[1].partition("supersedes")[2]):
            assert path.name[:4] in listed[other], f"{path.name} supersedes {other}"


def test_pages_that_the_code_names_exist() -> None:
    named: set[str] = set()
    for folder in ("sources", "data"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".toml"):
                named.update(re.findall(r"documentation/[\w./-]+\.md", path.read_text("utf-8")))
    assert named
    assert [name for name in named if name not in PAGES] == []


@pytest.mark.parametrize("page", list(PAGES.values()), ids=lambda page: page.name)
def test_names_in_the_text_exist(page: Page) -> None:
    check_names(page)


_FOREIGN = "documentation/reference/names-in-other-systems.md"


def test_every_word_of_another_system_has_one_of_ours_that_exists() -> None:
    _, _, table = PAGES[_FOREIGN].prose.partition("| --- | --- | --- |\n")
    words = re.findall(r"^\|([^|\n]*)\|([^|\n]*)\|([^|\n]*)\|$", table.partition("\n\n")[0], re.M)
    assert len(words) > 40
    glossary = re.findall(r"^\| (\w+) \|", PAGES["documentation/glossary.md"].prose, re.M)
    sources = [path.read_text("utf-8") for path in (ROOT / "sources").rglob("*.py")]
    for word, there, here in words:
        ours = re.findall(r"`([^`]+)`", here)
        assert ":" in there, word
        named = re.match(r" (\w+)", here)
        assert ours or "](" in here or (named and named[1] in {"none", "see", *glossary}), word
        for code in ours:
            if found := re.fullmatch(r"(session|conversation)\.(\w+)(\(.*\))?", code):
                owner = {"session": Session, "conversation": Conversation}[found[1]]
                assert hasattr(owner, found[2]), code
            elif re.fullmatch(r"[A-Z]\w+", code):
                defined = any(re.search(rf"^class {code}\b", text, re.M) for text in sources)
                assert defined or hasattr(vibe_llms, code), code


_SUITES = ".auxiliary/compatibility"
#: Names on our pages that belong to other programs.
_OF_OTHERS = {
    *("DeprecationWarning", "InvokeModel", "InvokeModelWithResponseStream", "TypeIs", "absurd-sdk"),
}


@functools.cache
def survey_words() -> frozenset[str]:
    """The names in our code and data, and the keys that are written with hyphens."""
    texts = [
        path.read_text("utf-8")
        for folder in (*("sources", "tests", "data"), "documentation/examples", _SUITES)
        for path in (ROOT / folder).rglob("*")
        # This file has names that are nowhere else.
        if path.suffix in (".py", ".toml", ".yaml") and path != Path(__file__)
    ]
    texts += [(ROOT / "pyproject.toml").read_text("utf-8")]
    return frozenset(word for text in texts for word in re.findall(r"[A-Za-z_][\w-]*", text))


def is_name(word: str) -> bool:
    """Whether a class or a key of the configuration is in our code, or another program's."""
    words = survey_words()
    return word in words or word.replace("-", "_") in words or word in _OF_OTHERS


def is_foreign(block: Block) -> bool:
    """Whether a block shows a program for another package, which is not run."""
    return block.language == "python" and block.title.endswith(".txt")


def drop_foreign_names(page: Page) -> Page:
    """The page without the middle column, which has names of others, if it is the page of these."""
    if page.name != _FOREIGN:
        return page
    prose = re.sub(r"^(\|[^|\n]*\|)[^|\n]*\|", r"\1", page.prose, flags=re.MULTILINE)
    return dataclasses.replace(page, prose=prose)


def check_names(page: Page) -> None:
    """`AssertionError` where a name in the text is not there.

    It may be a command, an option, a module, a path, a class, or a key of the configuration.
    """
    theirs = " ".join(block.text for block in page.blocks if is_foreign(block))
    for code in drop_foreign_names(page).codes:
        for word in re.findall(r"(?<![\w/.@-])(?:[A-Z][a-z]+){2,}(?!\w)", code):
            assert is_name(word) or word in theirs, f"{page.name}: there is no class {word}"
        if "reference" not in page.path.parts and re.fullmatch(r"[a-z]+(-[a-z]+)+( = .*)?", code):
            assert is_name(code.split(" ")[0]), f"{page.name}: there is no key {code}"
        if re.fullmatch(r"vibe_llms(\.\w+)+", code):
            find_name(code)
        elif code.startswith("vibe-llms "):
            parse_command(code, page.name)
        elif re.fullmatch(
            r"(sources|tests|data|documentation|\.auxiliary|\.ci)(/[\w.-]+)+/?", code
        ):
            # Scripts make what is in the folder of artifacts.
            made = code.startswith(".auxiliary/artifacts/")
            assert made or (ROOT / code).exists(), f"{page.name}: there is no {code}"


def test_the_page_on_events_lists_the_subjects_of_all_notices() -> None:
    text = (DOCUMENTATION / "reference" / "events.md").read_text("utf-8")
    _, _, table = text.partition("| subject | meaning |\n")
    listed = re.findall(r"^\| `([a-z]+)` \|", table, re.MULTILINE)
    given = {
        str(node.args[0].value)
        for path in (ROOT / "sources").rglob("*.py")
        if "Notice(" in (source := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Notice"
        # That of a run is given on as it was recorded.
        and isinstance(node.args[0], ast.Constant)
    }
    assert sorted(listed) == sorted(given)
    docstring = Notice.__doc__ or ""
    assert [subject for subject in listed if f"`{subject}`" not in docstring] == []


def find_name(dotted: str) -> object:
    """What a dotted name stands for: a module, or a name within one."""
    parts = dotted.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for part in parts[depth:]:
            value = getattr(value, part)
        return value
    raise AssertionError(f"there is no {dotted}")


def parse_command(text: str, place: str) -> None:
    """`AssertionError` where the command does not exist or does not have such an option."""
    arguments = shlex.split(re.split(r"[|<>]", text)[0].replace("…", ""))[1:]
    command: click.Command = root_command
    context = click.Context(command, **command.context_settings)
    while isinstance(command, click.Group):
        if not arguments or arguments[0] in ("--help", "-h", "--version"):
            return
        name, *arguments = arguments
        found = command.get_command(context, name)
        if found is None:
            found, arguments = command.get_command(context, "chat"), [name, *arguments]
        assert found is not None, f"{place}: there is no {text}"
        command = found
    try:
        command.make_context("vibe-llms", arguments, parent=context)
    except (click.MissingParameter, click.exceptions.Exit):
        return
    except click.BadArgumentUsage:
        return
    except click.UsageError as error:
        raise AssertionError(f"{place}: {text}: {error.message}") from error


def test_pages_that_are_made_from_code_are_up_to_date() -> None:
    assert call_script("--check") == (0, ""), "run .auxiliary/scripts/reference"


@pytest.mark.slow
def test_a_page_that_is_not_up_to_date_is_named(tmp_path: Path) -> None:
    for name in (".auxiliary", "documentation", "data"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("caches", "artifacts")
        )
    page = tmp_path / "documentation" / "reference" / "events.md"
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    page.write_text(page.read_text("utf-8").replace("TurnEndedEvent\n", "NothingEvent\n"), "utf-8")
    assert call_script("--check", root=tmp_path) == (1, "documentation/reference/events.md\n")
    assert call_script(root=tmp_path) == (0, "documentation/reference/events.md\n")
    assert page.read_text("utf-8") == (ROOT / page.relative_to(tmp_path)).read_text("utf-8")


def call_script(*arguments: str, root: Path = ROOT) -> tuple[int, str]:
    """Status and output of the script that makes pages."""
    script = str(root / ".auxiliary" / "scripts" / "reference")
    done = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def check_page(page: Page) -> None:
    """All that is checked of a page without playing it."""
    check_blocks(page)
    check_links(page, {**PAGES, page.name: page})
    check_names(page)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("```python\nprint()\n```\n", "name its file"),
        ('```python title="first_conversation.py"\nprint()\n```\n', "is another"),
        ("```text\nno test checks this\n```\n", "no test checks"),
        ("```ruby\nputs 1\n```\n", "no test checks"),
        ('```jsonl\n{"role": "user" }\n```\n', "rotten.md:3"),
        ("```\npython tests/no_such_file.py\n```\n", "rotten.md:3"),
        ("```sh\npython -m pip install -e '.[nosuchextra]'\n```\n", "nosuchextra"),
        ("[nowhere](no-such-page.md)\n", "leads nowhere"),
        ("[nowhere](#no-such-heading)\n", "no such heading"),
        ("`vibe-llms chat --no-such-option`\n", "No such option"),
        ("`vibe-llms config nothing`\n", "there is no"),
        ("`vibe_llms.no_such_module`\n", "no_such_module"),
        ("`sources/vibe_llms/no_such_file.py`\n", "there is no"),
        ("`raise NoSuchRefusal`\n", "no class NoSuchRefusal"),
        ("`no-such-seconds = 3`\n", "no key no-such-seconds"),
    ],
)
def test_what_is_wrong_on_a_page_is_noticed(text: str, what: str) -> None:
    path = DOCUMENTATION / "rotten.md"
    page = take_apart(path, f"# Rotten\n\n{text}")
    with pytest.raises((AssertionError, AttributeError), match=what):
        check_page(page)
