"""What git still holds of forgotten words is found, named and removed; what else it has stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.memory.repositories import ask_git, list_committed, list_files
from vibe_llms.base.exceptions import MemoryInvalid, VersioningFailed
from vibe_llms.memory import purging
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Role, Scope
from vibe_llms.memory.purging import describe_held, find_held, find_surrounding, purge
from vibe_llms.memory.repository import Repository

ADA, BEN = Scope.of_user("ada"), Scope.of_user("ben")


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path / "memory", durable=False)


@pytest.fixture
def repository(memory: Memory) -> Repository:
    return Repository(memory.folder)


def everything_in_git(folder: Path) -> str:
    """All that a repository has, reachable or not, and what lies next to its objects."""
    listed = ask_git(folder, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    texts = [ask_git(folder, "cat-file", "-p", name) for name in listed.split()]
    others = [
        path.read_bytes().decode("utf-8", "replace")
        for path in (folder / ".git").rglob("*")
        if path.is_file() and "objects" not in path.parts
    ]
    return "\n".join((*texts, *others))


async def remember_and_forget(memory: Memory, repository: Repository) -> None:
    entry = await memory.add("Ada lives in Lisbon.", scope=ADA)
    await memory.add("Ada keeps bees.", scope=ADA)
    repository.commit()
    await memory.revise(entry.identity, content="Ada lives in  LISBON, near the river.")
    await memory.add("I am in lisbon", role=Role.USER, scope=BEN)
    repository.commit()
    await memory.remove(entry.identity)
    await memory.add("Ben keeps goats.", scope=BEN)
    repository.commit()
    await memory.forget("Lisbon")


async def test_what_git_holds_is_named_and_removed(memory: Memory, repository: Repository) -> None:
    await remember_and_forget(memory, repository)
    held = await find_held(repository, "lisbon")
    names = ask_git(memory.folder, "log", "--format=%H").split()
    # The third one deleted what the second one had written, and so has it among the deleted.
    assert [one.commit for one in held] == names
    assert describe_held(held).startswith(f"3 commits ({names[0][:12]}, ")
    assert await purge(repository, "lisbon") == held
    assert "isbon" not in everything_in_git(memory.folder)
    assert await find_held(repository, "Lisbon") == []
    assert await purge(repository, "Lisbon") == []
    # What else there was is as it was, and the next commit goes on from there.
    assert list_committed(memory.folder) == list_files(memory.folder)
    assert len(ask_git(memory.folder, "log", "--format=%H").split()) == 4
    assert ask_git(memory.folder, "status", "--porcelain") == ""
    await memory.add("Cy keeps cats.", scope=BEN)
    assert repository.commit() == 1
    ask_git(memory.folder, "fsck", "--strict")


async def test_a_scope_of_another_is_left(memory: Memory, repository: Repository) -> None:
    await remember_and_forget(memory, repository)
    held = await find_held(repository, "lisbon", scopes=[BEN])
    assert len(held) == 1
    await purge(repository, "lisbon", scopes=[BEN])
    left = everything_in_git(memory.folder)
    assert "I am in lisbon" not in left
    assert "Ada lives in Lisbon" in left
    assert await find_held(repository, "lisbon", scopes=[BEN]) == []
    assert len(await find_held(repository, "lisbon")) == 3


async def test_what_commits_of_its_owner_say_is_removed(
    memory: Memory, repository: Repository
) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    facts = memory.folder / "entries" / "global" / "facts"
    (facts / "Lisbon trip.md").write_text("to the sea")
    (facts / "list.txt").write_text("tickets to lisbon")
    repository.commit()
    folder = memory.folder
    author = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    ask_git(folder, *author, "commit", "-q", "--allow-empty", "-m", "About Lisbon\n\nand more")
    ask_git(folder, *author, "tag", "-a", "-m", "the Lisbon one", "old")
    ask_git(folder, "checkout", "-q", "-b", "side", "HEAD~1")
    (facts / "side.md").write_text("a side of Lisbon")
    ask_git(folder, "add", "-A")
    ask_git(folder, *author, "commit", "-q", "-m", "side")
    ask_git(folder, "checkout", "-q", "main")
    ask_git(folder, *author, "merge", "-q", "--no-edit", "side")
    (facts / "stashed.md").write_text("Lisbon again")
    ask_git(folder, "add", "-A")
    ask_git(folder, *author, "stash")
    assert len(await find_held(repository, "lisbon")) >= 4
    await memory.forget("lisbon")
    await purge(repository, "lisbon")
    assert "isbon" not in everything_in_git(folder)
    assert "(forgotten)" in ask_git(folder, "log", "--format=%B")
    assert "bees" in str(list_committed(folder))
    ask_git(folder, "fsck", "--strict")


async def test_what_no_commit_names_is_found_and_removed(
    memory: Memory, repository: Repository, tmp_path: Path
) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    (tmp_path / "loose").write_text("left of Lisbon")
    ask_git(memory.folder, "hash-object", "-w", str(tmp_path / "loose"))
    (held,) = await find_held(repository, "lisbon")
    assert held.commit == ""
    assert describe_held([held]) == "unreachable objects"
    await purge(repository, "lisbon")
    assert "Lisbon" not in everything_in_git(memory.folder)


async def test_words_that_every_file_has_are_no_trace(
    memory: Memory, repository: Repository
) -> None:
    entry = await memory.add("Ada keeps bees.")
    repository.commit()
    for word in (
        "memory",
        "role",
        "created_at",
        "facts",
        entry.identity,
        "vibe-llms",
        "entries",
        "new",
    ):
        assert await find_held(repository, word) == [], word
    with pytest.raises(MemoryInvalid):
        await find_held(repository, " ")


async def test_no_repository_holds_nothing(memory: Memory, repository: Repository) -> None:
    await memory.add("Ada lives in Lisbon.")
    assert await find_held(repository, "lisbon") == []
    assert await purge(repository, "lisbon") == []
    ask_git(memory.folder, "init", "-q")
    assert await find_held(repository, "lisbon") == []


async def test_the_folder_around_is_named_where_it_has_a_repository(tmp_path: Path) -> None:
    (tmp_path / "a" / "memory").mkdir(parents=True)
    assert find_surrounding(tmp_path / "a" / "memory") is None
    ask_git(tmp_path, "init", "-q")
    assert find_surrounding(tmp_path / "a" / "memory") == tmp_path


@pytest.mark.parametrize(
    "seed",
    [
        lambda patch: patch.setattr(purging, "collect", lambda *_: None),
        lambda patch: patch.setattr(purging._Search, "_rewrite", lambda *_: None),
    ],
)
async def test_a_purge_that_leaves_something_is_detected(
    memory: Memory,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    seed: Callable[[pytest.MonkeyPatch], None],
) -> None:
    await remember_and_forget(memory, repository)
    with monkeypatch.context() as patch:
        seed(patch)
        with pytest.raises(VersioningFailed, match="git still contains the text in"):
            await purge(repository, "lisbon")
    assert "isbon" in everything_in_git(memory.folder)
