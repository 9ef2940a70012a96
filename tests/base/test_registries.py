"""Rows of TOML to factories in modules: the same road for all, and every wrong turn is named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import vibe_llms
from tests.plugins import __path__ as plugins
from vibe_llms.base.exceptions import ConfigurationError, ModelNotFound, RegistrationError
from vibe_llms.base.registries import Registry, Row
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.events import Event
from vibe_llms.synchronous import open_session as open_synchronously
from vibe_llms.testing import check_events

Maker = Callable[[], str]
#: The modules below register here.
FACTORIES: Registry[Maker] = Registry("factories")

IMPORT = "from tests.base.test_registries import FACTORIES\n"


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Writes a module that can be imported while the test runs."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    number = len(list(tmp_path.parent.iterdir()))

    def write(text: str, name: str = "") -> str:
        name = name or f"third_party_{number}_{len(list(folder.iterdir()))}"
        path = folder.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(IMPORT + text)
        return name

    yield write
    for module in set(sys.modules) - before:
        del sys.modules[module]


def check_refused(row: Row, key: str, message: str) -> None:
    with pytest.raises(RegistrationError, match=message) as caught:
        FACTORIES.access(row)
    assert (caught.value.file, caught.value.table, caught.value.key) == (
        "config.toml",
        f"factories.{row.name}",
        key,
    )


def row_of(module: str, name: str = "mine", factory: str = "") -> Row:
    return Row(name, module, factory, {}, "config.toml")


def test_a_module_is_imported_when_its_row_is_asked_for_and_not_before(
    write_module: Callable[..., str],
) -> None:
    module = write_module("FACTORIES.register('only', lambda: 'made')")
    row = row_of(module)
    assert module not in sys.modules
    assert FACTORIES.access(row)() == "made"
    assert FACTORIES.access(row) is FACTORIES.access(row)


def test_of_several_factories_the_row_names_one_or_has_its_name(
    write_module: Callable[..., str],
) -> None:
    module = write_module(
        "FACTORIES.register('one', lambda: 'one')\nFACTORIES.register('two', lambda: 'two')\n"
    )
    assert FACTORIES.access(row_of(module, "mine", "two"))() == "two"
    assert FACTORIES.access(row_of(module, "one"))() == "one"
    check_refused(row_of(module), "factory", "registers 'one', 'two'; name one with factory")
    check_refused(
        row_of(module, factory="three"), "factory", "does not register 'three', only 'one', 'two'"
    )


def test_a_package_registers_what_its_modules_register(write_module: Callable[..., str]) -> None:
    package = "package_of_makers"
    write_module(f"import {package}.inner", f"{package}.__init__")
    write_module("FACTORIES.register('inner', lambda: 'inner')", f"{package}.inner")
    assert FACTORIES.access(row_of(package))() == "inner"
    assert FACTORIES.access(row_of(f"{package}.inner"))() == "inner"


def test_a_package_is_not_mistaken_for_a_variant_below_it(write_module: Callable[..., str]) -> None:
    package = write_module('FACTORIES.register("one", lambda: "one")', "variants.__init__")
    package = package.removesuffix(".__init__")
    write_module('FACTORIES.register("two", lambda: "two")', f"{package}.below")
    assert FACTORIES.access(row_of(f"{package}.below"))() == "two"
    assert FACTORIES.access(row_of(package))() == "one"
    assert FACTORIES.access(row_of(package, factory="two"))() == "two"


def test_a_package_that_breaks_after_its_modules_registered_can_be_fixed(
    write_module: Callable[..., str], tmp_path: Path
) -> None:
    package = "package_that_breaks"
    write_module(f"import {package}.inner\nraise OSError('later')", f"{package}.__init__")
    write_module("FACTORIES.register('inner', lambda: 'inner')", f"{package}.inner")
    check_refused(row_of(package), "module", "later")
    (tmp_path / "modules" / package / "__init__.py").write_text("# mended, and no longer the same")
    assert FACTORIES.access(row_of(package))() == "inner"


def test_a_function_called_register_may_come_between(write_module: Callable[..., str]) -> None:
    module = write_module(
        "def register(name, factory):\n    FACTORIES.register(name, factory)\n"
        "register('wrapped', lambda: 'wrapped')\n"
    )
    assert FACTORIES.access(row_of(module))() == "wrapped"


BROKEN = {
    "nothing registered": ("", "factory", "registers nothing; name one"),
    "another missing": (
        "import a_package_that_is_not_there.part",
        "module",
        "needs 'a_package_that_is_not_there', which is not installed",
    ),
    "name missing": ("from os import a_name_that_is_not_there", "module", "cannot import name"),
    "own error": ("raise ValueError('out of order')", "module", "ValueError: out of order"),
    "own missing": ("raise ModuleNotFoundError('odd')", "module", "cannot be imported: odd"),
    "syntax": ("def (", "module", "SyntaxError"),
    "exit": ("import sys; sys.exit(3)", "module", "SystemExit: 3"),
    "deep": ("def f(): f()\nf()", "module", "RecursionError"),
    "twice": (
        "FACTORIES.register('a', lambda: 'x')\nFACTORIES.register('a', lambda: 'y')",
        "module",
        "registers 'a' twice",
    ),
    "half": ("FACTORIES.register('a', lambda: 'x')\nraise OSError('later')", "module", "later"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_module_is_reported_in_the_same_words_again_and_again(
    write_module: Callable[..., str], name: str
) -> None:
    text, key, message = BROKEN[name]
    row = row_of(write_module(text))
    check_refused(row, key, message)
    check_refused(row, key, message)


@pytest.mark.parametrize(
    "module", ["no_such_module", "no.such.module", "vibe_llms.providers.none", "json.none.none"]
)
def test_a_missing_module_is_reported(module: str) -> None:
    check_refused(row_of(module), "module", f"module '{module}' not found")


@pytest.mark.parametrize("module", [".relative", "two..dots", "with space", "os.path.join", "\0"])
def test_what_cannot_be_a_module_is_reported(module: str) -> None:
    check_refused(row_of(module), "module", "module")


def test_registering_the_same_factory_again_is_no_error() -> None:
    registry: Registry[Maker] = Registry("others")

    def produce() -> str:
        return "made"

    registry.register("one", produce)
    registry.register("one", produce)
    with pytest.raises(RegistrationError, match="'one' twice") as caught:
        registry.register("one", lambda: "other")
    assert caught.value.table == "others"


PARROTS = """
default-model = "grey-one/grey"

[providers.grey-one]
module = "parrot"
credential = "none"
default-model = "grey"

[providers.loud-one]
module = "parrot"
factory = "parrot"
credential = "none"
loud = true
repeat-count = 2
retries = 1
"""


@pytest.fixture
def parrots(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose configuration has two rows of a third party's provider."""
    home.mkdir()
    (home / "config.toml").write_text(PARROTS)
    monkeypatch.syspath_prepend(plugins[0])
    return home


async def test_a_third_party_provider_works_as_a_built_in_one(parrots: Path) -> None:
    events: list[Event] = []
    async with vibe_llms.open_session(event_handler=events.append) as session:
        conversation = await session.begin()
        turn = await conversation.converse("Polly?")
        assert (turn.text, turn.usage) == ("Polly?", Usage(1, output_tokens=1))
        await conversation.switch("loud-one:green")
        assert (await conversation.converse("Cracker?")).text == "CRACKER? CRACKER?"
        check_events(events)
        assert [model.name for model in await session.survey_models("loud-one")] == [
            "grey",
            "green",
        ]
        statuses = {status.name: status for status in session.survey_providers()}
        assert statuses["grey-one"].problem == statuses["loud-one"].problem == ""
        assert statuses["grey-one"].default_model == "grey"
        with pytest.raises(ModelNotFound, match="no parrot 'blue'"):
            await session.access_model("grey-one/blue")
    async with vibe_llms.open_session() as session:
        again = await session.resume(conversation.identity)
        assert (again.model.provider, again.model.name) == ("loud-one", "green")
        assert (await again.converse("Still?")).text == "STILL? STILL?"


def test_a_third_party_provider_works_synchronously_too(parrots: Path) -> None:
    with open_synchronously() as session:
        assert session.begin("loud-one/grey").converse("Hm").text == "HM HM"


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ("module = 'parrot'\nvolume = 3", "volume"),
        ("module = 'parrot'\nloud = 'very'", "loud"),
        ("module = 'parrot'\nretries = 'many'", "retries"),
        ("module = 'parrot'\napi-key-command = 'pass'", "api-key-command"),
        ("module = 'parrot'\ncredential = 'trust'", "credential"),
        ("module = 'parrot'\nfactory = 'macaw'", "factory"),
        ("module = 'macaw'", "module"),
    ],
)
async def test_a_wrong_key_in_a_row_is_named_when_the_row_is_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, row: str, key: str
) -> None:
    home.mkdir()
    (home / "config.toml").write_text(f"[providers.loud-one]\n{row}\n")
    monkeypatch.syspath_prepend(plugins[0])
    async with vibe_llms.open_session() as session:
        with pytest.raises(ConfigurationError) as caught:
            await session.access_model("loud-one/grey")
        problems = {status.name: status.problem for status in session.survey_providers()}
    assert caught.value.file == str(home / "config.toml")
    assert (caught.value.table, caught.value.key) == ("providers.loud-one", key)
    assert str(caught.value) == problems["loud-one"]
    assert problems["scripted"] == ""
