"""Bytes under their hash: kept once, checked, never half, never collected while needed. S8, L2."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults import workers
from tests.faults.archives import (
    FAST,
    begin,
    check_all_is_there,
    lines_of,
    open_all,
    produce_details,
    say,
)
from tests.faults.calls import SystemCalls
from tests.faults.power import Disk, Recorder
from tests.faults.processes import kill_at_random, work_together
from tests.faults.workers import SHARED
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import (
    ContentDamaged,
    ContentMissing,
    ConversationNotFound,
    StorageError,
)
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    Location,
    ReasoningContent,
    Reference,
    TextualContent,
    VideoContent,
)
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.contents import ContentStore
from vibe_llms.storage.conversations import produce_conversation_identity, survey_folders
from vibe_llms.storage.deposits import Deposit, belongs_inline, references_of

Rounds = Callable[[int, int], int]


def produce_store(folder: Path, settings: StorageSettings = FAST) -> ContentStore:
    return ContentStore(folder / "content", settings)


def test_what_was_put_is_loaded_by_its_reference(tmp_path: Path) -> None:
    store = produce_store(tmp_path)
    for data in (b"", b"a", b"\0" * 100_000):
        reference = store.put(data, "image/png")
        assert reference == Reference.from_bytes(data)
        assert store.load(reference) == data
        assert store.holds(reference)
        folder = store.folder / reference.hash
        assert (folder / "metadata.toml").read_text() == (
            f'size = {len(data)}\nmimetype = "image/png"\n'
        )
    assert len([*store.survey()]) == 3


def test_the_first_type_that_was_seen_is_a_hint_and_a_strange_one_is_left_out(
    tmp_path: Path,
) -> None:
    store = produce_store(tmp_path)
    reference = store.put(b"a", "image/png")
    assert store.put(b"a", "text/plain") == reference
    assert "image/png" in (store.folder / reference.hash / "metadata.toml").read_text()
    for strange in ('x"\ny = 1', "", "a b", "\ud800"):
        other = store.put(strange.encode("utf-8", "replace"), strange)
        assert "mimetype" not in (store.folder / other.hash / "metadata.toml").read_text()


def test_a_store_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    store = produce_store(tmp_path)
    assert [*store.survey()] == []
    assert not store.holds(Reference.from_bytes(b"a"))
    with pytest.raises(ContentMissing, match="restore it from a backup"):
        store.load(Reference.from_bytes(b"a"))


def test_a_content_of_another_size_or_kind_is_not_held(tmp_path: Path) -> None:
    store = produce_store(tmp_path)
    reference = store.put(b"abc")
    assert not store.holds(Reference(reference.hash, 2))
    path = store.folder / reference.hash / "data"
    path.unlink()
    assert not store.holds(reference)
    path.mkdir()
    assert not store.holds(Reference(reference.hash, path.stat().st_size))


def test_damaged_and_lost_bytes_are_set_right_by_the_same_bytes_coming_once_more(
    tmp_path: Path,
) -> None:
    store = produce_store(tmp_path)
    reference = store.put(b"abc")
    path = store.folder / reference.hash / "data"
    path.write_bytes(b"abd")
    with pytest.raises(ContentDamaged, match="restore them from a backup"):
        store.load(reference)
    store.put(b"abc")
    assert store.load(reference) == b"abc"
    path.unlink()
    assert store.locate(reference) is None
    store.put(b"abc")
    assert store.load(reference) == b"abc"
    path.write_bytes(b"abcd")
    store.put(b"abc")
    assert store.load(reference) == b"abc"
    assert store.locate(reference) == path


def test_what_is_kept_already_is_not_written_again(tmp_path: Path) -> None:
    store = produce_store(tmp_path, StorageSettings())
    store.put(b"abc" * 1000)
    with SystemCalls() as calls:
        store.put(b"abc" * 1000)
    assert calls.count("write") == calls.count("rename") == calls.count("fdatasync") == 0
    assert calls.count("fsync") == 1, "its writer may not have come so far yet"


def test_a_file_in_place_of_a_content_is_reported(tmp_path: Path) -> None:
    store = produce_store(tmp_path)
    store.put(b"other")
    (store.folder / Reference.from_bytes(b"a").hash).write_text("a file")
    with pytest.raises(StorageError, match="a file in place of a folder"):
        store.put(b"a")


def test_a_content_that_another_process_writes_at_the_same_time_is_used(tmp_path: Path) -> None:
    store, other = produce_store(tmp_path), produce_store(tmp_path)

    class Faster:
        def before(self, name: str, arguments: Sequence[Any], options: object) -> None:
            if name == "rename" and Path(arguments[1]).parent == store.folder:
                other._write(Path(arguments[1]), b"abc", "")

        def after(self, *_: object) -> None:
            return None

    with SystemCalls(observer=_Once(Faster())):
        reference = store.put(b"abc")
    assert store.load(reference) == b"abc"
    assert [*store.folder.iterdir()] == [store.folder / reference.hash]


class _Once:
    """An observer that is asked about the first renaming only."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def before(self, name: str, arguments: Sequence[Any], options: dict[str, Any]) -> object:
        if name == "rename" and self._inner is not None:
            inner, self._inner = self._inner, None
            inner.before(name, arguments, options)
        return None

    def after(self, *_: object) -> None:
        return None


def test_a_text_stays_in_its_line_below_the_limit_in_bytes() -> None:
    assert belongs_inline("a" * 1023, limit=1024)
    assert not belongs_inline("a" * 1024, limit=1024)
    assert belongs_inline("😀" * 255, limit=1024)
    assert not belongs_inline("😀" * 256, limit=1024)
    assert belongs_inline("\ud800", limit=1024)
    assert not belongs_inline("a", limit=1024, supervisor=True)


def test_media_and_long_texts_go_to_the_store_and_the_rest_stays(tmp_path: Path) -> None:
    store = produce_store(tmp_path)
    long, thought = "l" * 1024, "t" * 1024
    said = AssistantCanister(
        (
            TextualContent("short"),
            TextualContent(long, "text/markdown"),
            ReasoningContent(thought),
            ReasoningContent(""),
            ImageContent(b"i", "image/png"),
            AudioContent(b"a"),
            VideoContent(b"v"),
            FileContent(b"f", name="f.pdf"),
            ImageContent(Location("https://example.org/a.png")),
            FileContent(store.put(b"known")),
        )
    )
    stored, kept = store.deposit(said)
    assert [type(content.data) for content in stored.contents] == [  # type: ignore[union-attr]
        *(str, Reference, Reference, str),
        *(Reference, Reference, Reference, Reference),
        *(Location, Reference),
    ]
    assert kept.text == "short" + long
    assert stored == kept == said, "a reference equals what it refers to"
    assert len([*references_of(stored)]) == 7
    assert len([*references_of(kept)]) == 5
    assert all(store.holds(reference) for reference in references_of(stored))


def test_a_canister_with_nothing_to_keep_elsewhere_is_itself(tmp_path: Path) -> None:
    store = produce_store(tmp_path)
    for canister in (
        UserCanister.from_text("short"),
        SupervisorCanister.from_text(""),
        InvocationCanister(name="tool", arguments="x" * 5_000),
    ):
        assert store.deposit(canister)[0] is canister
        assert store.deposit(canister)[1] is canister


def test_the_text_of_a_supervisor_always_goes_to_the_store(tmp_path: Path) -> None:
    stored, kept = produce_store(tmp_path).deposit(SupervisorCanister.from_text("Be brief."))
    assert isinstance(stored.contents[0].data, Reference)  # type: ignore[union-attr]
    assert kept.text == "Be brief."


def test_lone_surrogates_in_a_long_text_are_replaced(tmp_path: Path) -> None:
    store = produce_store(tmp_path)
    stored, _ = store.deposit(UserCanister.from_text("\ud800" * 2_000))
    (reference,) = references_of(stored)
    assert store.load(reference).decode() == "\ufffd" * 2_000


def check_one_content(folder: Path, work: Callable[..., None], count: int) -> None:
    reported = work_together(work, folder, 8, count)
    assert len({digest for one in reported for digest in one}) == 1
    archive = DirectoryArchive(folder)
    assert [*archive.contents.folder.iterdir()] == [archive.contents.folder / reported[0][0]]
    check_all_is_there(folder, [])


@pytest.mark.storm
def test_eight_processes_put_one_content(tmp_path: Path, rounds: Rounds) -> None:
    for number in range(rounds(3, 20)):
        check_one_content(tmp_path / str(number), workers.put_one_content, rounds(20, 200))


def check_flipped_bits(folder: Path, count: int) -> None:
    store = produce_store(folder)
    chance = random.Random(1)
    found: list[str] = []
    wanted: list[str] = []
    for _ in range(count):
        data = chance.randbytes(chance.choice((1, 100, 10_000)))
        reference = store.put(data)
        changed = bytearray(data)
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        (store.folder / reference.hash / "data").write_bytes(changed)
        try:
            store.load(reference)
        except ContentDamaged as error:
            found.append(error.path)
        wanted.append(str(store.folder / reference.hash))
    assert found == wanted


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    check_flipped_bits(tmp_path, 1_000)


def test_that_check_sees_a_store_that_trusts_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: ContentStore, reference: Reference) -> bytes:
        return (self.folder / reference.hash / "data").read_bytes()

    monkeypatch.setattr(ContentStore, "load", load)
    with pytest.raises(AssertionError):
        check_flipped_bits(tmp_path, 10)


def check_kills_while_putting(folder: Path, work: Callable[..., None], count: int) -> None:
    """No half content is ever seen under a hash, and what was reported is there."""
    archive = DirectoryArchive(folder)
    archive.prepare()
    reported: list[str] = []
    for seed in range(count):
        reported += kill_at_random(work, folder, seed=seed)
        assert set(reported) <= set(archive.contents.survey())
    for digest in archive.contents.survey():
        try:
            archive.contents.load(Reference(digest, 0))
        except StorageError as error:
            raise AssertionError(f"half of a content is seen: {error}") from error
    check_all_is_there(folder, [])
    # What the kills left behind goes, once it is old enough to have no owner.
    archive.collect_now(grace_seconds=-1)
    assert not [*archive.survey_remains()]


@pytest.mark.storm
def test_a_kill_while_a_content_is_put_leaves_no_half_of_it(tmp_path: Path, rounds: Rounds) -> None:
    check_kills_while_putting(tmp_path, workers.put_contents, rounds(25, 200))


def test_that_check_sees_contents_written_in_place(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="half of a content"):
        check_kills_while_putting(tmp_path, workers.put_contents_in_place, 25)


class LineFirst(DirectoryArchive):
    """The bug: the line is written before the contents that it names."""

    def append_now(
        self, identity: str, canisters: Sequence[Canister], after: str | None
    ) -> tuple[tuple[Canister, ...], Any]:
        late: list[Deposit] = []
        keep = self.contents.keep
        self.contents.keep = late.append  # type: ignore[method-assign, assignment]
        stored = [self.contents.deposit(canister)[0] for canister in canisters]
        self.contents.keep = keep  # type: ignore[method-assign]
        notices = self.access_folder(identity).append(stored, after=after)
        for deposit in late:
            keep(deposit)
        return tuple(canisters), notices


def check_order_of_writing(folder: Path, kind: type[DirectoryArchive], count: int) -> None:
    """Whenever the power is cut, no line names a content that is not there."""
    (folder / "disk").mkdir(parents=True)
    recorder = Recorder(folder / "disk")
    archive = kind(folder / "disk" / "archive")
    with SystemCalls(observer=recorder, syncing=False):
        archive.create_now(SHARED, produce_details(), say("first"))
        for number in range(5):
            picture = ImageContent(bytes([number]) * 5_000, "image/png")
            archive.append_now(SHARED, [UserCanister((picture,))], None)
    for seed in range(count):
        chance = random.Random(seed)
        disk = Disk.after(recorder.events[: chance.randint(0, len(recorder.events))])
        disk.rebuild(folder / str(seed), chance)
        try:
            open_all(DirectoryArchive(folder / str(seed) / "archive"))
        except ContentMissing as error:
            raise AssertionError(f"a line names what is not there: {error}") from error


@pytest.mark.storm
def test_a_line_is_written_after_the_contents_that_it_names(tmp_path: Path, rounds: Rounds) -> None:
    check_order_of_writing(tmp_path, DirectoryArchive, rounds(200, 2_000))


def test_that_check_sees_a_line_before_its_contents(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="names what is not there"):
        check_order_of_writing(tmp_path, LineFirst, 200)


class Hoarder:
    """A user who appends, forks, removes and collects in a random order."""

    def __init__(self, archive: DirectoryArchive, seed: int) -> None:
        self.archive = archive
        self.chance = random.Random(seed)
        self.done = 0

    def act(self) -> None:
        identities = [*survey_folders(self.archive.conversations)]
        identity = self.chance.choice(identities or ["none"])
        try:
            self.chance.choice(
                (self.begin, self.append, self.append, self.fork, self.remove, self.collect)
            )(identity)
            self.done += 1
        except StorageError as error:
            raise AssertionError(f"a content was deleted too early: {error}") from error
        except ConversationNotFound:
            # Another process has removed it in between.
            return

    def said(self) -> list[Canister]:
        # Few different pictures, so that they are shared, deleted and put again.
        picture = ImageContent(bytes([self.chance.randrange(6)]) * 2_000, "image/png")
        return [UserCanister((TextualContent("look"), picture))]

    def begin(self, _: str) -> None:
        identity = produce_conversation_identity()
        self.archive.create_now(identity, produce_details(), self.said())

    def append(self, identity: str) -> None:
        self.archive.append_now(identity, self.said(), None)

    def fork(self, identity: str) -> None:
        self.archive.fork_now(identity, produce_conversation_identity(), produce_details())

    def remove(self, identity: str) -> None:
        self.archive.remove_now(identity)

    def collect(self, _: str) -> None:
        self.archive.collect_now(grace_seconds=-1)


def check_no_dangling_reference(archive: DirectoryArchive) -> None:
    try:
        opened = open_all(archive)
    except ContentMissing as error:
        raise AssertionError(f"a content was deleted too early: {error}") from error
    needed = {
        reference.hash
        for restored in opened.values()
        for canister in restored.canisters
        for reference in references_of(canister)
    }
    archive.collect_now(grace_seconds=-1)
    assert {*archive.contents.survey()} == needed, "what is not needed goes, and nothing else"


def check_orders(folder: Path, kind: type[DirectoryArchive], count: int) -> None:
    """Random orders of the steps of one or of several at once, on one archive."""
    for seed in range(count):
        archive = kind(folder / str(seed), FAST)
        several = [Hoarder(kind(archive.folder, FAST), seed * 10 + number) for number in range(3)]
        several[0].begin("")
        chance = random.Random(seed)
        for _ in range(30):
            chance.choice(several).act()
        check_no_dangling_reference(archive)


def check_threads(folder: Path, count: int) -> None:
    archive = DirectoryArchive(folder, FAST)
    archive.prepare()
    several = [Hoarder(DirectoryArchive(folder, FAST), seed) for seed in range(4)]
    failures: list[BaseException] = []

    def act(one: Hoarder) -> None:
        try:
            for _ in range(count):
                one.act()
        except BaseException as error:  # noqa: BLE001  (raised by the main thread)
            failures.append(error)

    threads = [threading.Thread(target=act, args=(one,)) for one in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert sum(one.done for one in several) > count
    check_no_dangling_reference(archive)


@pytest.mark.storm
def test_collecting_never_deletes_what_a_conversation_needs(tmp_path: Path, rounds: Rounds) -> None:
    check_orders(tmp_path / "orders", DirectoryArchive, rounds(30, 200))
    check_threads(tmp_path / "threads", rounds(50, 2_000))


class Forgetful(DirectoryArchive):
    """The bug: it looks at one half of the conversations only."""

    def _used_hashes(self) -> set[str]:
        return {
            reference.hash
            for identity in [*survey_folders(self.conversations)][::2]
            for canister in self.restore_now(identity).canisters
            for reference in references_of(canister)
        }


def test_that_check_sees_a_collection_that_forgets_a_process(tmp_path: Path) -> None:
    # Which half is forgotten is a matter of chance, so it shows in one of several ways.
    with pytest.raises((AssertionError, ContentMissing)):
        check_orders(tmp_path, Forgetful, 30)


async def test_what_was_put_lately_is_not_collected(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    fresh = await archive.put(b"fresh", "text/plain")
    old = await archive.put(b"old")
    again = await archive.put(b"again")
    for reference in (old, again):
        os.utime(archive.contents.folder / reference.hash, (0, 0))
    # Putting it once more makes it young again.
    assert await archive.put(b"again") == again
    assert await archive.collect() == [old.hash]
    assert {*archive.contents.survey()} == {fresh.hash, again.hash}


async def test_what_was_set_aside_still_holds_its_contents(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    torn = await archive.put(b"torn")
    with lines_of(archive).open("ab") as lines:
        lines.write(b'{"role":"user","contents":[{"kind":"image","data":{"by":"hash","hash" : "')
        lines.write(f'{torn.hash}","si'.encode())
    os.utime(archive.contents.folder / torn.hash, (0, 0))
    assert await archive.collect() == []
    archive.append_now(SHARED, say("further"), None)
    assert await archive.collect() == []


async def test_a_message_that_names_what_is_not_there_is_refused(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    before = lines_of(archive).read_bytes()
    missing = UserCanister((ImageContent(Reference.from_bytes(b"nowhere")),))
    with pytest.raises(ContentMissing, match=r"await archive\.put"):
        await archive.append(SHARED, [missing], after=None)
    with pytest.raises(ContentMissing):
        await archive.create("other", produce_details(), [missing])
    assert lines_of(archive).read_bytes() == before
    assert [*survey_folders(archive.conversations)] == [SHARED]


async def test_references_are_loaded_together(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=FAST)
    one, other = await archive.put(b"one"), await archive.put(b"other")
    assert await archive.load_all([one, other]) == {one.hash: b"one", other.hash: b"other"}
    assert await archive.load(one) == b"one"


def check_pictures(folder: Path, count: int, size: int) -> None:
    """Many large pictures, and a file of messages that stays small."""
    archive = begin(folder, settings=FAST)
    chance = random.Random(1)
    for _ in range(count):
        picture = ImageContent(chance.randbytes(size), "image/png")
        archive.append_now(SHARED, [UserCanister((TextualContent("look"), picture))], None)
    assert lines_of(archive).stat().st_size < 2_000 * count
    archive.fork_now(SHARED, "fork", produce_details())
    written = [entry for entry in archive.conversations.rglob("*") if entry.is_file()]
    assert sum(entry.stat().st_size for entry in written) < 4_000 * count
    assert len([*archive.contents.survey()]) == count


@pytest.mark.storm
def test_pictures_never_swell_the_file_of_messages(tmp_path: Path, rounds: Rounds) -> None:
    check_pictures(tmp_path, rounds(10, 100), 2_000_000)


def test_that_check_sees_pictures_in_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContentStore, "deposit", lambda self, canister: (canister, canister))
    with pytest.raises(AssertionError):
        check_pictures(tmp_path, 3, 2_000_000)
