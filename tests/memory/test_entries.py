"""Entries as the text of their files, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vibe_llms.base.exceptions import MemoryDamaged, MemoryInvalid
from vibe_llms.memory import entries
from vibe_llms.memory.entries import (
    GLOBAL,
    LARGEST_BYTES,
    Entry,
    Role,
    Scope,
    check_entry,
    decode_entry,
    encode_entry,
)
from vibe_llms.messages.contents import repair_text

WHEN = datetime(2026, 5, 4, 10, 30, tzinfo=UTC)
TEXTS = st.text(st.characters(codec=None), max_size=80) | st.text(
    st.sampled_from("-\n\r #:'\"é\ud800\udc00😀a\x00\x85\u2028\ufeff"), max_size=40
)


def produce(content: Any = "Ada likes tea", **members: Any) -> Entry:
    given = {"identity": "abcd-1", "created": WHEN, **members}
    return msgspec.structs.replace(Entry(content=content, identity="", created=WHEN), **given)


def read(text: str | bytes) -> Entry:
    return decode_entry(text.encode() if isinstance(text, str) else text, GLOBAL, "x.md")


@settings(max_examples=100, deadline=None)
@given(TEXTS, TEXTS, st.lists(TEXTS, max_size=3), st.floats(0, 1))
@example("---\n---\n\n---", "---", ["---", "a\n---\nb", "no", "12:30"], 0.1)
@example("a\r\nb\r\n\r\nc\rd", "\r\n", ["\ud83d\ude00", "\ud83d"], 1.0)
def test_any_text_is_read_back_as_it_was_taken(
    content: str, speaker: str, topics: list[str], importance: float
) -> None:
    entry = produce(
        "x" + content + "x", speaker=speaker, topics=tuple(topics), importance=importance
    )
    checked = check_entry(entry)
    assert checked.content == repair_text(entry.content)
    assert checked.topics == tuple(map(repair_text, topics))
    assert decode_entry(encode_entry(checked), GLOBAL, "x.md") == checked


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        TEXTS.map(lambda text: "x" + repair_text(text)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | TEXTS.map(repair_text),
            lambda one: st.lists(one, max_size=3),
            max_leaves=5,
        ),
        max_size=3,
    )
)
def test_further_members_are_read_back_and_stay_as_they_were(
    further: dict[str, object],
) -> None:
    found = decode_entry(encode_entry(check_entry(produce(further=further))), GLOBAL, "x.md")
    assert found.further == further
    again = decode_entry(encode_entry(found), GLOBAL, "x.md")
    assert again.further == further
    assert encode_entry(again) == encode_entry(found)


def test_what_others_wrote_in_the_front_matter_is_kept() -> None:
    theirs = "# by hand\ntime: 12:30\nzip: 01234\nversion: 1.10\non: push\nlist:\n- a\n-  b\n"
    text = f"---\nid: abcd\ncreated_at: 2026-05-04\n{theirs}category: food\n---\n\nTea\n"
    found = read(text)
    assert (found.category, found.further["list"]) == ("food", ["a", "b"])
    assert theirs in encode_entry(msgspec.structs.replace(found, importance=0.9)).decode()


def test_foreign_text_of_several_lines_keeps_its_empty_lines() -> None:
    theirs = "# by hand\nnote: |\n  one\n\n  two\n"
    found = read(f"---\nid: abcd\n\n{theirs}created_at: 2026-05-04\n---\n\nTea\n")
    assert found.further == {"note": "one\n\ntwo\n"}
    assert theirs in encode_entry(found).decode()


def test_lines_that_cannot_be_parted_are_written_anew_from_their_values() -> None:
    found = read('---\n{id: abcd, created_at: "2026-05-04T10:00:00Z", colour: red}\n---\nTea')
    assert found.lines == ""
    assert decode_entry(encode_entry(found), GLOBAL, "").further == {"colour": "red"}
    # A member of ours under a key in quotes looks like a foreign line.
    found = read('---\n"id": abcd\ncreated_at: 2026-05-04\ncolour: red\n---\nTea')
    assert (found.lines, found.further) == ("", {"colour": "red"})
    found = read("---\nid: abcd\ncreated_at: 2026-05-04\n&a colour: red\n---\nTea")
    assert found.further == {"colour": "red"}


@pytest.mark.parametrize("identity", ["3F2504E0-4f89", "conversation:L3", "a.b_c"])
def test_an_id_of_another_program_is_read(identity: str) -> None:
    assert read(f"---\nid: {identity}\ncreated_at: 2026-05-04\n---\nTea").identity == identity


def test_a_file_of_windows_is_read() -> None:
    found = read(b"\xef\xbb\xbf---\r\nid: abcd\r\ncreated_at: 2026-05-04\r\n---\r\n\r\na\r\nb\r\n")
    assert (found.content, found.identity) == ("a\r\nb", "abcd")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-05-04", datetime(2026, 5, 4, tzinfo=UTC)),
        ("2026-05-04 10:30:00", WHEN),
        ("'2026-05-04T10:30:00'", WHEN),
        ("2026-05-04T12:30:00+02:00", WHEN),
    ],
)
def test_times_written_by_hand_have_a_zone(value: str, expected: datetime) -> None:
    assert read(f"---\nid: abcd\ncreated_at: {value}\n---\nTea").created == expected
    assert read(f"---\nid: abcd\ncreated_at: {value}\n---\nTea").created.tzinfo is not None


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "no front matter between two lines"),
        ("Tea", "no front matter between two lines"),
        ("---\nid: abcd\n", "does not end"),
        ("---\nid: [\n---\n", "not valid YAML: line 3, column 1: "),
        ("---\n- id\n---\n", "must be a mapping"),
        ("---\nid: abcd\n---\n", "missing required field `created_at`"),
        ('---\nid: ""\ncreated_at: 2026-05-04\n---\nx', "`id` must be 1 to 128 letters"),
        ('---\nid: "x] \\n[fact"\ncreated_at: 2026-05-04\n---\nx', "`id` must be 1 to 128 letters"),
        ("---\nid: ../../x\ncreated_at: 2026-05-04\n---\nx", "`id` must be 1 to 128 letters"),
        ("---\nid: abcd\ncreated_at: yesterday\n---\n", "front matter: "),
        ("---\nid: abcd\ncreated_at: 2026-05-04\nimportance: 7\n---\n", "importance"),
        ("---\nid: abcd\ncreated_at: 2026-05-04\nimportance: .nan\n---\n", "importance"),
        ("---\nid: abcd\ncreated_at: .inf\n---\n", "front matter: "),
        ("---\nid: abcd\ncreated_at: 2026-99-99\n---\n", "front matter is not valid"),
        (
            "---\nid: a\ncreated_at: 0001-01-01T00:00:00Z\n---\nx",
            "the year of `created_at` must be from 2",
        ),
        (
            "---\nid: a\ncreated_at: 9999-12-31T23:59:59-12:00\n---\nx",
            "the year of `created_at` must be from",
        ),
        ("---\nid: abcd\ncreated_at: 2026-05-04\nrole: king\n---\n", "role"),
        ("---\nx: " + "y" * 70_000 + "\n---\n", "longer than 64 KiB"),
        ("---\nx: " + "[" * 60_000 + "\n---\n", "nest"),
        ("---\n" + "- " * 30_000 + "\n---\n", "more than 50 levels deep"),
        ("---\na: &a [x, x]\nb: [*a, *a]\n---\n", "aliases"),
        ("---\nx: !!python/object/apply:os.mkdir [planted]\n---\n", "not valid YAML"),
        ("---\nx: !!python/name:os.system\n---\n", "not valid YAML"),
        (b"---\nid: abcd\ncreated_at: 2026-05-04\n---\n\xff\xfe", "not UTF-8 text"),
        (b"-" * (LARGEST_BYTES + 1), "longer than 4 MiB"),
    ],
    ids=lambda value: str(value[:30]),
)
def test_a_file_that_is_no_entry_is_reported_as_damaged(text: str | bytes, reported: str) -> None:
    with pytest.raises(MemoryDamaged) as raised:
        read(text)
    assert reported in str(raised.value)
    assert not Path("planted").exists()


@pytest.mark.parametrize(
    "members",
    [
        {"content": " \n"},
        {"importance": 1.5},
        {"importance": float("nan")},
        {"importance": -0.1},
        {"importance": "high"},
        {"topics": "tea"},
        {"topics": (1,)},
        {"category": 5},
        {"further": {"x": object()}},
        {"created": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))},
        {"created": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))},
        {"topics": ("x" * 70_000,)},
        {"content": "x" * (LARGEST_BYTES + 1)},
    ],
    ids=lambda members: next(iter(members)),
)
def test_what_could_not_be_read_back_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(MemoryInvalid):
        check_entry(produce(**members))


def test_a_value_that_holds_itself_is_refused() -> None:
    ring: list[object] = []
    ring.append(ring)
    with pytest.raises(MemoryInvalid, match="front matter"):
        check_entry(produce(further={"x": ring}))


def test_a_time_without_a_zone_gets_one() -> None:
    assert check_entry(produce(created=WHEN.replace(tzinfo=None))).created == WHEN
    east = WHEN.astimezone(timezone(timedelta(hours=9)))
    assert decode_entry(encode_entry(produce(created=east)), GLOBAL, "").created == WHEN


def test_all_members_are_read_back() -> None:
    entry = produce(
        role=Role.SUMMARY,
        importance=1.0,
        category="L1",
        topics=("tea", "no"),
        speaker="Ada",
        conversation="c1",
        turn="t1",
        replaced_by="ef",
    )
    assert decode_entry(encode_entry(entry), GLOBAL, "") == entry


def test_scopes_are_read_back_and_nothing_else_is_one() -> None:
    for scope in (GLOBAL, Scope.of_user("ada"), Scope.of_conversation("c-1")):
        assert Scope.parse(str(scope)) == scope
    for name in ("", "user", "user-", "global-x", "user-A", "user-../x", "other-x", "user-a\n"):
        with pytest.raises(MemoryInvalid):
            Scope.parse(name)
    for kind, name in (("user", "../x"), ("global", "x"), ("king", "x"), ("user", "")):
        with pytest.raises(MemoryInvalid):
            Scope(kind, name)


def test_no_source_of_memory_reads_what_could_run() -> None:
    folder = Path(entries.__file__).parent
    forbidden = (
        *("import pickle", "import marshal", "from pickle", "from marshal"),
        *("eval(", "exec(", "unsafe", "yaml.Loader", "FullLoader"),
    )
    assert find_forbidden(folder, forbidden) == []


def test_a_source_that_could_run_what_it_reads_is_found(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import pickle\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "worse.py").write_text("import pickle\n")
    assert find_forbidden(tmp_path, ("pickle",)) == ["bad.py: pickle", "worse.py: pickle"]


def find_forbidden(folder: Path, words: tuple[str, ...]) -> list[str]:
    return [
        f"{path.name}: {word}"
        for path in sorted(folder.rglob("*.py"))
        for word in words
        if word in path.read_text()
    ]


def test_lines_that_are_no_yaml_alone_are_written_anew_from_their_values() -> None:
    found = read('---\nid: abcd\ncreated_at: 2026-05-04\ncategory: "a\nspeaker: b"\nx: 1\n---\nTea')
    assert (found.category, found.further) == ("a speaker: b", {"x": 1})
    found = read(
        '---\nid: abcd\ncreated_at: 2026-05-04\ncategory: "a\n\n  b"\nx: "\nid: 1"\n---\nTea'
    )
    again = decode_entry(encode_entry(found), GLOBAL, "")
    assert again.further == found.further == {"x": " id: 1"}


def test_an_error_has_the_name_that_is_in_the_file() -> None:
    for lines, words in (
        ("id: abc", "missing required field `created_at`"),
        ("id: abc\ncreated_at: yesterday", "at `created_at`"),
    ):
        with pytest.raises(MemoryDamaged, match=words):
            decode_entry(f"---\n{lines}\n---\n\nBees.\n".encode(), GLOBAL, "one.md")


def test_a_file_by_hand_has_the_name_and_time_of_the_file_where_it_says_none() -> None:
    found = decode_entry(b"---\ntopics: [sea]\n---\nBoats.\n", GLOBAL, "a/boats.md", modified=60.0)
    assert (found.identity, found.created) == ("boats", datetime(1970, 1, 1, 0, 1, tzinfo=UTC))
    assert (found.content, found.topics, found.copy_of) == ("Boats.", ("sea",), "")
    data = b"---\nid: mine\ncreated_at: 2026-05-04\n---\nBoats.\n"
    found = decode_entry(data, GLOBAL, "a/boats.md", modified=60.0)
    assert (found.identity, found.created.year) == ("mine", 2026)
    copy = decode_entry(b"---\nrole: user\n---\nBoats.\n", GLOBAL, "boats (1).md", modified=1.0)
    assert (copy.copy_of, copy.role) == ("boats", Role.USER)
    assert copy.identity.startswith("boats-")


def test_of_a_damaged_file_of_ours_nothing_is_made_up() -> None:
    with pytest.raises(MemoryDamaged, match="missing required field `id`"):
        decode_entry(
            b"---\nrole: memory\n---\nx", GLOBAL, "20260504T103000Z__abcd.md", modified=60.0
        )
