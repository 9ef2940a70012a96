"""The house: what may import what, what importing costs, and which names are public."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

import vibe_llms
from vibe_llms.base.configuration import load_configuration
from vibe_llms.cli.commands import COMMANDS
from vibe_llms.messages.events import MessageFailedEvent

ROOT = Path(vibe_llms.__file__).parent
#: The eight storeys, from the ground up. A module imports from its own room and from lower
#: storeys. The table is the one of documentation/explanation/architecture.md.
STOREYS = (
    ("base", "plugins", "interpreter"),
    ("messages",),
    ("invocation",),
    ("providers", "storage"),
    ("conversations",),
    (
        *("embedding", "memory", "documents", "ensembles", "agents", "runs", "telemetry"),
        *("transcripts", "importing", "skills"),
    ),
    ("session", "opening", "synchronous", "testing", "mcp_server"),
    ("server", "acp", "cli", "__main__"),
)
STOREY_OF = {room: storey for storey, rooms in enumerate(STOREYS) for room in rooms}
#: The imports within a storey, and why each is there.
ARROWS = {
    ("plugins", "base"): "installs packages with the locks, files and network rules of the base",
    ("interpreter", "base"): "is a program of its own, and reports the version of the package",
    ("memory", "embedding"): "finds entries by their vectors",
    ("documents", "embedding"): "finds passages by their vectors",
    ("runs", "agents"): "continues the turn of an agent, and counts its budget",
    ("opening", "session"): "loads the session when the first one is opened",
    ("synchronous", "opening"): "opens a session in a thread of its own",
    ("synchronous", "session"): "passes each call to a session",
    ("mcp_server", "session"): "offers the conversations of a session to a client",
    ("cli", "server"): "starts the server, and checks its settings",
    ("cli", "acp"): "starts the agent of an editor",
    ("__main__", "cli"): "is the command",
}
#: Outside their folders only the double that people test with names a provider, and the server,
#: which writes what a provider reads, with the same types.
NAMES_A_PROVIDER = {
    ("testing", "providers.scripted"),
    ("server", "providers.openai"),
    ("server", "providers.anthropic"),
}
#: Public classes of one name in several modules: the synchronous faces of asynchronous classes, and
#: the part of a document beside the part of a scripted reply.
REPEATED = {
    *("Background", "Conversation", "Documents", "EventStream", "Part", "Run", "Runs"),
    *("Session", "Windows"),
}
#: What most programs never need and every start would pay for.
LATE = {
    ("acp.home", "runs.core.forget_runs"),
    ("acp.running", "acp.agent.AcpAgent"),
    ("cli.chat", "cli.memory.ingesting.start_ingestion"),
    ("cli.chat", "cli.repl.run_repl"),
    ("cli.chat", "cli.runs.start_detached"),
    ("cli.completion", "cli.memory.common.short_identity"),
    ("cli.completion", "cli.memory.common.survey_latest"),
    ("cli.completion", "runs.descriptions.read_title"),
    ("cli.completion", "skills.catalog.produce_library"),
    ("cli.conversations", "runs.core.forget_runs"),
    ("cli.main", "cli.commands.run_command"),
    ("cli.options", "cli.function_files.open_functions"),
    ("cli.providers", "cli.provider_checks.check_provider"),
    ("cli.options", "cli.index.refresh"),
    ("cli.options", "cli.providers.offer_plugin"),
    ("cli.repl", "cli.caching.draw_summary"),
    ("cli.repl", "cli.context.draw_context"),
    ("cli.repl", "cli.export"),
    ("cli.repl", "transcripts.exports.export"),
    ("cli.repl", "cli.following.start_worker"),
    ("cli.repl", "cli.memory.repl_memory.run_memory_command"),
    ("cli.repl", "cli.runs.draw_run"),
    ("cli.repl", "cli.runs.watch"),
    ("cli.servers", "cli.mcp_serving.serve"),
    ("cli.serving", "runs.core.cancel_runs"),
    ("cli.serving", "server.running.RunningServer"),
    ("cli.serving", "server.working.work"),
    ("conversations.calls", "invocation.execution.Execution"),
    ("conversations.calls", "invocation.execution.execute"),
    ("conversations.context_keeping", "conversations.compaction.compact"),
    ("conversations.conversation", "conversations.context_use.ContextUse"),
    ("conversations.conversation", "conversations.context_use.divide_tokens"),
    ("conversations.conversation", "conversations.outputs.produce_form"),
    ("conversations.conversation", "messages.markdown.escape_html"),
    ("conversations.settings", "conversations.rereading.produce_reread"),
    ("conversations.settings", "providers.windows.Windows"),
    ("conversations.streams", "conversations.outputs.read_partial"),
    ("conversations.turns", "conversations.outputs.OutputMismatch"),
    ("conversations.turns", "messages.images.REPAIR"),
    ("conversations.turns", "messages.images.find_damage"),
    ("ensembles.core", "ensembles.pins.PinGuard"),
    ("invocation.invokers", "invocation.checks.SchemaCheck"),
    ("memory.settings", "memory.cross_encoders.CrossEncoderReranker"),
    ("memory.stores", "memory.home.produce_store"),
    ("memory.stores", "memory.postgres.produce_store"),
    ("messages.canisters", "messages.markdown.escape_html"),
    ("opening", "base.configuration.Configuration"),
    ("opening", "base.configuration.LOCAL"),
    ("opening", "base.configuration.Places"),
    ("opening", "base.configuration.load_configuration"),
    ("opening", "providers.provider_pool.unguarded"),
    ("opening", "session.core.Session"),
    ("opening", "session.parts.SessionParts"),
    ("opening", "storage.backends.open_backend"),
    ("providers.contract.selection", "providers.contract.model.ContractModel"),
    ("providers.provider_pool", "plugins.loading.open_plugin"),
    ("providers.provider_pool", "providers.local_servers.LocalSearch"),
    ("runs.stores", "runs.postgres.produce_store"),
    ("runs.stores", "runs.postgres_budgets.produce_store"),
    ("runs.stores", "runs.sqlite.produce_store"),
    ("runs.stores", "runs.sqlite_budgets.produce_store"),
    ("server.spaces", "documents.store.produce_store"),
    ("server.stores", "server.postgres_continuations.produce_store"),
    ("server.stores", "server.postgres_imports.produce_store"),
    ("server.stores", "server.postgres_secrets.produce_store"),
    ("session.core", "agents.ensemble.AgentsEnsemble"),
    ("session.core", "agents.ensemble.OfferedAgent"),
    ("session.core", "agents.imports.import_agents"),
    ("session.core", "conversations.asking.ModelAsker"),
    ("session.core", "documents.core.produce_documents"),
    ("session.core", "importing.core.import_conversations"),
    ("session.core", "messages.costs.estimate_cost"),
    ("session.core", "providers.windows.Windows"),
    ("session.core", "runs.budgets.produce_budgets"),
    ("session.core", "runs.core"),
    ("session.core", "runs.core.forget_runs"),
    ("session.core", "runs.core.produce_history"),
    ("session.core", "skills.catalog.produce_library"),
    ("session.core", "skills.ensemble.SkillsEnsemble"),
    ("session.core", "telemetry.produce_tracer"),
    ("session.parts", "storage.postgres.limits.produce_store"),
    ("storage.user_stores", "storage.postgres.logins.produce_store"),
    ("storage.user_stores", "storage.postgres.users.produce_store"),
}
#: What opens files: the one place where they are read; folders and new files of the archive; and
#: what the system itself provides, such as /proc and inherited descriptors.
OPENING = {
    *("base.files", "base.folders", "base.locks", "storage.appending", "base.databases"),
    *(
        "memory.journal",
        "memory.git",
        "base.detaching",
        "conversations.attachments",
        "cli.terminal",
    ),
    *("ensembles.mcp.guardian", "storage.mounts"),
}
#: Load modules by their names: tables of public names, rows, the table of commands, and the module
#: that a package of another owner is in.
LOADS_BY_NAME = {
    *("base.meta", "base.registries", "cli.commands", "telemetry", "embedding.hub"),
    *("documents.readers.packages", "providers.llamacpp.package"),
}
OTHER_PACKAGES = {"jinja2"}
TYPES_ONLY = "TYPE_CHECKING"


@cache
def folders() -> set[str]:
    """The packages, by their names without ours."""
    return {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.rglob("__init__.py")} - {
        ""
    }


@pytest.fixture(scope="module", autouse=True)
def forget_syntax() -> Iterator[None]:
    """The syntax of all modules is millions of objects, which other tests need not carry along."""
    yield
    for function in (modules, nodes, imports, own_imports):
        function.cache_clear()


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax of every module, by its name without the package's."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if name != "__init__":
            found[name.removesuffix(".__init__")] = ast.parse(path.read_text("utf-8"))
    return found


@cache
def nodes(tree: ast.AST) -> Sequence[ast.AST]:
    """Every node of a module's syntax: most tests look at all of them."""
    return tuple(ast.walk(tree))


def room_of(module: str) -> str:
    """The folder or file at the top of the package that a module belongs to."""
    return module.partition(".")[0]


def variant_of(module: str) -> str:
    """The provider whose folder a module lies in, or nothing."""
    parts = module.split(".")
    shared = {"contract"}
    if parts[0] != "providers" or len(parts) < 2 or parts[1] in shared:
        return ""
    return parts[1] if f"providers.{parts[1]}" in folders() else ""


@cache
def imports(tree: ast.AST, *, types: bool = True) -> Sequence[tuple[str, ast.stmt]]:
    """What a module imports; without `types`, only what is imported when it runs."""
    found: list[tuple[str, ast.stmt]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom):
            found += [(f"{node.module}.{alias.name}", node) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names]
        elif isinstance(node, ast.If) and not types and ast.unparse(node.test) == TYPES_ONLY:
            continue
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case | ast.Module):
            # No expression has an import in it.
            waiting += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)]
    return found


@cache
def own_imports(tree: ast.AST) -> Sequence[str]:
    """The modules of this package that a module imports, by a statement or by a string."""
    found = []
    for name, _ in imports(tree):
        if name.startswith("vibe_llms."):
            own = name.removeprefix("vibe_llms.")
            found.append(own if own in modules() else own.rpartition(".")[0])
    for node in nodes(tree):
        # The name of a package may be that of a logger; a logger's name is one of its own room.
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            own = node.value.removeprefix("vibe_llms.")
            if own != node.value and own in modules() and own not in folders():
                found.append(own)
    return found


def complaints(trees: dict[str, ast.Module]) -> list[str]:
    """The imports that run upwards or sideways, or to a provider outside its folder."""
    found = []
    for module, tree in trees.items():
        room = room_of(module)
        for target in own_imports(tree):
            other = room_of(target)
            if not other or (other == room and variant_of(target) == variant_of(module)):
                continue
            sideways = STOREY_OF[other] == STOREY_OF[room] and (room, other) not in ARROWS
            wrong = STOREY_OF[other] > STOREY_OF[room] or (sideways and other != room)
            provider = variant_of(target)
            foreign = provider and provider != variant_of(module)
            foreign = foreign and (room, f"providers.{provider}") not in NAMES_A_PROVIDER
            if wrong or foreign:
                found.append(f"{module} imports {target}")
    return found


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules, or rooms, that import each other."""
    sorter = TopologicalSorter(arrows)
    try:
        sorter.prepare()
    except CycleError as error:
        return [error.args[1]]
    return []


def arrows_between(name: Callable[[str], str]) -> dict[str, set[str]]:
    """What imports what, by a name of each module; `TYPE_CHECKING` counts."""
    arrows: dict[str, set[str]] = {}
    for module, tree in modules().items():
        targets = {name(target) for target in own_imports(tree) if target}
        if module == "cli.commands":
            targets |= {name(f"cli.{home}") for home, _ in COMMANDS.values()}
        arrows.setdefault(name(module), set()).update(targets - {name(module)})
    return arrows


def repeated(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """The public classes of one name that several modules define, with those modules."""
    homes: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    return {name: found for name, found in homes.items() if len(found) > 1}


def test_a_public_class_has_a_name_of_its_own() -> None:
    assert {*repeated(modules())} == REPEATED


def test_a_repeated_name_would_be_found() -> None:
    one, other = ast.parse("class Piece:\n    pass"), ast.parse("class _Own: ...\nclass Piece: ...")
    assert repeated({"a": one, "b": other, "c": ast.parse("class _Own: ...")}) == {
        "Piece": ["a", "b"]
    }


ODD_BEGINNINGS = ("What ", "Whether ", "Those ", "So many ", "As many ")


def odd_docstrings(trees: dict[str, ast.Module]) -> list[str]:
    """The docstrings that do not begin with the thing or with what is done."""
    return [
        f"{module}: {text.splitlines()[0]}"
        for module, tree in trees.items()
        for node in nodes(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node) or "").startswith(ODD_BEGINNINGS)
    ]


def test_a_docstring_begins_plainly() -> None:
    assert odd_docstrings(modules()) == []


def test_an_odd_docstring_would_be_found() -> None:
    assert odd_docstrings({"a": ast.parse('class A:\n    """What it is."""')}) == ["a: What it is."]


def wide_protocols(trees: dict[str, ast.Module], most: int = 15) -> dict[str, int]:
    """The protocols that define more members than `most`, without those that they inherit."""
    return {
        f"{module}.{node.name}": count
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).partition("[")[0] == "Protocol" for base in node.bases)
        and (count := sum(not isinstance(member, ast.Expr) for member in node.body)) > most
    }


def test_a_protocol_is_narrow() -> None:
    assert wide_protocols(modules()) == {}


def test_a_wide_protocol_would_be_found() -> None:
    wide = ast.parse("class Store(Protocol[T]):\n" + "".join(f"    m{n}: int\n" for n in range(16)))
    narrow = ast.parse(
        "class Reader(Protocol):\n    m: int\nclass Both(Reader, Protocol):\n    n: int"
    )
    assert wide_protocols({"wide": wide, "narrow": narrow}) == {"wide.Store": 16}


def test_every_room_has_its_storey() -> None:
    assert {room_of(module) for module in modules() if module} == set(STOREY_OF)
    assert len(STOREYS) == 8


def test_no_import_runs_upwards_or_sideways() -> None:
    assert complaints(modules()) == []


def test_every_arrow_within_a_storey_is_used() -> None:
    arrows = arrows_between(room_of)
    assert [pair for pair in ARROWS if pair[1] not in arrows[pair[0]]] == []


def test_no_rooms_and_no_modules_import_each_other() -> None:
    assert circles(arrows_between(room_of)) == []
    assert circles(arrows_between(str)) == []


def test_modules_are_loaded_by_name_in_registries_and_in_the_table_of_commands_only() -> None:
    found = {
        module
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.Call) and names_function(node.func, "import_module")
        if not (isinstance(node.args[0], ast.Constant) and node.args[0].value in OTHER_PACKAGES)
    }
    assert found == LOADS_BY_NAME


def names_function(function: ast.expr, name: str) -> bool:
    match function:
        case ast.Name(id=found) | ast.Attribute(attr=found):
            return found == name
    return False


def test_the_picture_of_the_house_is_up_to_date() -> None:
    # In this process, which has read all modules already.
    script = runpy.run_path(str(Path(__file__).parents[1] / ".auxiliary" / "scripts" / "house"))
    assert script["main"](["--check"]) == 0, "run .auxiliary/scripts/house"


def test_the_page_on_the_house_names_the_rooms_of_each_storey() -> None:
    page = Path(__file__).parents[1] / "documentation" / "explanation" / "architecture.md"
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", page.read_text("utf-8"), re.MULTILINE)
    reported = {int(storey): set(re.findall(r"`(\w+)`", rooms)) for storey, rooms in rows}
    assert reported == {storey: {*rooms} for storey, rooms in enumerate(STOREYS, 1)}


def test_a_circle_would_be_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("messages.contents", "from vibe_llms.storage.lines import x"),
        ("storage.archive", "from vibe_llms.providers.registry import register"),
        ("providers.registry", "from vibe_llms.storage import archive"),
        ("memory.core", "from vibe_llms.documents import core"),
        ("providers.scripted.client", "from vibe_llms.providers.anthropic import client"),
        ("session", "from vibe_llms.providers.anthropic.client import AnthropicProvider"),
        ("storage.search", "def f() -> None:\n    from vibe_llms.cli import main"),
        ("storage.search", "if TYPE_CHECKING:\n    from vibe_llms.runs.core import Runs"),
        ("storage.search", "import_module('vibe_llms.runs.sqlite')"),
        ("storage.search", "PARTS = {'runs': 'vibe_llms.runs.sqlite'}"),
    ],
)
def test_an_import_upwards_or_sideways_would_be_found(module: str, line: str) -> None:
    assert len(complaints({module: ast.parse(line)})) == 1


def test_our_own_modules_are_imported_at_the_top() -> None:
    hidden = [
        f"{module}: {name}"
        for module, tree in modules().items()
        for function in nodes(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for name, _ in imports(function)
        if name.startswith("vibe_llms.") and (module, name.removeprefix("vibe_llms.")) not in LATE
    ]
    assert hidden == []


def test_each_module_of_the_command_can_be_imported_first() -> None:
    """A circle through the `__init__` of a folder shows only in some orders."""
    names = [f"vibe_llms.{name}" for name in modules() if room_of(name) == "cli"]
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    for one in [one for one in sys.modules if one.startswith('vibe_llms.cli')]:\n"
        "        del sys.modules[one]\n"
        "    importlib.import_module(name)\n"
    )
    assert len(names) > 50
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_other_packages_are_imported_where_they_are_needed() -> None:
    eager = [
        f"{module}: {name}"
        for module, tree in modules().items()
        for name, node in imports(tree, types=False)
        if node in tree.body
        and (root := name.partition(".")[0]) not in sys.stdlib_module_names
        and root not in ("vibe_llms", "msgspec")
        # Files of the command are imported when it is used, the server's when it starts.
        and not module.startswith(("cli.", "server."))
    ]
    assert eager == []


def test_files_are_opened_in_one_place() -> None:
    """Anything else would wait for a named pipe, or read a file that never ends."""
    opening = {
        module
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.Call) and opens_a_file(node.func)
    }
    assert {module for module in opening if room_of(module) != "interpreter"} == OPENING


def opens_a_file(function: ast.expr) -> bool:
    match function:
        case ast.Name(id="open") | ast.Attribute(attr="read_text" | "read_bytes"):
            return True
        case ast.Attribute(value=ast.Name(id="os"), attr="open"):
            return True
    return False


def test_a_vendors_package_is_imported_in_one_file_only() -> None:
    vendors = ("anthropic", "openai", "ollama")
    found = {
        module
        for module, tree in modules().items()
        for name, _ in imports(tree)
        if name.partition(".")[0] in vendors
    }
    packages = ("providers.anthropic", "providers.ollama", "providers.openai")
    assert found == {f"{package}.package" for package in packages}


def test_the_package_of_llama_cpp_is_imported_by_name_in_one_file_only() -> None:
    # It may be missing where types are checked, so no statement imports it.
    found = {
        module
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and node.value in ("llama_cpp", "jinja2")
    }
    assert found == {"providers.llamacpp.package"}


_LIGHT = ("huggingface_hub", "onnxruntime", "tokenizers")


def test_what_runs_local_models_is_imported_by_name_where_they_are_loaded_only() -> None:
    names = ("sentence_transformers", "transformers", "safetensors", "torch", *_LIGHT)
    found = {
        module
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert found == {
        *("embedding.hub", "embedding.onnx.package"),
        "embedding.sentence_transformers.package",
    }
    assert not {
        (module, name)
        for module, tree in modules().items()
        for name, _ in imports(tree)
        if name.partition(".")[0] in names
    }


#: Where everything may be caught, and why: code of others runs there, or the program ends there.
BROAD = {
    "ensembles.function_files._run": "the user's own code: the error says what failed, and where",
    "documents.worker._serve": "a reader's own code, on a hostile file: the caller gets an error",
    "conversations.hook_runner._guard": "a hook's own code: a turn is not lost with it",
    "cli.commands.run_command": "the terminal",
    "server.application.Application._serve": "a request: the server goes on with others",
    "acp.peer.Peer._run": "a request: the agent goes on with others",
    "cli.repl.Repl.run": "the terminal, line by line",
    "base.futures.ShieldedFuture.wait": "raised where the result is asked for",
    "base.futures._fulfil": "raised where shielded work is awaited",
    "invocation.execution._invoke": "a tool's call",
    "invocation.threads._Work.carry_out": "raised again where a tool's call is awaited",
    "providers.registry.guard_code": "a plugin's own code: it breaks only itself",
    "providers.logins._run_aside.run": "raised again where the token is awaited",
    "providers.llamacpp.engines.Job.run": "raised again where the work of a thread is awaited",
    "embedding.onnx.package.TextModel._tokenize": "tokenizers raises Exception itself",
    "storage.threads._Thread._carry_out": "raised where the work of a thread is awaited",
    "base.registries.Registry.access": "the import of a plugin: it breaks only itself",
    "mcp_server.core.McpServer.answer": "a request, as a tool's call: the server goes on",
    "messages.tracing._Reports.call": "telemetry's own code: a turn does not end with it",
}
EVERYTHING = {"Exception", "BaseException"}


def catches_everything(node: ast.AST) -> bool:
    """Whether a statement catches, or suppresses, whatever is raised."""
    match node:
        case ast.ExceptHandler(type=None):
            return True
        case ast.ExceptHandler(type=types) if types is not None:
            names: Iterable[ast.AST] = ast.walk(types)
        case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=args):
            names = args
        case _:
            return False
    return any(isinstance(name, ast.Name) and name.id in EVERYTHING for name in names)


def broad(tree: ast.AST, place: str) -> Iterator[str]:
    """The functions below a place that catch everything."""
    for node in ast.iter_child_nodes(tree):
        below = place
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            below = f"{place}.{node.name}"
        if catches_everything(node):
            yield below
        yield from broad(node, below)


def test_everything_is_caught_only_at_borders() -> None:
    found = [place for module, tree in modules().items() for place in broad(tree, module)]
    assert sorted(found) == sorted(BROAD)


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    pass\nexcept Exception:\n    raise",
        "try:\n    pass\nexcept (KeyError, BaseException) as error:\n    pass",
        "try:\n    pass\nexcept* Exception:\n    pass",
        "try:\n    pass\nexcept:\n    pass",
        "with suppress(Exception):\n    pass",
        "with contextlib.suppress(OSError, BaseException):\n    pass",
    ],
)
def test_a_new_place_that_catches_everything_would_be_detected(code: str) -> None:
    tree = ast.parse(f"class A:\n    async def b(self):\n{textwrap.indent(code, ' ' * 8)}")
    assert list(broad(tree, "module")) == ["module.A.b"]
    harmless = code.replace("BaseException", "OSError").replace("Exception", "ValueError")
    if harmless != code:
        assert list(broad(ast.parse(harmless), "module")) == []


def loaded_by(code: str) -> set[str]:
    """The packages, and modules of ours, that a fresh interpreter has loaded after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in done.stdout.split() if "." not in name or "vibe_llms" in name}


#: The names of the first example of README.md, and all that they add to asyncio and msgspec.
EXAMPLE = "from vibe_llms import MessageProgressEvent, TextChunk, open_session"
LOADED_BY_EXAMPLE = (
    "base base.exceptions base.meta base.offloading base.redaction messages messages.canisters "
    "messages.contents messages.events messages.identities opening"
)
#: What is added when that example opens a session: all that a conversation without tools needs.
LOADED_BY_SESSION = (
    "agents agents.definitions agents.templates "
    "base.configuration base.credentials base.databases base.endings "
    "base.files base.folders base.futures base.keys base.locks base.registries conversations "
    "conversations.calls conversations.context_keeping conversations.context_requests "
    "conversations.context_view "
    "conversations.context_window conversations.conversation "
    "conversations.corrections conversations.dispatcher conversations.document_texts "
    "conversations.documents conversations.fallbacks conversations.history "
    "conversations.hook_runner conversations.hooks "
    "conversations.hosts conversations.prompts conversations.settings conversations.steering "
    "conversations.streams "
    "conversations.tools conversations.turn_storage conversations.turns "
    "ensembles ensembles.core invocation "
    "invocation.approval invocation.asking invocation.ensembles invocation.invokers "
    "invocation.limits invocation.other_names invocation.questions invocation.results "
    "invocation.reuse invocation.schemata invocation.threads messages.caching messages.codecs "
    "messages.controls messages.tracing plugins plugins.pins providers providers.attributes "
    "providers.breakers providers.caller_keys providers.contract "
    "providers.contract.selection providers.conversions providers.interfaces providers.limits "
    "providers.matching providers.pieces providers.provider_pool providers.registry "
    "providers.spending session session.core session.options session.parts storage "
    "storage.appending storage.archive storage.backends storage.batches storage.changes "
    "storage.contents "
    "storage.conversations storage.deposits storage.details storage.families storage.home "
    "storage.indexing storage.inspection storage.interfaces storage.lines storage.mounts "
    "storage.resolving storage.search storage.texts storage.threads storage.transfer "
    "storage.uploads storage.versions"
)
OPENING_SESSION = """
async def open_and_close() -> None:
    async with open_session():
        pass
asyncio.run(open_and_close())
"""
HEAVY = {
    *("pydantic", "rich", "click", "httpx", "httpx2", "prompt_toolkit", "sqlite3"),
    *("tomli_w", "tomlkit"),
    *("anthropic", "ollama", "openai", "llama_cpp", "jinja2", "ctypes"),
    *("opentelemetry", "requests"),
    *("pypdfium2", "mammoth", "python_calamine", "selectolax", "trafilatura", "lxml"),
    *("uvicorn", "prometheus_client", "python_multipart"),
    *("sentence_transformers", "transformers", "torch", "numpy", "faiss", *_LIGHT),
}


@pytest.mark.parametrize(
    "code",
    [
        "import vibe_llms",
        EXAMPLE,
        "import vibe_llms; [getattr(vibe_llms, name) for name in vibe_llms.__all__]",
    ],
)
def test_importing_loads_no_package_but_msgspec(code: str) -> None:
    loaded = loaded_by(code)
    assert not loaded & HEAVY
    assert not {name for name in loaded if name.startswith("vibe_llms.providers.anthropic")}
    assert not {
        name for name in loaded if name.startswith(("vibe_llms.memory", "vibe_llms.documents"))
    }


def test_the_example_loads_these_modules_and_no_others() -> None:
    base = "import asyncio, msgspec"
    added = loaded_by(f"{base}\n{EXAMPLE}") - loaded_by(base)
    assert added == {"vibe_llms", *own(LOADED_BY_EXAMPLE)}


def test_opening_a_session_loads_these_modules_and_no_others() -> None:
    loaded = loaded_by(f"import asyncio\n{EXAMPLE}\n{OPENING_SESSION}")
    ours = {name for name in loaded if name.startswith("vibe_llms.")}
    assert ours == {*own(LOADED_BY_EXAMPLE), *own(LOADED_BY_SESSION)}
    assert "difflib" not in loaded


def own(names: str) -> Iterator[str]:
    return (f"vibe_llms.{name}" for name in names.split())


def test_importing_the_package_alone_loads_next_to_nothing() -> None:
    ours = {name for name in loaded_by("import vibe_llms") if name.startswith("vibe_llms")}
    assert ours == {"vibe_llms", "vibe_llms.base", "vibe_llms.base.meta"}


def test_the_public_names_are_sorted_and_there() -> None:
    names = vibe_llms.__all__
    assert list(names) == sorted(set(names))
    assert len(names) < 80
    assert set(names) <= set(dir(vibe_llms))
    for name in names:
        assert getattr(vibe_llms, name) is not None
    assert not hasattr(vibe_llms, "no_such_name")


@pytest.mark.parametrize(
    "name", ["vibe_llms", "vibe_llms.documents", "vibe_llms.memory", "vibe_llms.providers"]
)
def test_the_types_that_checkers_see_are_the_names_that_are_loaded(name: str) -> None:
    package = importlib.import_module(name)
    tree = ast.parse(Path(str(package.__file__)).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            seen[alias.asname or alias.name] = (node.module or "", alias.name)
    names = [one for one in package.__all__ if one != "__version__"]
    assert (len(names), {*names}) == (len(seen), {*seen})
    assert {*package.__all__} <= {*dir(package)}
    assert not hasattr(package, "no_such_name")
    for one, (home, there) in seen.items():
        assert getattr(package, one) is getattr(importlib.import_module(home), there)


@pytest.mark.parametrize("name", ["vibe_llms.documents", "vibe_llms.memory", "vibe_llms.providers"])
def test_importing_a_face_loads_none_of_its_modules(name: str) -> None:
    loaded = {module for module in loaded_by(f"import {name}") if module.startswith("vibe_llms")}
    assert loaded == {"vibe_llms", "vibe_llms.base", "vibe_llms.base.meta", name}


def test_every_module_says_what_lives_in_it() -> None:
    assert [module for module, tree in modules().items() if not ast.get_docstring(tree)] == []


def test_every_shipped_row_names_a_module_that_is_there() -> None:
    configuration = load_configuration()
    rows = {row.name: row for row in configuration.rows("providers")}
    assert {"anthropic", "openai", "openai-chat", "ollama", "llamacpp", "scripted"} <= set(rows)
    embedders = {row.name: row for row in configuration.rows("embedders")}
    assert set(embedders) == {"onnx", "sentence-transformers"}
    for row in (*rows.values(), *embedders.values()):
        importlib.import_module(row.module)


#: What a value may be made of that the garbage collector does not look at: nothing of it can lead
#: back to who holds it.
PLAIN = (str, int, float, bool, bytes, datetime, type(None), msgspec.Raw)


def can_hold_its_holder(hint: Any) -> bool:
    """Whether a value of this type could be part of a cycle."""
    if get_origin(hint) in (Literal, ClassVar):
        return False
    if get_origin(hint) is not None:
        return any(can_hold_its_holder(part) for part in get_args(hint) if part is not ...)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint.__struct_config__.gc
    return hint not in PLAIN


def uncollected(structs: Iterable[type[msgspec.Struct]]) -> list[str]:
    """Attributes of structs without garbage collection that could be part of a cycle."""
    return [
        f"{struct.__module__}.{struct.__name__}.{name}"
        for struct in structs
        if not struct.__struct_config__.gc
        for name, hint in get_type_hints(struct).items()
        if can_hold_its_holder(hint)
    ]


def test_what_the_garbage_collector_does_not_look_at_holds_plain_values_only() -> None:
    structs = {
        struct
        for name in modules()
        if not name.startswith(("cli", "__main__"))
        for struct in vars(importlib.import_module(f"vibe_llms.{name}".rstrip("."))).values()
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct)
    }
    assert len([struct for struct in structs if not struct.__struct_config__.gc]) > 40
    assert uncollected(structs) == []


def test_an_error_in_such_a_value_would_be_detected() -> None:
    class Untracked(MessageFailedEvent, frozen=True, gc=False):
        pass

    assert [name.rpartition(".")[2] for name in uncollected([Untracked])] == ["error"]
