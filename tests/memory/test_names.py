"""What names of files say: entries, copies by other programs, and files written by hand."""

from __future__ import annotations

import pytest

from vibe_llms.memory.names import is_entry_name, name_copy, name_identity, name_original

IDENTITY = "01a21a21-a946-797f-b0c3-247731b8c47d"
OURS = f"20261126T231223Z__{IDENTITY}"
COPIES = (
    f"{OURS}.sync-conflict-20261126-101500-ABCDEFG.md",
    f"{OURS} (1).md",
    f"{OURS} (12).md",
    f"{OURS} (Ada's conflicted copy 2026-11-26).md",
    f"{OURS} (conflicted copy 2026-11-26 101500).md",
    f"{OURS}-LAPTOP.md",
    f"{OURS} 2.md",
    f"{OURS} copy.md",
    f"{OURS}_conflict-20261126.md",
    f"{OURS}.md~",
    f"{OURS}~.md",
)


def test_our_own_file_is_no_copy() -> None:
    assert name_copy(f"{OURS}.md", IDENTITY) == ""
    assert name_copy(f"{OURS}.md", "another-identity") == ""


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_by_another_program_has_an_identity_of_its_own(name: str) -> None:
    assert is_entry_name(name)
    identity = name_copy(name, IDENTITY)
    assert identity.startswith(f"{IDENTITY}-")
    # Once it is written with that identity, it is an entry of its own.
    assert name_copy(name, identity) == ""


def test_copies_have_different_identities() -> None:
    assert len({name_copy(name, IDENTITY) for name in COPIES}) == len(COPIES)


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("Tea.md", "Tea.md"),
        ("Tea (1).md", "Tea.md"),
        ("Tea (Ada's conflicted copy 2026-11-26).md", "Tea.md"),
        ("Tea.sync-conflict-20261126-101500-ABC.md", "Tea.md"),
        ("Tea.md~", "Tea.md"),
        ("Tea (and milk).md", "Tea (and milk).md"),
        ("Apollo (2026).md", "Apollo (2026).md"),
    ],
)
def test_files_written_by_hand_are_copied_too(name: str, original: str) -> None:
    assert name_original(name) == original
    assert bool(name_copy(name, "tea")) == (name != original)


def test_the_name_of_a_file_is_its_identity() -> None:
    assert name_identity("boats.md") == "boats"
    names = ("My Boats.md", "my boats.md", "My-Boats.md", "Tea.md", "a.md", "\u8336.md", "My/Boats")
    found = [name_identity(name) for name in names]
    assert len(set(found)) == len(names)
    assert found[0].startswith("my-boats-")
    assert all(4 <= len(one) <= 48 and one == one.lower() for one in found)


@pytest.mark.parametrize("name", ["tea.txt", "tea.md.swp", "~", "tea"])
def test_other_files_are_no_entries(name: str) -> None:
    assert not is_entry_name(name)
    assert name_original(name) == name
