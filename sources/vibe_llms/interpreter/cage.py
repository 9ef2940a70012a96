"""The cage of one kernel: a program that builds it, starts the kernel, and is its init.

    python -P -m vibe_llms.interpreter.cage PLAN

If the system allows it, the cage has its own processes, mounts and network. The kernel then sees
only the system's programs and Python, both read-only, and a small folder of its own in memory. It
reaches no address and can use few system calls. When this program ends, all processes in the cage
end. If the row asks for no cage, only limits remain, and `gaps` lists the missing protection.

The program reads commands from standard input, one a line, and answers with a line of JSON each. It
ends with the kernel, and at the end of standard input, so that no process outlives the server.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import select
import shutil
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.interpreter import linux, seccomp
from vibe_llms.interpreter.processes import count_tasks, end_tree

_SPACES = linux.NEW_PROCESSES | linux.NEW_NETWORK | linux.NEW_IPC
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = ("ld.so.cache", "ld.so.conf", "localtime", "fonts", "ssl/certs", "alternatives")
#: Not `zero`: memory shared through it belongs to no process, so no limit would count it.
_DEVICES = ("null", "full", "random", "urandom")
#: Files in `/proc` about the whole machine, above all its keys.
_HIDDEN = ("keys", "key-users", "kcore", "timer_list", "sched_debug", "sysrq-trigger")
#: Start and number of unused user ids, so that other users' processes do not count as the kernel's.
_FIRST_USER, _USERS = 1_900_000_000, 90_000_000
#: The kernel's working folder in a cage with its own mounts, and the folder of its sockets.
WORK = "/home/kernel"
CHANNELS = "/channels"
_SHARED = ".shared"


class CagePlan(Struct, frozen=True, kw_only=True):
    """The settings of a cage: its command, the folder of its sockets, and its limits.

    `visible` lists folders outside the system's that the command needs. `folder` is deleted at the
    end.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    visible: tuple[str, ...] = ()
    spaces: bool = True
    disk_bytes: int
    processes: int

    @property
    def base(self) -> str:
        """Folder in which the cage is built, and in which the kernel works without a cage."""
        return f"{self.folder}/root"

    @property
    def channels(self) -> str:
        """The folder of the sockets, seen from outside."""
        return f"{self.folder}/channels"


def find_obstacle() -> str:
    """Return why this user cannot have a cage on this system, or an empty text.

    A child process tries it.
    """
    if not seccomp.is_known():
        return f"system calls cannot be filtered on {os.uname().machine}"
    child = os.fork()
    if child == 0:
        status = 255
        try:
            _separate()
            linux.unshare(linux.NEW_MOUNTS)
            linux.keep_mounts_apart()
            linux.gain_no_rights()
            seccomp.filter_calls()
            status = 0
        except OSError as error:
            status = min(error.errno or 255, 255)
        finally:
            os._exit(status)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number == 0:
        return ""
    return f"this user cannot create namespaces on this system ({os.strerror(abs(number))})"


def _separate() -> None:
    """Create namespaces: directly as root, otherwise inside a user namespace."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        with contextlib.suppress(PermissionError):
            linux.unshare(_SPACES)
            return
    linux.unshare(_SPACES | linux.NEW_USERS)
    inner = user or 1000
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{inner} {user} 1")
    _write("/proc/self/gid_map", f"{group or 1000} {group} 1")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def main() -> None:
    """Build the cage that the argument describes, and serve it to its end."""
    plan = msgspec.json.decode(sys.argv[1], type=CagePlan)
    # It ends with its input or its kernel, and then deletes the folder.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if plan.spaces:
        _separate()
    else:
        linux.adopt_orphans()
    child = os.fork()
    if child == 0:
        try:
            linux.die_with_parent()
            if plan.spaces:
                # The parent stays in the outer mounts, because it has to delete a folder there.
                linux.unshare(linux.NEW_MOUNTS)
                _furnish(plan)
                _serve(plan, work=WORK)
            else:
                linux.adopt_orphans()
                _serve(plan, work=plan.base)
        except OSError as error:
            sys.stderr.write(f"the cage cannot be built: {error}\n")
        finally:
            os._exit(0)
    # The pipes belong to the child now: closing them ends it.
    os.close(0)
    os.close(1)
    os.waitpid(child, 0)
    if not plan.spaces:
        end_tree(os.getpid())
    shutil.rmtree(plan.folder, ignore_errors=True)


def _furnish(plan: CagePlan) -> None:
    """Build a root from the files that the kernel may see, and make it the only one."""
    linux.keep_mounts_apart()
    root = plan.base
    quiet = linux.MOUNT_NO_SETUID | linux.MOUNT_NO_DEVICES
    linux.mount("tmpfs", root, "tmpfs", quiet, "size=1m,mode=0755")
    for path in (*_SYSTEM, *(f"/etc/{name}" for name in _SETTINGS), *plan.visible):
        _show(path, root)
    for name in _DEVICES:
        _show(f"/dev/{name}", root, writable=True)
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    os.symlink(f"{WORK}/{_SHARED}", f"{root}/dev/shm")  # noqa: S108
    _write(f"{root}/etc/passwd", f"kernel:x:{os.getuid()}:{os.getgid()}::{WORK}:/bin/sh\n")
    _write(f"{root}/etc/hosts", "127.0.0.1 localhost\n")
    os.makedirs(root + WORK)
    options = f"size={plan.disk_bytes},nr_inodes=20000,mode=0777"
    linux.mount("tmpfs", root + WORK, "tmpfs", quiet, options)
    _bind(plan.channels, root + CHANNELS, writable=True)
    os.mkdir(f"{root}/proc")
    if not os.path.lexists(f"{root}/tmp"):  # noqa: S108
        os.symlink(WORK, f"{root}/tmp")  # noqa: S108
    # This may be refused; the kernel works without `/proc`.
    with contextlib.suppress(OSError):
        linux.mount("proc", f"{root}/proc", "proc", quiet)
    for name in _HIDDEN:
        if os.path.exists(f"{root}/proc/{name}"):
            linux.bind("/dev/null", f"{root}/proc/{name}")
    linux.change_root(root)
    linux.make_read_only("/", below=False)


def _show(path: str, root: str, *, writable: bool = False) -> None:
    """Make a path appear at the same place inside, with the links that lead to it."""
    if not os.path.exists(path):
        return
    place = "/"
    parts = os.path.normpath(path).split("/")[1:]
    for number, part in enumerate(parts, 1):
        step = os.path.join(place, part)
        if os.path.islink(step):
            target = os.readlink(step)
            # No part of its path is a link, so nothing here leads out of the new root.
            if not os.path.lexists(root + step):
                os.makedirs(root + place, exist_ok=True)
                os.symlink(target, root + step)
            # No more of its target is shown than was requested.
            _show(os.path.join(place, target, *parts[number:]), root, writable=writable)
            return
        place = step
    if not os.path.lexists(root + place):
        _bind(place, root + place, writable=writable)


def _bind(path: str, inside: str, *, writable: bool) -> None:
    if os.path.isdir(path):
        os.makedirs(inside)
    else:
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        with open(inside, "wb"):
            pass
    linux.bind(path, inside)
    if not writable:
        linux.make_read_only(inside)


def _serve(plan: CagePlan, *, work: str) -> None:
    """Start the kernel, answer commands, and end with it."""
    user = _choose_user(plan)
    channels = CHANNELS if plan.spaces else plan.channels
    gaps = (
        []
        if plan.spaces
        else ["code can reach the network, and the files and programs of its user"]
    )
    if user is None and os.geteuid() == 0 and not plan.spaces:
        gaps.append("it runs as root")
    if user is not None:
        os.chown(channels, user, user)
        os.chown(work, user, user)
    if plan.spaces:
        os.mkdir(f"{work}/{_SHARED}")
        if user is not None:
            os.chown(f"{work}/{_SHARED}", user, user)
    wakeup, woken = os.pipe()
    for end in (wakeup, woken):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    kernel = os.fork()
    if kernel == 0:
        try:
            _become(plan, user, work)
            os.execve(plan.command[0], plan.command, plan.environment)  # noqa: S606
        except OSError as error:
            sys.stderr.write(f"{error}\n")
        os._exit(127)
    _send({"started": kernel, "gaps": gaps})
    seen: dict[str, tuple[int, int]] = {}
    rest = b""
    sealed = False
    while True:
        ready, _, _ = select.select([0, wakeup], [], [])
        if wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, 4096)
            if kernel in _reap():
                break
        if 0 not in ready:
            continue
        chunk = os.read(0, 4096)
        if not chunk:
            break
        *words, rest = (rest + chunk).split(b"\n")
        for word in words:
            match word.split():
                case [b"interrupt"]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(kernel, signal.SIGINT)
                case [b"seal"] if not sealed:
                    sealed = True
                    _seal(plan, user)
                    _send({"sealed": True})
                case [b"collect", limit]:
                    _send({"files": list(_collect(work, seen, int(limit)))})
                case _:
                    pass


def _choose_user(plan: CagePlan) -> int | None:
    """Return an unused user id for the kernel, or None if this process may not choose one."""
    if os.geteuid() != 0 or not os.path.exists("/proc/self/uid_map"):
        return None
    if not plan.spaces and not _readable_by_others(plan.command[0]):
        return None
    user = _FIRST_USER + int(plan.base.encode().hex(), 16) % _USERS
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            extents = [tuple(map(int, line.split())) for line in file]
    except OSError:
        return None
    if any(inner <= user < inner + length for inner, _, length in extents):
        return user
    inner, _, length = max(extents, key=lambda extent: extent[2])
    return inner + length - 1 - user % (length // 4) if length >= 4096 else None


def _readable_by_others(path: str) -> bool:
    for one in (path, sys.prefix, os.__file__):
        for folder in Path(one).resolve().parents:
            if not folder.stat().st_mode & stat.S_IXOTH:
                return False
    return True


def _become(plan: CagePlan, user: int | None, work: str) -> None:
    """Reduce this process to the permissions of the kernel."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(ignored, signal.SIG_DFL)
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, 4096)
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: plan.disk_bytes,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NPROC: _process_limit(plan, user),
    }
    for name, limit in limits.items():
        _, most = resource.getrlimit(name)
        bound = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(name, (bound, bound))
    os.umask(0o077)
    _drop_rights(plan, user)
    # A system that lacks or refuses keyrings has no login keyring to leave.
    with contextlib.suppress(OSError):
        linux.join_keyring()
    linux.gain_no_rights()
    # Without a process namespace, it must not outlive this program.
    linux.die_with_parent()
    os.chdir(work)
    if plan.spaces or seccomp.is_known():
        seccomp.filter_calls()


def _drop_rights(plan: CagePlan, user: int | None) -> None:
    if not plan.spaces and user is None:
        return
    linux.bound_capabilities()
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    linux.drop_capabilities()


def _process_limit(plan: CagePlan, user: int | None) -> int:
    # If the user exists only in this cage, only the cage's processes count. In a user namespace,
    # Linux counts like this since 5.14.
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    alone = user is not None or (plan.spaces and release >= (5, 14))
    return plan.processes if alone else plan.processes + count_tasks(os.getuid())


def _seal(plan: CagePlan, user: int | None) -> None:
    """Forbid writing next to the kernel's sockets, and drop privileges."""
    if plan.spaces:
        linux.make_read_only(CHANNELS)
    _drop_rights(plan, user)
    linux.hide_memory()
    linux.die_with_parent()


def _reap() -> set[int]:
    """Return the children that have ended, including orphans of the cage."""
    ended: set[int] = set()
    while True:
        try:
            child, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if child == 0:
            return ended
        ended.add(child)


def _collect(work: str, seen: dict[str, tuple[int, int]], limit: int) -> Iterator[dict[str, Any]]:
    """Yield new or changed files, with their data up to the limit; links are not followed."""
    names = 0
    for folder, folders, files, descriptor in os.fwalk(work, follow_symlinks=False):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for name in sorted(files):
            names += 1
            if name.startswith(".") or names > 2000:
                continue
            path = os.path.relpath(os.path.join(folder, name), work)
            with contextlib.suppress(OSError):
                opened = os.open(
                    name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor
                )
                try:
                    about = os.fstat(opened)
                    mark = (about.st_mtime_ns, about.st_size)
                    if not stat.S_ISREG(about.st_mode) or seen.get(path) == mark:
                        continue
                    seen[path] = mark
                    data = os.read(opened, limit + 1) if about.st_size <= limit else None
                finally:
                    os.close(opened)
                reported: dict[str, Any] = {"name": path, "size": about.st_size}
                if data is not None and len(data) <= limit:
                    limit -= len(data)
                    reported["data"] = base64.b64encode(data).decode()
                yield reported


def _send(reported: dict[str, Any]) -> None:
    data = json.dumps(reported).encode("utf-8", "replace") + b"\n"
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
