"""The site has every page and every public name, and a broken link on it is found."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
import yaml

import vibe_llms.base.exceptions
import vibe_llms.documents
import vibe_llms.importing
import vibe_llms.memory
import vibe_llms.providers
import vibe_llms.runs
import vibe_llms.testing
from tests.documentation.pages import DOCUMENTATION, PAGES, ROOT

API = DOCUMENTATION / "reference" / "api"
#: The packages whose `__all__` is public.
PUBLIC = [
    vibe_llms,
    vibe_llms.documents,
    vibe_llms.importing,
    vibe_llms.memory,
    vibe_llms.providers,
    vibe_llms.runs,
    vibe_llms.testing,
]


def read_nav(items: list[Any]) -> Iterator[str]:
    for item in items:
        match item:
            case str():
                yield item
            case dict():
                for value in item.values():
                    yield from read_nav([value] if isinstance(value, str) else value)


def test_the_navigation_has_every_page_once() -> None:
    settings = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))
    listed = sorted(read_nav(settings["project"]["nav"]))
    written = sorted(
        name.removeprefix("documentation/")
        for name in PAGES
        if name != "README.md" and not re.search(r"/adr/\d", name)
    )
    assert listed == written


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    shown: list[object] = []
    for path in API.glob("*.md"):
        for dotted in re.findall(r"^::: (\S+)$", path.read_text("utf-8"), re.MULTILINE):
            home, _, name = dotted.rpartition(".")
            shown.append(getattr(importlib.import_module(home), name))
    errors = vibe_llms.base.exceptions
    public: list[object] = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.VibeLlmsError)
    ]
    for package in PUBLIC:
        names = [name for name in package.__all__ if name != "__version__"]
        public += [getattr(package, name) for name in names]
    assert [value for value in public if not any(value is one for one in shown)] == []


def test_the_service_that_hosts_the_site_builds_it_with_what_is_here() -> None:
    settings = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text("utf-8"))
    install, build, *_, move = settings["build"]["commands"]
    assert install == "python -m pip install '.[dev]'"
    script = load_script()
    assert ROOT / build.removeprefix("python ") == Path(script.__file__)
    assert move == f"mv {script.SITE.relative_to(ROOT)} _readthedocs/html"


def load_script() -> Any:
    """The script that builds the site, as a module."""
    loader = SourceFileLoader("site_script", str(ROOT / ".auxiliary" / "scripts" / "site"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="../no/">', "../no/ leads nowhere"),
        ('<a href="../b/#no">', "../b/#no: there is no such heading"),
        ('<img src="../no.png">', "../no.png leads nowhere"),
        (
            '<script src="https://example.org/x.js"></script>',
            "loads https://example.org/x.js from another server",
        ),
        ('<a href="../b/#here">', ""),
        ('<a href="https://example.org/no">', ""),
    ],
)
def test_what_is_wrong_on_the_site_is_found(body: str, problem: str, tmp_path: Path) -> None:
    for name, text in (("a", body), ("b", '<h2 id="here">')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(text)
    found = [f"a/index.html: {problem}"] if problem else []
    assert load_script().survey_problems(tmp_path) == found


def test_links_to_files_of_the_repository_become_text() -> None:
    text = '<a href="../../sources/vibe_llms/opening.py">opening</a> <a href="../wire/">wire</a>'
    folder = DOCUMENTATION / "explanation"
    assert load_script().unlink_files(text, folder) == 'opening <a href="../wire/">wire</a>'


def test_constructors_of_structs_are_in_the_reference(tmp_path: Path) -> None:
    (tmp_path / "ducks.py").write_text(
        "from msgspec import Struct, field\n"
        "class Bird(Struct, kw_only=True):\n"
        "    name: str\n"
        "    eggs: list[str] = field(default_factory=list)\n"
        "class Duck(Bird):\n    loud: bool = True\n    def quack(self) -> None: ...\n"
    )
    code = (
        "import griffe, structs\n"
        "extensions = griffe.load_extensions(structs.StructExtension)\n"
        "found = griffe.load('ducks', search_paths=['.'], extensions=extensions)\n"
        "print(*[str(one) for one in found['Duck'].parameters], sep='\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / ".auxiliary" / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "[positional or keyword] self: None = None",
        "[positional or keyword] loud: bool = True",
        "[keyword-only] name: str = None",
        "[keyword-only] eggs: list[str] = ...",
    ], done.stderr


TABS = """\
**At the terminal**

```console
$ echo **In Python**
```

**In Python**

```python title="a.py"
**Over HTTP**

```

After.

**In Python**

```python
```
"""


def test_blocks_with_labels_become_tabs() -> None:
    sys.path.insert(0, str(ROOT / ".auxiliary" / "site"))
    try:
        tabs = importlib.import_module("tabbed_blocks")
    finally:
        sys.path.pop(0)
    lines = tabs.TabsPreprocessor().run(TABS.splitlines())
    assert lines == [
        '=== "At the terminal"',
        "",
        "",
        "    ```console",
        "    $ echo **In Python**",
        "    ```",
        "",
        '=== "In Python"',
        "",
        "",
        '    ```python title="a.py"',
        "    **Over HTTP**",
        "",
        "    ```",
        "",
        "After.",
        "",
        # One label alone is a line in bold.
        "**In Python**",
        "",
        "```python",
        "```",
    ]
