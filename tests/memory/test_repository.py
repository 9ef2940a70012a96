"""The repository of a memory: whatever was planted or killed, the next commit has all there is."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.memory import workers
from tests.memory.repositories import REAL, ask_git, list_committed, list_files, make_program
from tests.memory.workers import Worker
from vibe_llms.base.exceptions import StorageError, VersioningFailed
from vibe_llms.base.folders import TEMPORARY
from vibe_llms.memory import repository as module
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import LARGEST_BYTES, Scope
from vibe_llms.memory.git import Git
from vibe_llms.memory.history import survey_changes
from vibe_llms.memory.purging import find_held, purge
from vibe_llms.memory.repository import MARK, Repository
from vibe_llms.memory.versions import Versions

_PATIENCE_SECONDS = 60


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path / "memory", durable=False)


@pytest.fixture
def repository(memory: Memory) -> Repository:
    return Repository(memory.folder)


async def test_each_commit_has_what_the_files_have(memory: Memory, repository: Repository) -> None:
    assert repository.commit() == 0
    assert not memory.folder.exists()
    entry = await memory.add("Ada keeps bees.")
    other = await memory.add("Ben keeps goats.")
    assert repository.commit() == 3
    assert repository.commit() == 0
    await memory.revise(entry.identity, content="Ada keeps wild bees.")
    assert repository.commit() == 1
    await memory.remove(other.identity)
    assert repository.commit() == 2
    assert list_committed(memory.folder) == list_files(memory.folder)
    subjects = ask_git(memory.folder, "log", "--format=%s|%an|%cn").splitlines()
    assert subjects == [
        "Add 1, remove 1|vibe-llms|vibe-llms",
        "Change 1|vibe-llms|vibe-llms",
        "Add 2|vibe-llms|vibe-llms",
    ]
    # For git itself, nothing is left to do.
    assert ask_git(memory.folder, "status", "--porcelain") == ""
    ask_git(memory.folder, "fsck", "--strict")


async def test_derived_files_are_not_committed(memory: Memory, repository: Repository) -> None:
    await memory.add("Ada keeps bees.")
    await memory.close()
    (memory.folder / "cache").mkdir()
    (memory.folder / "cache" / "vectors").write_text("1 2 3")
    (memory.folder / "entries" / "global" / "facts" / ".new-half.md-1").write_text("half")
    assert (memory.folder / "index").is_dir()
    repository.commit()
    names = ask_git(memory.folder, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    assert sorted(name.split("/")[0] for name in names) == [".gitignore", "entries"]
    assert ask_git(memory.folder, "status", "--porcelain", "--ignored").count("\n") == 3


async def test_ignored_files_are_not_committed(memory: Memory, repository: Repository) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    with (memory.folder / ".gitignore").open("a") as file:
        file.write("/entries/user-ben/\n")
    await memory.add("Ben has a secret.", scope=Scope.of_user("ben"))
    repository.commit()
    (text,) = list_committed(memory.folder).values()
    assert text.endswith("Ada keeps bees.\n")


async def test_links_foreign_names_and_huge_files_do_no_harm(
    memory: Memory, repository: Repository, tmp_path: Path
) -> None:
    await memory.add("Ada keeps bees.")
    facts = memory.folder / "entries" / "global" / "facts"
    (tmp_path / "secret").write_text("a secret")
    (facts / "link.md").symlink_to(tmp_path / "secret")
    (facts / "folder.md").symlink_to(tmp_path)
    (facts / 'a "quoted" name.md').write_text("quoted")
    (facts / '"starts.md').write_text("starts")
    (facts / "two\nlines.md").write_text("lines")
    (facts / "with\\slash\t.md").write_text("slash")
    (Path(os.fsdecode(os.fsencode(facts) + b"/\xff.md"))).write_text("bytes")
    with (facts / "huge.md").open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    (facts / "nested" / ".git").mkdir(parents=True)
    (facts / "nested" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    os.mkfifo(facts / "pipe.md")
    repository.commit()
    assert repository.commit() == 0
    texts = ask_git(memory.folder, "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")
    assert len([name for name in texts if name.endswith(".md")]) == 6
    assert "a secret" not in ask_git(memory.folder, "log", "-p", "--all")
    assert "two\nlines.md" in "\0".join(texts)


async def test_a_change_within_the_same_moment_is_not_missed(
    memory: Memory, repository: Repository
) -> None:
    entry = await memory.add("number 0")
    path = next(memory.folder.rglob(f"*{entry.identity}.md"))
    text = path.read_text()
    for number in range(1, 8):
        # As long as before, within the same file, in the same second.
        with path.open("r+") as file:
            file.write(text.replace("number 0", f"number {number}"))
        repository.commit()
        assert f"number {number}" in str(list_committed(memory.folder))


@pytest.mark.parametrize("data", [b"", b"DIRC", b"DIRC\0\0\0\2\0\0\0\1" + b"\0" * 60])
async def test_an_index_that_is_damaged_is_made_anew(
    memory: Memory, repository: Repository, data: bytes
) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    (repository.git.directory / MARK / "index").write_bytes(data)
    assert repository.commit() == 0
    await memory.add("Ben keeps goats.")
    assert repository.commit() == 1
    assert list_committed(memory.folder) == list_files(memory.folder)


async def test_what_the_user_has_staged_stays_staged(
    memory: Memory, repository: Repository
) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    (memory.folder / "notes.txt").write_text("mine")
    ask_git(memory.folder, "add", "-f", "notes.txt")
    await memory.add("Ben keeps goats.")
    assert repository.commit() == 1
    assert ask_git(memory.folder, "status", "--porcelain") == "A  notes.txt\n"
    assert "notes.txt" not in ask_git(memory.folder, "ls-tree", "-r", "--name-only", "HEAD")
    # What the user commits is not undone, nor is a merge of theirs concluded.
    ask_git(memory.folder, *("-c", "user.name=me", "-c", "user.email=me"), "commit", "-qmmine")
    (memory.folder / ".git" / "MERGE_HEAD").write_text(
        ask_git(memory.folder, "rev-parse", "HEAD~1")
    )
    await memory.add("Cleo keeps cats.")
    assert repository.commit() == 1
    assert (memory.folder / ".git" / "MERGE_HEAD").exists()
    assert ask_git(memory.folder, "log", "-1", "--format=%P").count(" ") == 0
    assert "notes.txt" in ask_git(memory.folder, "ls-tree", "-r", "--name-only", "HEAD")


async def test_what_moves_behind_a_link_is_kept_no_more(
    memory: Memory, repository: Repository, tmp_path: Path
) -> None:
    await memory.add("Ada keeps bees.")
    await memory.add("Ben keeps goats.", scope=Scope.of_user("ben"))
    repository.commit()
    (memory.folder / "entries" / "user-ben").rename(tmp_path / "elsewhere")
    (memory.folder / "entries" / "user-ben").symlink_to(tmp_path / "elsewhere")
    assert repository.commit() == 1
    (text,) = list_committed(memory.folder).values()
    assert text.endswith("Ada keeps bees.\n")


def plant(folder: Path, ran: Path) -> None:
    """Whatever a repository can name that git would run: each says so in a file."""
    directory = folder / ".git"
    evil = make_program(folder / ".git" / "evil", f'echo "$0 $*" >> "{ran}"; cat')
    hooks = (
        *("applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "post-commit"),
        *("prepare-commit-msg", "commit-msg", "pre-rebase", "post-checkout", "post-merge"),
        *("pre-push", "post-rewrite", "pre-auto-gc", "reference-transaction", "update"),
        *("post-index-change", "pre-merge-commit", "fsmonitor-watchman", "pre-receive"),
        *("post-receive", "post-update", "push-to-checkout", "proc-receive"),
    )
    for place in ("hooks", "planted"):
        for name in hooks:
            make_program(directory / place / name, f'echo "{place} {name}" >> "{ran}"')
    (directory / "included").write_text(
        f'[core]\n\tfsmonitor = "{evil}"\n\teditor = "{evil}"\n[gpg]\n\tprogram = "{evil}"\n'
    )
    settings = {
        "core.hooksPath": directory / "planted",
        "core.fsmonitor": evil,
        "core.pager": evil,
        "core.editor": evil,
        "core.sshCommand": evil,
        "core.askPass": evil,
        "core.alternateRefsCommand": evil,
        "core.gitProxy": evil,
        "commit.gpgSign": "true",
        "tag.gpgSign": "true",
        "log.showSignature": "true",
        "gpg.program": evil,
        "gpg.ssh.program": evil,
        "credential.helper": f"!{evil}",
        "diff.external": evil,
        "diff.evil.command": evil,
        "diff.evil.textconv": evil,
        "merge.evil.driver": evil,
        "filter.evil.clean": evil,
        "filter.evil.smudge": evil,
        "filter.evil.process": evil,
        "filter.evil.required": "true",
        "pager.log": evil,
        "pager.config": evil,
        "sequence.editor": evil,
        "uploadpack.packObjectsHook": evil,
        "gc.recentObjectsHook": evil,
        "gc.auto": "1",
        "alias.ls-files": f"!{evil}",
        "alias.gc": f"!{evil}",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{evil}",
        "protocol.ext.allow": "always",
        "include.path": directory / "included",
    }
    for name, value in settings.items():
        subprocess.run(
            [REAL, "config", "--file", str(directory / "config"), name, str(value)], check=True
        )
    attributes = (
        "* filter=evil diff=evil merge=evil text eol=crlf ident working-tree-encoding=UTF-16\n"
    )
    (directory / "info").mkdir(exist_ok=True)
    (directory / "info" / "attributes").write_text(attributes)
    (folder / "entries" / ".gitattributes").write_text(attributes)


async def live(memory: Memory, repository: Repository) -> None:
    """All that ever runs git."""
    entry = await memory.add("Ben keeps goats.")
    repository.commit()
    await memory.revise(entry.identity, content="Ben keeps 4 goats.")
    repository.commit()
    await memory.forget("goats")
    repository.commit()
    versions = Versions(memory.folder)
    await versions.status()
    with suppress(VersioningFailed):
        await survey_changes(Memory(memory.folder, versions=versions))
    assert len(await find_held(repository, "goats")) == 2
    with suppress(VersioningFailed):
        await purge(repository, "goats")


async def test_nothing_that_was_planted_runs(
    memory: Memory,
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = tmp_path / "ran"
    await memory.add("Ada keeps bees.")
    repository.commit()
    plant(memory.folder, ran)
    # The settings of its user, and those of the process that started us.
    evil = memory.folder / ".git" / "evil"
    (tmp_path / ".gitconfig").write_text((memory.folder / ".git" / "config").read_text())
    (tmp_path / ".config" / "git").mkdir(parents=True)
    (tmp_path / ".config" / "git" / "attributes").write_text("* filter=evil\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    for name in ("GIT_EXTERNAL_DIFF", "GIT_SSH_COMMAND", "GIT_EDITOR", "PAGER", "GIT_PAGER"):
        monkeypatch.setenv(name, str(evil))
    monkeypatch.setenv("GIT_EXEC_PATH", str(memory.folder / ".git" / "planted"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(evil))
    await live(memory, repository)
    assert not ran.exists(), ran.read_text()
    assert not (tmp_path / "trace").exists()
    assert not (tmp_path / "elsewhere").exists()
    monkeypatch.undo()
    kept = list_files(memory.folder)
    for name in ask_git(memory.folder, "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0"):
        if name.endswith(".md"):
            blob = ask_git(memory.folder, "cat-file", "blob", f"HEAD:{name}")
            assert blob == kept[name]


async def test_planted_hooks_run_under_plain_git(
    memory: Memory, repository: Repository, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    await memory.add("Ada keeps bees.")
    repository.commit()
    plant(memory.folder, ran)
    await memory.add("Ben keeps goats.")
    subprocess.run([REAL, "add", "-A"], cwd=memory.folder, capture_output=True, check=False)
    subprocess.run([REAL, "commit", "-mx"], cwd=memory.folder, capture_output=True, check=False)
    assert ran.exists()


async def test_a_repository_around_the_memory_is_left_alone(tmp_path: Path) -> None:
    ask_git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("pass\n")
    before = sorted(str(path) for path in (tmp_path / ".git").rglob("*"))
    memory = Memory(tmp_path / "memory", durable=False)
    await memory.add("Ada keeps bees.")
    assert Repository(memory.folder).commit() == 2
    assert sorted(str(path) for path in (tmp_path / ".git").rglob("*")) == before
    assert ask_git(memory.folder, "rev-parse", "--show-toplevel").strip() == str(memory.folder)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text("gitdir: ../other\n"), "not a folder with a git"),
        (lambda path: path.symlink_to(path.parent.parent / "other"), "not a folder with a git"),
        (lambda path: path.symlink_to(path.parent.parent), "not a folder with a git"),
        (lambda path: ask_git(path.parent, "init", "-q"), "mkdir "),
    ],
)
async def test_what_is_not_ours_is_left_alone(
    memory: Memory, repository: Repository, make: Callable[[Path], object], words: str
) -> None:
    await memory.add("Ada keeps bees.")
    path = memory.folder / ".git"
    make(path)
    before = os.lstat(path)
    with pytest.raises(VersioningFailed, match=words):
        repository.commit()
    assert not repository.exists
    assert os.lstat(path).st_mtime == before.st_mtime


async def test_the_repository_of_its_owner_is_used_once_it_is_marked(
    memory: Memory, repository: Repository
) -> None:
    await memory.add("Ada keeps bees.")
    ask_git(memory.folder, "init", "-q", "-b", "trunk")
    with pytest.raises(VersioningFailed) as raised:
        repository.commit()
    command = str(raised.value).partition("allow its use: ")[2]
    subprocess.run(command, shell=True, check=True)
    assert repository.commit() == 2
    assert ask_git(memory.folder, "branch", "--show-current").strip() == "trunk"
    ask_git(memory.folder, "checkout", "-q", "--detach")
    await memory.add("Ben keeps goats.")
    with pytest.raises(VersioningFailed, match="no branch is checked out"):
        repository.commit()


async def test_what_lies_behind_a_link_is_reported_instead_of_being_lost(
    memory: Memory, repository: Repository, tmp_path: Path
) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    (memory.folder / "entries").rename(tmp_path / "elsewhere")
    (memory.folder / "entries").symlink_to(tmp_path / "elsewhere")
    assert len(await memory.survey()) == 1
    with pytest.raises(VersioningFailed, match="entries: it is a link"):
        repository.commit()
    assert "bees" in str(list_committed(memory.folder))


async def test_what_is_half_written_is_not_kept_whatever_is_ignored(
    memory: Memory, repository: Repository
) -> None:
    await memory.add("Ada keeps bees.")
    (memory.folder / ".gitignore").write_text("")
    (memory.folder / "entries" / "global" / "facts" / ".new-half.md").write_text("half")
    repository.commit()
    names = ask_git(memory.folder, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    assert len(names) == 2
    assert not [name for name in names if ".new-" in name]


async def test_a_history_that_was_left_unfinished_is_reported(
    memory: Memory, repository: Repository
) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    config = repository.git.directory / "config"
    config.write_text("[core\n")
    await memory.add("Ben keeps goats.")
    with pytest.raises(VersioningFailed, match="bad config"):
        repository.commit()


async def test_a_disk_that_cannot_be_written_is_reported(
    memory: Memory, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.add("Ada keeps bees.")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(module, "write_new", refuse)
    with pytest.raises(StorageError, match="read-only"):
        repository.commit()


@pytest.mark.parametrize(
    "name", ["index.lock", "HEAD.lock", "refs/heads/main.lock", "packed-refs.lock", "gc.pid"]
)
async def test_a_lock_of_a_git_that_died_is_removed(
    memory: Memory, repository: Repository, name: str
) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    lock = repository.git.directory / name
    for interrupted in (False, True):
        await memory.add(f"Ben keeps {interrupted} goats.")
        lock.write_text("")
        if interrupted:
            # As a kill of ours leaves it.
            (repository.git.directory / MARK / "running").touch()
        else:
            eleven_days = time.time() - 11 * 86_400
            os.utime(lock, (eleven_days, eleven_days))
        assert repository.commit() == 1
        assert not lock.exists()
    assert list_committed(memory.folder) == list_files(memory.folder)
    assert ask_git(memory.folder, "status", "--porcelain") == ""


@pytest.mark.parametrize("name", ["make_folder", "write_new"])
async def test_a_repository_that_another_process_makes_at_the_same_time_is_used(
    memory: Memory, repository: Repository, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    await memory.add("Ada keeps bees.")
    original = getattr(module, name)

    def come_first(path: Path, *given: object, **named: object) -> None:
        if TEMPORARY in str(path):
            monkeypatch.undo()
            assert Repository(memory.folder).commit() == 2
        original(path, *given, **named)

    monkeypatch.setattr(module, name, come_first)
    assert repository.commit() == 0
    assert list_committed(memory.folder) == list_files(memory.folder)


async def test_what_a_git_left_unfinished_takes_no_room(
    memory: Memory, repository: Repository
) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    objects = repository.git.directory / "objects"
    left = [objects / "pack" / "tmp_pack_KYTOeH", objects / "56" / "tmp_obj_v6gdFk"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    repository.commit()
    # Another user may work there.
    assert all(path.exists() for path in left)
    (repository.git.directory / MARK / "running").touch()
    repository.commit()
    assert not any(path.exists() for path in left)


async def test_a_lock_that_would_stay_is_detected(
    memory: Memory, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    await memory.add("Ben keeps goats.")
    (repository.git.directory / "refs/heads/main.lock").write_text("")
    monkeypatch.setattr(Repository, "_clear_locks", lambda _: None)
    with pytest.raises(VersioningFailed, match="update-ref"):
        repository.commit()


async def test_a_lock_that_is_held_is_left(memory: Memory, repository: Repository) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    lock = repository.git.directory / "index.lock"
    lock.write_text("")
    (repository.git.directory / MARK / "running").touch()
    script = f"f = open({str(lock)!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        await memory.add("Ben keeps goats.")
        # The index is for others; the commit does not need it.
        assert repository.commit() == 1
        assert lock.exists()
        holder.communicate(b"\n")
    (repository.git.directory / MARK / "running").touch()
    repository.commit()
    assert not lock.exists()


async def test_a_fresh_lock_of_an_unknown_owner_is_left(
    memory: Memory, repository: Repository
) -> None:
    await memory.add("Ada keeps bees.")
    repository.commit()
    (repository.git.directory / "index.lock").write_text("")
    await memory.add("Ben keeps goats.")
    assert repository.commit() == 1
    assert (repository.git.directory / "index.lock").exists()


def end_gits(folder: Path) -> None:
    """Kill every git that works in a folder, as the system does when it goes down."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                name = (process / "comm").read_text()
                if name.startswith("git") and (process / "cwd").resolve() == folder:
                    os.kill(int(process.name), signal.SIGKILL)


def is_whole(folder: Path) -> bool:
    """Whether a commit succeeds, and has all that the files have."""
    try:
        Repository(folder).commit()
    except StorageError:
        return False
    ask_git(folder, "fsck", "--strict")
    return list_committed(folder) == list_files(folder)


@pytest.mark.storm
def test_after_a_kill_in_a_commit_the_next_one_succeeds(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    chance = random.Random(5)
    for number in range(rounds(8, 100)):
        folder = tmp_path / str(number % 4)
        folder.mkdir(exist_ok=True)
        worker = Worker(workers.commit_facts, folder, number)
        worker.wait_until_reported(chance.randint(1, 3))
        time.sleep(chance.random() * 0.04)
        match number % 3:
            case 0:
                worker.kill()
            case 1:
                end_gits(folder)
                worker.kill()
            case _:
                worker.kill()
                end_gits(folder)
        assert is_whole(folder), f"round {number}"


@pytest.mark.storm
async def test_four_processes_commit_at_once(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    count = rounds(4, 30)
    together = [Worker(workers.commit_facts, tmp_path, seed, count) for seed in range(4)]
    for worker in together:
        assert len(worker.finish()) == count
        assert worker.code == 0
    assert len(await Memory(tmp_path).survey()) == 4 * count - 4 * (count // 3)
    assert list_committed(tmp_path) == list_files(tmp_path)
    ask_git(tmp_path, "fsck", "--strict")


async def test_the_lock_is_held_as_long_as_an_orphan_of_ours_lives(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.add("Ada keeps bees.")
    Repository(memory.folder).commit()
    await memory.add("Ben keeps goats.")
    started = tmp_path / "started"
    waiting = f'case "$*" in *update-index*) echo $$ > "{started}"; sleep 1000;; esac'
    make_program(tmp_path / "bin" / "git", f'{waiting}; exec "{REAL}" "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    script = (
        "import sys; from pathlib import Path; from vibe_llms.memory.repository import Repository\n"
        "Repository(Path(sys.argv[1])).commit()"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(memory.folder)]) as ours:
        end = time.monotonic() + _PATIENCE_SECONDS
        while not (started.exists() and started.read_text()):
            assert time.monotonic() < end, "git was not started"
            time.sleep(0.01)
        ours.kill()
    with pytest.raises(StorageError, match="another process has locked it"):
        Repository(memory.folder, seconds=0.2).commit()
    os.killpg(int(started.read_text()), signal.SIGKILL)
    monkeypatch.undo()
    assert Repository(memory.folder).commit() == 1


def test_git_is_looked_for_in_whole_paths_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path / "git", "exit 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".::{tmp_path.name}")
    assert Git.find() is None
