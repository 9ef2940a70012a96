"""The skills in the folders of the user: which are offered, why others are not, and their files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.archives import hand_over
from tests.skills.folders import write_skill
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import ConfigurationError, SkillUnavailable
from vibe_llms.skills import catalog
from vibe_llms.skills.catalog import SkillLibrary, produce_library


def problems(library: SkillLibrary) -> dict[str, str]:
    return {one.name: one.problem for one in library.survey().skills}


def names(library: SkillLibrary) -> list[str]:
    return [one.name for one in library.survey().skills if not one.problem]


def test_each_folder_is_a_skill(tmp_path: Path) -> None:
    write_skill(tmp_path, "b")
    write_skill(tmp_path, "a")
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text("About.")
    found = SkillLibrary([tmp_path]).survey()
    assert [(one.name, one.description, one.problem) for one in found.skills] == [
        ("a", "About a.", ""),
        ("b", "About b.", ""),
    ]
    assert found.problems == {}


def test_a_folder_may_be_a_skill_itself(tmp_path: Path) -> None:
    assert names(SkillLibrary([write_skill(tmp_path, "pdf")])) == ["pdf"]


def test_the_users_own_folder_may_be_missing_and_others_are_reported(tmp_path: Path) -> None:
    other = tmp_path / "other"
    found = SkillLibrary([other], own=tmp_path / "own").survey()
    assert found.skills == []
    assert found.problems == {str(other): "No such file or directory"}
    other.write_text("a file")
    assert SkillLibrary([other]).survey().problems == {str(other): "Not a directory"}


def test_the_first_skill_of_a_name_is_offered_and_the_other_listed(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    first = write_skill(own, "pdf")
    write_skill(shared, "pdf")
    write_skill(shared, "png")
    library = SkillLibrary([shared], own=own)
    found = library.survey()
    assert [(one.name, one.folder) for one in found.skills if not one.problem] == [
        ("pdf", str(first)),
        ("png", str(shared / "png")),
    ]
    assert problems(library)["pdf"] == f"the skill in {first} has the same name and comes first"
    # A broken one does not keep a good one from being offered.
    (first / "SKILL.md").write_text("broken")
    assert library.load("pdf").skill.folder == str(shared / "pdf")


def too_large(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "SKILL.md").write_bytes(b"---\nname: pdf\ndescription: a\n---\n" + b"x" * 10_000_000)


def outward_link(folder: Path, _: pytest.MonkeyPatch) -> None:
    secret = folder.parent.parent / "secret.md"
    secret.write_text("---\nname: pdf\ndescription: a\n---\nsecret")
    (folder / "SKILL.md").unlink()
    (folder / "SKILL.md").symlink_to(secret)


def no_file(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "SKILL.md").unlink()


def a_folder_as_file(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "SKILL.md").unlink()
    (folder / "SKILL.md").mkdir()


def a_pipe(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "SKILL.md").unlink()
    os.mkfifo(folder / "SKILL.md")


def writable_folder(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.chmod(0o777)


def writable_file(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "SKILL.md").chmod(0o666)


def writable_folder_around(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.parent.chmod(0o777)


def file_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand_over(folder / "SKILL.md", monkeypatch)


def folder_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand_over(folder, monkeypatch)


def folder_around_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand_over(folder.parent, monkeypatch)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (too_large, "it is larger than 256 KiB"),
        (outward_link, "it is a symbolic link or in one"),
        (no_file, "it has no SKILL.md"),
        (a_folder_as_file, "Is a directory"),
        (a_pipe, "it is a named pipe, not a regular file"),
        (writable_folder, "others may write to it (mode 777)"),
        (writable_file, "others may write to it (mode 666)"),
        (writable_folder_around, "others may write to it (mode 777)"),
        (file_of_another_user, "not to you"),
        (folder_of_another_user, "not to you"),
        (folder_around_of_another_user, "not to you"),
    ],
)
def test_a_spoiled_skill_is_listed_with_the_reason_and_not_offered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    words: str,
) -> None:
    folder = write_skill(tmp_path / "skills", "pdf")
    library = SkillLibrary([tmp_path / "skills"])
    assert names(library) == ["pdf"]
    spoil(folder, monkeypatch)
    assert words in problems(library)["pdf"]
    with pytest.raises(SkillUnavailable, match="the skill 'pdf' cannot be used"):
        library.load("pdf")
    with pytest.raises(SkillUnavailable, match="the skill 'pdf' cannot be used"):
        library.read_file("pdf", "SKILL.md")


def test_a_folder_of_others_is_a_problem_of_its_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "others may write" in SkillLibrary([tmp_path]).survey().problems[str(tmp_path)]


def test_a_linked_folder_is_trusted_by_its_real_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skills, real = tmp_path / "skills", write_skill(tmp_path / "dotfiles", "pdf")
    skills.mkdir()
    (skills / "pdf").symlink_to(real)
    library = SkillLibrary([skills])
    assert library.load("pdf").body == "Do pdf."
    hand_over(real, monkeypatch)
    assert "not to you" in problems(library)["pdf"]


def test_a_link_that_leads_nowhere_is_listed(tmp_path: Path) -> None:
    (tmp_path / "pdf").symlink_to(tmp_path / "gone")
    assert problems(SkillLibrary([tmp_path])) == {"pdf": "No such file or directory"}


def test_what_changes_on_disk_counts_at_once(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "pdf")
    library = SkillLibrary([tmp_path])
    assert library.load("pdf").body == "Do pdf."
    (folder / "SKILL.md").write_text("---\nname: pdf\ndescription: New words.\n---\nDo it anew.")
    assert library.survey().skills[0].description == "New words."
    assert library.load("pdf").body == "Do it anew."
    write_skill(tmp_path, "png")
    assert names(library) == ["pdf", "png"]
    (folder / "SKILL.md").unlink()
    assert names(library) == ["png"]


def test_an_unchanged_skill_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        write_skill(tmp_path, f"skill-{number}")
    library = SkillLibrary([tmp_path])
    before = library.survey()
    read: list[str] = []
    inner = catalog._read

    def watch(folder: str) -> Any:
        read.append(folder)
        return inner(folder)

    monkeypatch.setattr(catalog, "_read", watch)
    assert library.survey() == before
    assert read == []
    (tmp_path / "skill-7" / "SKILL.md").write_text("broken")
    library.survey()
    assert read == [str(tmp_path / "skill-7")]


def test_threads_may_look_at_the_same_time(tmp_path: Path) -> None:
    for number in range(50):
        write_skill(tmp_path, f"skill-{number}")
    library = SkillLibrary([tmp_path])
    failures: list[Exception] = []

    def look() -> None:
        try:
            for _ in range(20):
                assert len(names(library)) == 50
        except Exception as error:  # noqa: BLE001  (reported by the test)
            failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failures == []


def test_only_so_many_folders_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_MOST_SKILLS", 2)
    for name in "abc":
        write_skill(tmp_path, name)
    found = SkillLibrary([tmp_path]).survey()
    assert [one.name for one in found.skills] == ["a", "b"]
    assert found.problems == {str(tmp_path): "only the first 2 of its folders are looked at"}


def test_files_are_listed_with_their_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_skill(tmp_path, "pdf")
    (folder / "references").mkdir()
    (folder / "references" / "fields.md").write_text("Fields.")
    (folder / "run.py").write_text("print()")
    (folder / ".env").write_text("KEY=1")
    (folder / "out.md").symlink_to(tmp_path.parent)
    loaded = SkillLibrary([tmp_path]).load("pdf")
    assert [(one.path, one.size) for one in loaded.files] == [
        ("run.py", 7),
        ("references/fields.md", 7),
    ]
    assert not loaded.cut
    monkeypatch.setattr(catalog, "_MOST_FILES", 1)
    loaded = SkillLibrary([tmp_path]).load("pdf")
    assert ([one.path for one in loaded.files], loaded.cut) == (["run.py"], True)


@pytest.mark.parametrize("path", ["references/fields.md", "./references//fields.md", "x/../run.py"])
def test_a_file_is_read(tmp_path: Path, path: str) -> None:
    folder = write_skill(tmp_path, "pdf")
    (folder / "references").mkdir()
    for name in ("references/fields.md", "run.py"):
        (folder / name).write_bytes("\ufeffGrüße".encode())
    assert SkillLibrary([tmp_path]).read_file("pdf", path) == "Grüße"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../secret", "without '..'"),
        ("references/../../secret", "without '..'"),
        ("..", "without '..'"),
        ("/etc/passwd", "is not allowed"),
        ("//etc/passwd", "is not allowed"),
        (".", "is not allowed"),
        (".env", "hidden names"),
        ("references/.env", "hidden names"),
        ("a\0b", "is not allowed"),
        ("link.md", "it is a symbolic link or in one"),
        ("linked/secret", "it is a symbolic link or in one"),
        ("picture.png", "is not a text file"),
        ("zeros.bin", "is not a text file"),
        ("references", "has no file 'references'; its files: "),
        ("gone.md", "its files: large.md, open.md, picture.png, zeros.bin"),
        ("\ud800", "has no file"),
        ("a" * 300, "File name too long"),
        ("large.md", "it is larger than 1 MiB"),
        ("open.md", "others may write to it"),
        ("open/a.md", "others may write to it"),
        ("open/inner/a.md", "others may write to it"),
        ("~/.ssh/id_rsa", "hidden names"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path: Path, path: str, words: str) -> None:
    folder = write_skill(tmp_path / "skills", "pdf")
    (tmp_path / "skills" / "secret").write_text("secret")
    for name in ("references", "open"):
        (folder / name).mkdir()
    (folder / ".env").write_text("KEY=1")
    (folder / "link.md").symlink_to(tmp_path / "skills" / "secret")
    (folder / "linked").symlink_to(tmp_path / "skills")
    (folder / "picture.png").write_bytes(b"\x89PNG\xff")
    (folder / "zeros.bin").write_bytes(b"a\0b")
    (folder / "large.md").write_bytes(b"x" * (1024 * 1024 + 1))
    (folder / "open.md").write_text("open")
    (folder / "open.md").chmod(0o666)
    (folder / "open" / "a.md").write_text("a")
    (folder / "open" / "inner").mkdir()
    (folder / "open" / "inner" / "a.md").write_text("a")
    (folder / "open").chmod(0o777)
    with pytest.raises(SkillUnavailable) as refused:
        SkillLibrary([tmp_path / "skills"]).read_file("pdf", path)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value).replace("secret'", "")


@pytest.mark.parametrize("name", ["gone", "../pdf", "/etc", "", "*", "PDF"])
def test_another_name_is_no_skill(tmp_path: Path, name: str) -> None:
    write_skill(tmp_path, "pdf")
    with pytest.raises(SkillUnavailable, match="not found"):
        SkillLibrary([tmp_path / "pdf", tmp_path]).load(name)


def test_folders_are_relative_to_the_configuration(home: Path, tmp_path: Path) -> None:
    write_skill(home / "skills", "own")
    write_skill(home / "team", "team")
    write_skill(tmp_path / "mine", "mine")
    overrides = {"skills": {"folders": ["team", "~/mine", str(home / "team")]}}
    library = produce_library(load_configuration(Places.under(home), overrides=overrides))
    assert names(library) == ["own", "team", "mine"]


def test_the_settings_are_checked(home: Path) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'folders'"):
        load_configuration(Places.under(home), overrides={"skills": {"folder": ["a"]}})
