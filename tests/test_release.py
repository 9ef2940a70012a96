"""What a release contains, and what the script that makes it refuses."""

from __future__ import annotations

import hashlib
import re
import runpy
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
import yaml

import vibe_llms

ROOT = Path(__file__).resolve().parents[1]
RELEASE = runpy.run_path(str(ROOT / ".auxiliary" / "scripts" / "release"))


def test_the_wheel_and_the_source_distribution_hold_what_they_should(tmp_path: Path) -> None:
    wheel, sdist = RELEASE["build"](tmp_path, "--no-build-isolation", "--offline")
    assert RELEASE["survey_wheel"](wheel) == []
    assert RELEASE["survey_sdist"](sdist, RELEASE["survey_repository"]()) == []
    with zipfile.ZipFile(wheel) as opened:
        shipped = {*opened.namelist()}
    for folder, home in (
        (ROOT / "sources", ""),
        (ROOT / "data", "vibe_llms/data/"),
        (ROOT / "documentation" / "examples", "vibe_llms/data/examples/"),
    ):
        files = [path for path in folder.rglob("*") if path.is_file()]
        names = {f"{home}{path.relative_to(folder)}" for path in files}
        assert {name for name in names if not re.search(r"__pycache__|egg-info", name)} <= shipped


@pytest.mark.parametrize(
    "name",
    [
        "tests/test_wheel.py",
        "vibe_llms/__pycache__/opening.cpython-311.pyc",
        "vibe_llms/notes.txt",
        "vibe_llms/page/node_modules/axe.js",
        "vibe_llms/data/examples/__pycache__/sums.pyc",
        "vibe_llms/data/keys.json",
    ],
)
def test_a_file_that_does_not_belong_into_a_wheel_is_named(name: str, tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr(name, "")
        opened.writestr("vibe_llms/py.typed", "")
    problems = RELEASE["survey_wheel"](wheel)
    assert any(one.startswith(f"x.whl: {name} should not be there") for one in problems)
    assert not any("py.typed" in one or "py\\.typed" in one for one in problems)
    assert any(one.startswith("x.whl: nothing matches vibe_llms/page/index") for one in problems)


def test_what_a_source_distribution_lacks_or_should_not_have_is_named(tmp_path: Path) -> None:
    sdist = tmp_path / "x-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as opened:
        for name in ("x-1/LICENSE", "x-1/.auxiliary/caches/mypy/cache.db"):
            opened.addfile(tarfile.TarInfo(name), BytesIO())
    assert [one.partition(";")[0] for one in RELEASE["survey_sdist"](sdist, ["a", "LICENSE"])] == [
        "x-1.tar.gz: .auxiliary/caches/mypy/cache.db should not be there",
        "x-1.tar.gz: a is missing",
    ]


def test_hashes_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"a")
    (tmp_path / ".gitignore").write_bytes(b"*")
    for _ in range(2):
        RELEASE["write_hashes"](tmp_path)
    expected = f"{hashlib.sha256(b'a').hexdigest()}  a.whl\n"
    assert (tmp_path / "SHA256SUMS").read_text() == expected


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    changelog = (ROOT / "documentation" / "changelog.md").read_text("utf-8")
    released = re.findall(r"^## (\S+) - (\S+)$", changelog, re.MULTILINE)
    assert re.search(r"^## Unreleased$", changelog, re.MULTILINE)
    assert released[0] == (citation["version"], str(citation["date-released"]))
    assert released[0][0] == vibe_llms.__version__


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").iterdir()), ids=lambda path: path.name
)
def test_a_form_for_issues_can_be_filled_in(path: Path) -> None:
    form = yaml.safe_load(path.read_text("utf-8"))
    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": True}
        return
    assert {*form} == {"name", "description", "labels", "body"}
    kinds = {"markdown": {"value"}, "textarea": {"label"}, "input": {"label"}}
    for part in form["body"]:
        assert kinds[part["type"]] <= {*part["attributes"]}
    fields = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(fields) == len({*fields})
    if path.name == "bug.yml":
        assert "vibe-llms doctor" in path.read_text("utf-8")
