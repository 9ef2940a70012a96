"""What programs import from `vibe_llms.memory`."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

from vibe_llms import memory


def test_the_public_names_are_what_checkers_see() -> None:
    assert len(set(memory.__all__)) == len(memory.__all__)
    assert set(memory.__all__) <= set(dir(memory))
    assert not hasattr(memory, "no_such_name")
    tree = ast.parse(Path(memory.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            seen[alias.asname or alias.name] = (node.module or "", alias.name)
    assert set(seen) == set(memory.__all__)
    for name, (home, there) in seen.items():
        assert getattr(memory, name) is getattr(importlib.import_module(home), there)


def test_importing_the_package_loads_none_of_its_modules() -> None:
    code = "import sys, vibe_llms.memory; print([n for n in sys.modules if 'vibe_llms.mem' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['vibe_llms.memory']"
