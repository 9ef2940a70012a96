"""Forgotten means gone: of two hundred phrases in every kind of place nothing is left."""

from __future__ import annotations

import os
import random
import shutil
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedders import WordsEmbedder
from tests.memory.repositories import ask_git
from vibe_llms.base.exceptions import MemoryInvalid
from vibe_llms.base.folders import TEMPORARY
from vibe_llms.memory import files
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import LARGEST_BYTES, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.forgetting import survey_offspring, survey_traces
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.purging import find_held, purge
from vibe_llms.memory.versions import Versions

ADA = Scope.of_user("ada")


def make_phrase(chance: random.Random) -> str:
    return " ".join(
        "".join(chance.choices(string.ascii_lowercase, k=12)) for _ in range(chance.randint(1, 2))
    )


async def plant(memory: Memory, phrase: str, number: int) -> None:
    """A phrase in one of the places where one may occur."""
    spoken = phrase.upper() if number % 2 else phrase.replace(" ", "  \n ")
    members: dict[str, Any] = {}
    match number % 12:
        case 0:
            members = {"content": f"Ada said {spoken} again"}
        case 1:
            members = {"content": f"turn {number}", "topics": ("home", spoken)}
        case 2:
            members = {"content": f"about {spoken}", "role": Role.USER, "conversation": "c1"}
        case 3:
            members = {"content": f"{spoken}, to be sure", "role": Role.ASSISTANT}
        case 4:
            members = {"content": f"all of {spoken}", "role": Role.SUMMARY, "category": "L1"}
        case 5:
            members = {"content": f"the rest {number}", "speaker": spoken}
        case 6:
            members = {"content": f"kept {number}", "further": {"mood": {"deep": [spoken]}}}
        case 7:
            members = {"content": f"kind {number}", "category": spoken}
        case _:
            members = {"content": f"something else {number}"}
    entry = await memory.add(scope=ADA, **members)
    facts = memory.folder / "entries" / "user-ada" / "facts"
    match number % 12:
        case 0 | 2:
            await memory.remove(entry.identity, replaced_by="other")
        case 8:
            path = next(memory.folder.rglob(f"*{entry.identity}.md"))
            path.write_text(path.read_text().replace("\n---\n", f"\n# {phrase}\n---\n", 1))
        case 9:
            (facts / f"broken-{number}.md").write_text(f"---\nno entry: [\n{phrase}")
        case 11:
            (facts / f"{phrase.replace(' ', '_')}.txt").write_text(phrase)
            await memory.revise(entry.identity, content=f"now it is {phrase}")
            await memory.revise(entry.identity, content="now it is gone")


def find_traces(folder: Path, phrase: str) -> list[str]:
    """Where a phrase or a word of it occurs, in names and bytes, but for what git has packed."""
    words = [word.encode() for word in phrase.lower().split()]
    return [
        str(path)
        for path in folder.rglob("*")
        if any(
            word in path.name.lower().encode()
            or (path.is_file() and word in path.read_bytes().lower())
            for word in words
        )
    ]


def find_in_git(folder: Path) -> str:
    """All that the repository can still give, in one text."""
    listed = ask_git(folder, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    names = listed.split()
    return "\n".join(ask_git(folder, "cat-file", "-p", name) for name in names).lower()


@pytest.mark.storm
async def test_of_what_was_forgotten_nothing_is_left(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    chance = random.Random(6)
    versions = Versions(tmp_path, quiet_seconds=1000)
    memory = Memory(tmp_path, durable=False, versions=versions)
    phrases = [make_phrase(chance) for _ in range(rounds(24, 200))]
    for number, phrase in enumerate(phrases):
        await plant(memory, phrase, number)
        if number % 5 == 0:
            await versions.commit()
    await memory.close()
    # The index of another process has read it all and is stored.
    other = Memory(tmp_path, durable=False)
    await other.reindex()
    await other.close()
    facts = tmp_path / "entries" / "user-ada" / "facts"
    for number in range(10, len(phrases), 12):
        # As a crash leaves it.
        (facts / f"{TEMPORARY}half-{number}").write_text(phrases[number])
    planted = [phrase for phrase in phrases if find_traces(tmp_path, phrase)]
    assert len(planted) == len(phrases)
    for phrase in phrases:
        await memory.forget(phrase)
    left = [trace for phrase in phrases for trace in find_traces(tmp_path, phrase)]
    assert [trace for trace in left if not trace.startswith(str(tmp_path / ".git"))] == []
    # Git is named for each that it has, and lets go of each.
    await memory.close()
    kept = find_in_git(tmp_path)
    for phrase in phrases:
        in_git = all(word in kept for word in phrase.split())
        assert bool(await find_held(versions.repository, phrase)) == in_git, phrase
        await purge(versions.repository, phrase)
    kept = find_in_git(tmp_path)
    assert [phrase for phrase in phrases if any(word in kept for word in phrase.split())] == []
    assert [phrase for phrase in phrases if find_traces(tmp_path, phrase)] == []
    ask_git(tmp_path, "fsck", "--strict")
    # Everything else is still there.
    assert await memory.survey(ADA)


def list_entries(files: MemoryFiles, scope: Scope, *, prefix: str = "") -> list[str]:
    """Only what has the name of an entry."""
    every = [*files.scan(scope), *(f"deleted/{place}" for place in files.scan(scope, deleted=True))]
    return [place for place in every if os.path.basename(place).startswith(prefix)]


@pytest.mark.parametrize(
    "seed",
    [
        lambda patch: patch.setattr(ScopeIndex, "discard", lambda _: None),
        lambda patch: patch.setattr(MemoryFiles, "survey_files", list_entries),
        lambda patch: patch.setattr(
            "vibe_llms.memory.text_search.examine", lambda data, scope, place: (None, ())
        ),
    ],
)
async def test_a_trace_that_is_left_is_detected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: Callable[[pytest.MonkeyPatch], None],
) -> None:
    memory = Memory(tmp_path, durable=False)
    await memory.add("Ada said xyzzyplugh once", scope=ADA)
    facts = tmp_path / "entries" / "user-ada" / "facts"
    await memory.reindex()
    (facts / f"{TEMPORARY}half").write_text("xyzzyplugh")
    seed(monkeypatch)
    await memory.forget("xyzzyplugh")
    assert find_traces(tmp_path, "xyzzyplugh")


async def test_another_process_stores_no_vector_of_what_was_forgotten(tmp_path: Path) -> None:
    memory = Memory(tmp_path, embedder=WordsEmbedder())
    other = Memory(tmp_path, embedder=WordsEmbedder())
    for number in range(3):
        await memory.add(f"Thing {number} stands there.")
    await memory.add("Ada likes zithers.")
    assert len(await other.search("zithers")) == 1
    await memory.forget("zithers")
    await memory.close()
    assert await other.search("zithers") == []
    await other.close()
    (path,) = tmp_path.rglob("index/**/vectors")
    stored = path.read_bytes()
    vectors = [
        WordsEmbedder().embed_one(text).tobytes()
        for text in ("Thing 1 stands there.", "Ada likes zithers.")
    ]
    assert [vector in stored for vector in vectors] == [True, False]


async def test_what_lies_next_to_the_scopes_is_named_and_not_touched(tmp_path: Path) -> None:
    reported: list[str] = []
    memory = Memory(tmp_path, durable=False, notify=reported.append)
    await memory.add("The code is xyzzyq", scope=ADA)
    for place in ("notes.txt", "entries/loose.md", "entries/user-ada.bak/facts/old.md"):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("The code is XYZZYQ")
    (tmp_path / "entries" / "other.md").write_text("nothing")
    assert len(await memory.forget("xyzzyq")) == 1
    assert [words.partition(" also contains the text")[0] for words in reported] == [
        str(tmp_path / place)
        for place in ("entries/loose.md", "entries/user-ada.bak/facts/old.md", "notes.txt")
    ]
    assert (tmp_path / "notes.txt").exists()
    assert await memory.forget("xyzzyq") == []
    await memory.close()


async def test_the_index_of_a_scope_that_was_removed_by_hand_goes_too(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False)
    await memory.add("The code is xyzzyq", scope=ADA)
    await memory.add("Nothing more", scope=Scope.of_user("ben"))
    await memory.close()
    shutil.rmtree(tmp_path / "entries" / "user-ada")
    assert find_traces(tmp_path, "xyzzyq")
    memory = Memory(tmp_path, durable=False)
    assert await memory.forget("xyzzyq") == []
    assert find_traces(tmp_path, "xyzzyq") == []
    await memory.close()
    assert any((tmp_path / "index" / "user-ben").iterdir())


async def test_a_long_foreign_file_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path, durable=False)
    await memory.add("Nothing", scope=ADA)
    facts = tmp_path / "entries" / "user-ada" / "facts"
    size = 2 * LARGEST_BYTES
    (facts / "film.mp4").write_bytes(b"." * size)
    # It crosses the end of a part, wherever that is.
    (facts / "film.txt").write_bytes((b"The code is\n XYZZYQ  " * (size // 21 + 1))[:size])
    (facts / "end.txt").write_bytes(b" " * size + b"The code is XYZZYQ")
    (facts / "the code is xyzzyq.bin").write_bytes(b"." * size)

    def refuse(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(files, "read_within", refuse)
    (entry_path,) = facts.glob("*.md")
    entry_path.unlink()
    assert len(await memory.forget("code is xyzzyq")) == 3
    assert [path.name for path in facts.iterdir()] == ["film.mp4"]
    await memory.close()


async def test_the_preview_lists_what_forgetting_removes(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False)
    ben = Scope.of_user("ben")
    deleted = await memory.add("Ada kept bees.", scope=ADA)
    await memory.remove(deleted.identity)
    await memory.add("Ada keeps bees.", scope=ADA)
    await memory.add("Ben fears Bees.", scope=ben)
    await memory.add("Ben has a cat.", scope=ben)
    (tmp_path / "entries" / "user-ben" / "bees.txt").write_text("a note")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    found = await survey_traces(MemoryFiles(tmp_path), "bees")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert [one.deleted for one in found if one.entry.identity == deleted.identity] == [True]
    assert [one.place for one in found if not one.entry.identity] == ["bees.txt"]
    assert len(await survey_traces(MemoryFiles(tmp_path), "bees", scopes=[ben])) == 2
    gone = await memory.forget("bees")
    assert sorted(gone, key=str) == sorted((one.entry for one in found), key=str)
    assert not await survey_traces(MemoryFiles(tmp_path), "bees")
    with pytest.raises(MemoryInvalid, match="is empty"):
        await survey_traces(MemoryFiles(tmp_path), "  ")


async def test_facts_that_were_taken_from_a_turn_in_other_words_are_found(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False)
    ada, talk = Scope.of_user("ada"), Scope.of_conversation("c1")
    said = await memory.add(
        "My code is 4711!", role=Role.USER, scope=talk, conversation="c1", turn="t1"
    )
    holding = await memory.add("Ada's code is 4711.", scope=ada, conversation="c1", turn="t1")
    other_words = await memory.add("Ada has a code.", scope=ada, conversation="c1", turn="t1")
    await memory.add("Ada likes tea.", scope=ada, conversation="c1", turn="t2")
    await memory.add("Ben likes tea.", scope=ada, conversation="c2", turn="t1")
    await memory.add("It has no source.", scope=ada)
    deleted = await memory.add("Ada keeps it.", scope=ada, conversation="c1", turn="t1")
    await memory.remove(deleted.identity)
    assert await survey_offspring(memory, [said, holding]) == [other_words]
    assert await survey_offspring(memory, [holding, deleted]) == []
    gone = await memory.forget("4711")
    assert await survey_offspring(memory, gone) == [other_words]
    assert await memory.access(other_words.identity) == other_words
