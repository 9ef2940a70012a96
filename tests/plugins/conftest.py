"""What the tests of plugins share: an index, the wheel of the example, and rows that pin."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.index import FakeIndex
from vibe_llms.providers import registry

EXAMPLE = Path(__file__).resolve().parents[2] / "documentation" / "examples" / "shout"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the example, built as its writer would build it, without a network."""
    folder = tmp_path_factory.mktemp("wheels")
    command = (sys.executable, "-I", "-m", "pip", "wheel", "--isolated", "--quiet")
    offline = ("--no-build-isolation", "--no-deps", "--no-index", "--no-cache-dir")
    subprocess.run([*command, *offline, "-w", str(folder), str(EXAMPLE)], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture
def index() -> Iterator[FakeIndex]:
    """An index with nothing in it."""
    with FakeIndex() as server:
        yield server


@pytest.fixture
def clean_imports(tmp_path: Path) -> Iterator[None]:
    """What is imported from plugins' folders is forgotten afterwards, and nothing else."""
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
        if any(place.startswith(str(tmp_path)) for place in places):
            del sys.modules[name]
            registry._REGISTRY._factories.pop(name, None)
    importlib.invalidate_caches()


@pytest.fixture(params=["uv", "pip"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the two installers; pip is what is taken where uv is not on the path."""
    if request.param == "pip":
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return str(request.param)
