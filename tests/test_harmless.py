"""Reading data never runs code: nothing in the package could, and no planted payload does."""

from __future__ import annotations

import ast
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import vibe_llms
from tests.cli.command import invoke
from tests.fakes.embedders import WordsEmbedder
from vibe_llms.base.configuration import find_places
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.history import survey_changes
from vibe_llms.memory.snapshot import _digest
from vibe_llms.memory.versions import Versions

ROOT = Path(vibe_llms.__file__).parent
ADA = Scope.of_user("ada")

#: Modules whose reading of data runs what it says.
MODULES = frozenset(
    {
        *("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "jsonpickle", "joblib"),
        *("marshal", "shelve", "runpy", "code", "codeop", "imp", "xmlrpc"),
    }
)
FUNCTIONS = frozenset({"eval", "exec", "compile", "__import__", "execfile"})
#: Attributes by the name of what they are of, in whichever way it was imported.
ATTRIBUTES = {
    "yaml": {"unsafe_load", "unsafe_load_all", "full_load", "full_load_all", "load_all"}
    | {"Loader", "CLoader", "UnsafeLoader", "CUnsafeLoader", "FullLoader", "CFullLoader"},
    "os": {"system", "popen"},
    "tempfile": {"mktemp"},
    "builtins": set(FUNCTIONS),
}
#: Calls that are harmless only with an argument, by the ends of their names.
NEEDED = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
}
#: Arguments that nothing may be called with.
REFUSED = {("allow_pickle", True), ("trust_remote_code", True), ("shell", True)}
#: The places that load YAML with a loader that they choose: of the two safe ones.
LOADS_YAML = {"base/yaml_values.py", "memory/entries.py"}
#: The one place that runs a file: `--functions`, after the user approved the file's hash.
RUNS_FILES = {"ensembles/function_files.py": {"compile", "exec"}}


def find_harm(tree: ast.AST, place: str = "") -> Iterator[str]:
    """What in a module could run what it reads."""
    for node in ast.walk(tree):
        where = f"{place}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Import(names=names):
                for one in names:
                    if one.name.partition(".")[0] in MODULES:
                        yield f"{where} imports {one.name}"
            case ast.ImportFrom(module=str() as module, names=names):
                if module.partition(".")[0] in MODULES:
                    yield f"{where} imports {module}"
                for one in names:
                    if one.name in ATTRIBUTES.get(module, ()):
                        yield f"{where} imports {module}.{one.name}"
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                if name in ATTRIBUTES.get(owner, ()):
                    yield f"{where} uses {owner}.{name}"
            case ast.Name(id=name) if name in FUNCTIONS - RUNS_FILES.get(place, set()):
                yield f"{where} uses {name}"
            case ast.Call():
                yield from (f"{where} {words}" for words in _find_in_call(node, place))
            case _:
                pass


def _find_in_call(call: ast.Call, place: str) -> Iterator[str]:
    given = {
        keyword.arg: keyword.value.value
        for keyword in call.keywords
        if keyword.arg is not None and isinstance(keyword.value, ast.Constant)
    }
    for name, value in REFUSED:
        if name in given and given[name] == value:
            yield f"calls with {name}={value}"
    called = ast.unparse(call.func)
    if called in NEEDED:
        name, value = NEEDED[called]
        if given.get(name) is not value:
            yield f"calls {called} without {name}={value}"
    if called == "yaml.load" and place not in LOADS_YAML:
        yield "calls yaml.load"


def test_nothing_in_the_package_runs_what_it_reads() -> None:
    found = [
        harm
        for path in sorted(ROOT.rglob("*.py"))
        for harm in find_harm(
            ast.parse(path.read_text("utf-8")), str(path.relative_to(ROOT).as_posix())
        )
    ]
    assert found == []


def test_the_place_that_runs_files_does_nothing_else_of_the_kind() -> None:
    for place, allowed in RUNS_FILES.items():
        names = {
            node.id
            for node in ast.walk(ast.parse((ROOT / place).read_text("utf-8")))
            if isinstance(node, ast.Name)
        }
        assert names & FUNCTIONS == allowed


def test_the_loaders_of_yaml_are_the_safe_ones() -> None:
    for place in LOADS_YAML:
        tree = ast.parse((ROOT / place).read_text("utf-8"))
        loaders = {
            name
            for node in ast.walk(tree)
            for name in (
                [node.attr]
                if isinstance(node, ast.Attribute)
                else [node.value]
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
                else []
            )
            if name.endswith("Loader")
        }
        assert loaders == {"SafeLoader", "CSafeLoader"}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "from shelve import open",
        "def f() -> None:\n    import dill.source",
        "eval('1')",
        "exec(text)",
        "f = __import__",
        "import yaml\nyaml.unsafe_load(text)",
        "import yaml\nyaml.load(text, yaml.SafeLoader)",
        "loader = yaml.FullLoader",
        "from yaml import UnsafeLoader",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "numpy.load(path, allow_pickle=True)",
        "store.read(path, allow_pickle=True)",
        "SentenceTransformer(name, trust_remote_code=True)",
        "subprocess.run(words, shell=True)",
        "os.system(words)",
        "from os import popen",
        "tempfile.mktemp()",
    ],
)
def test_what_could_run_data_would_be_detected(line: str) -> None:
    assert [*find_harm(ast.parse(line))]


@pytest.mark.parametrize(
    "line",
    [
        "import re\nre.compile('x')",
        "np.load(path, allow_pickle=False)",
        "torch.load(path, weights_only=True)",
        "yaml.safe_load(text)",
        "subprocess.run(words, shell=False)",
    ],
)
def test_harmless_code_is_not_reported(line: str) -> None:
    assert [*find_harm(ast.parse(line))] == []


class Payload:
    """What runs a program where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.marker}'",)


def front_matters(marker: Path) -> Iterator[str]:
    """Entries whose front matter names what shall run."""
    command = f"touch '{marker}'"
    extend = '{"extend": !!python/name:exec }'
    tags = [
        f"!!python/object/apply:os.system [{command!r}]",
        f"!!python/object/new:subprocess.check_call [[touch, {str(marker)!r}]]",
        f'!!python/object/new:type {{args: ["z", !!python/tuple [], {extend}], listitems: "x"}}',
        "!!python/name:os.system",
        "!!python/module:os",
        "!<tag:yaml.org,2002:python/object/apply:os.system> [x]",
        f"&a !!python/object/apply:os.system [{command!r}]",
    ]
    head = "id: {}\ncreated_at: 2026-01-01\n"
    for number, tag in enumerate(tags):
        yield f"---\n{head.format(f'known-{number}')}category: {tag}\n---\n\nfact {number}\n"
        yield f"---\n{head.format(f'further-{number}')}mood: {tag}\n---\n\nfact {number}\n"
        yield f"---\n{tag}\n---\n\nfact {number}\n"
        yield f"---\n{head.format(f'body-{number}')}---\n\n{tag}\n{{{{7*7}}}} $({command})\n"


async def use(folder: Path) -> None:
    """All that a memory does with what it reads."""
    versions = Versions(folder, quiet_seconds=1000)
    memory = Memory(folder, durable=False, embedder=WordsEmbedder(), versions=versions)
    await memory.search("fact about bees", scopes=[ADA])
    for entry in await memory.survey():
        await memory.revise(entry.identity, content=f"{entry.content} again")
    await memory.status()
    await versions.status()
    await versions.commit()
    await survey_changes(memory)
    await memory.forget("bees")
    await memory.reindex()
    await memory.close()


async def test_no_payload_in_a_file_of_a_memory_runs(tmp_path: Path) -> None:
    marker, folder = tmp_path / "ran", tmp_path / "memory"
    memory = Memory(folder, durable=False, embedder=WordsEmbedder())
    await memory.add("Ada keeps bees.", scope=ADA)
    await memory.close()
    facts = folder / "entries" / "user-ada" / "facts"
    for number, text in enumerate(front_matters(marker)):
        (facts / f"planted-{number}.md").write_text(text)
    await use(folder)
    payload = pickle.dumps(Payload(marker))
    derived = [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.relative_to(folder).parts[0] != "entries"
        and "objects" not in path.parts
    ]
    assert {path.name for path in derived} >= {"manifest", "database", "index"}
    for path in derived:
        # Each alone, since one that is refused may keep the others from being read.
        before = path.read_bytes()
        path.write_bytes(payload)
        memory = Memory(folder, durable=False, embedder=WordsEmbedder())
        await memory.search("fact about bees", scopes=[ADA])
        await memory.survey()
        await Versions(folder).status()
        if path.exists():
            path.write_bytes(before)
    assert not marker.exists()
    pickle.loads(payload)
    assert marker.exists(), "the payload is none"


async def test_no_payload_in_an_index_whose_checksums_fit_runs(tmp_path: Path) -> None:
    marker, folder = tmp_path / "ran", tmp_path / "memory"
    payload = pickle.dumps(Payload(marker))
    for name in ("database",):
        memory = Memory(folder, durable=False)
        await memory.add(f"Ada keeps {name} of bees.", scope=ADA)
        await memory.reindex()
        manifest = next((folder / "index").rglob("manifest"))
        reported = msgspec.json.decode(manifest.read_bytes())
        (manifest.parent / name).write_bytes(payload)
        reported["checksums"][name] = _digest(payload, "")
        manifest.write_bytes(msgspec.json.encode(reported))
        found = await Memory(folder, durable=False).search("bees", scopes=[ADA])
        assert found
    assert not marker.exists()


def test_no_payload_in_what_is_imported_runs(home: Path, tmp_path: Path) -> None:
    marker, file = tmp_path / "ran", tmp_path / "memory.json"
    command = f"touch '{marker}'"
    item = f'{{"data": {{"content": "!!python/object/apply:os.system [{command}]", "id": 1}}}}'
    tagged = (
        f'{{"py/object": "os.system", "py/reduce": [{{"py/function": "os.system"}}, "{command}"]}}'
    )
    payloads = [
        pickle.dumps(Payload(marker)),
        pickle.dumps(Payload(marker), protocol=0),
        f'{{"memories": [{item}, {tagged}]}}'.encode(),
        f"!!python/object/apply:os.system [{command!r}]".encode(),
        f"__import__('os').system({command!r})".encode(),
    ]
    for payload in payloads:
        file.write_bytes(payload)
        invoke("memory", "import", "--skip-bad", str(file))
    invoke("memory", "list")
    (home / "config.toml").write_bytes(payloads[0])
    assert invoke("memory", "list").status == 78
    assert not marker.exists()


def test_stores_lie_in_no_folder_that_others_share(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIBE_LLMS_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    places = find_places({})
    for path in (places.configuration_file, places.data, places.keys_file, places.history_file):
        assert path.is_relative_to("/home/ada"), path
        assert not path.is_relative_to(tempfile.gettempdir())


async def test_only_their_owner_may_read_what_is_stored(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = tmp_path / "memory"
        versions = Versions(folder, quiet_seconds=1000)
        memory = Memory(folder, durable=False, embedder=WordsEmbedder(), versions=versions)
        await memory.add("Ada keeps bees.", scope=ADA)
        await memory.search("bees", scopes=[ADA])
        await memory.close()
        paths = [folder, *folder.rglob("*")]
        assert len(paths) > 20
        assert [str(path) for path in paths if path.stat().st_mode & 0o077] == []
    finally:
        os.umask(before)
