"""Code that means harm: what an interpreter has to survive, a piece for each way."""

from __future__ import annotations

from typing import NamedTuple


class Attack(NamedTuple):
    """Code, and what is true of its end: words in its output, and whether the kernel is lost.

    `TOKEN` in the code marks the processes that it starts. With `slow` it ends at a time limit.
    `alone` is for a cage with processes and mounts of its own only.
    """

    code: str
    words: str = ""
    lost: bool | None = None
    slow: bool = False
    alone: bool = False


SLEEP = "['sleep', '31415', 'TOKEN']"
SLEEPER = "[sys.executable, '-c', 'import time; time.sleep(31415)', 'TOKEN']"

ATTACKS = {
    "forks": Attack(
        """
import os, time
for number in range(300):
    try:
        child = os.fork()
    except OSError:
        print("bounded")
        break
    if child == 0:
        time.sleep(3600)
""",
        words="bounded",
        alone=True,
    ),
    "prints for ever": Attack("while True: print('x' * 1_000_000)"),
    "prints at once": Attack("print('x' * 200_000_000)"),
    "prints in small pieces": Attack(
        "import sys\nwhile True:\n    print('x' * 1000); sys.stdout.flush()",
        words="xxx",
    ),
    "ignores signals": Attack(
        "import signal\n"
        "for one in (signal.SIGINT, signal.SIGTERM): signal.signal(one, signal.SIG_IGN)\n"
        "while True: pass",
        words="the interpreter was stopped",
        lost=True,
        slow=True,
    ),
    "swallows interrupts": Attack(
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        words="it did not finish within",
        slow=True,
    ),
    "never ends": Attack(
        "while True: pass", words="it did not finish within", lost=False, slow=True
    ),
    "computes in many": Attack(
        """
import subprocess, sys
for _ in range(8):
    subprocess.Popen([sys.executable, "-c", "while True: pass", "TOKEN"])
print("begun", flush=True)
import time; time.sleep(3600)
""",
        words="begun",
        lost=None,
        slow=True,
    ),
    "detaches a child": Attack(
        f"import subprocess, sys\nchild = subprocess.Popen({SLEEPER}, start_new_session=True)\n"
        "print('begun' if child.poll() is None else 'ended')",
        words="begun",
    ),
    "forks twice": Attack(
        f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, {SLEEPER})
    os._exit(0)
print("begun" if os.wait()[1] == 0 else "failed")
""",
        words="begun",
    ),
    "fills the disk": Attack(
        """
try:
    for number in range(400):
        with open(f"file-{number}.bin", "wb") as file:
            file.write(b"x" * 2_000_000)
except OSError as error:
    print("full", error)
""",
        words="full",
        alone=True,
    ),
    "fills all memory": Attack(
        "held = []\nwhile True: held.append(bytearray(50_000_000))", words="emory"
    ),
    "fills memory in many": Attack(
        """
import subprocess, sys, time
held = "x = bytearray(150_000_000)\\nfor i in range(0, len(x), 4096): x[i] = 1\\n"
for _ in range(8):
    subprocess.Popen([sys.executable, "-c", held + "import time; time.sleep(3600)", "TOKEN"])
time.sleep(3600)
""",
        words="bytes of memory",
        lost=True,
    ),
    "shares memory": Attack(
        """
import mmap
held = mmap.mmap(-1, 400_000_000)
more = mmap.mmap(-1, 400_000_000)
""",
        words="Cannot allocate memory",
    ),
    "holds memory in files without names": Attack(
        """
import os
data = bytes(50_000_000)
try:
    for number in range(16): os.write(os.memfd_create("x"), data)
    print("held")
except OSError as error:
    print("bound" + "ed", error)
""",
        words="bounded",
    ),
    "holds memory in segments": Attack(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
held = 0
for number in range(24):
    segment = libc.shmget(0, 64_000_000, 0o1600)
    place = libc.shmat(segment, None, 0) if segment >= 0 else None
    if place and place != 2**64 - 1:
        ctypes.memset(place, 1, 64_000_000)
        held += 64_000_000
        libc.shmdt(ctypes.c_void_p(place))
print("held" if held > 600_000_000 else "bound" + "ed", held)
""",
        words="bounded",
    ),
    "hides shared memory": Attack(
        """
import mmap, os, subprocess, sys
hide = '''
import mmap, sys, time
held = 0
for flags, path in ((mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, None), (mmap.MAP_SHARED, "/dev/zero")):
    try:
        file = -1 if path is None else open(path, "r+b", buffering=0).fileno()
        space = mmap.mmap(file, 200_000_000, flags=flags)
        space.write(bytes(200_000_000))
        space.madvise(mmap.MADV_DONTNEED)
        held += 1
    except OSError:
        pass
print("held" if held else "bounded", flush=True)
time.sleep(3600)
'''
children = []
for _ in range(4):
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", hide, "TOKEN"], stdout=subprocess.PIPE, text=True
    )
    children.append(child)
print([child.stdout.readline().strip() for child in children])
""",
        words="['bounded', 'bounded', 'bounded', 'bounded']",
    ),
    "takes huge pages": Attack(
        """
import mmap
try:
    mmap.mmap(-1, 1 << 21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
    print("held")
except OSError as error:
    print("bounded", error)
""",
        words="bounded",
    ),
    "reads the keyring": Attack(
        """
import ctypes, os
keyctl = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
READ, SEARCH = 11, 10
held = ctypes.create_string_buffer(100)
for keyring in (-3, -4, -5):
    key = libc.syscall(keyctl, SEARCH, keyring, b"user", b"KEYNAME", 0)
    if key > 0 and libc.syscall(keyctl, READ, key, held, 100) > 0:
        print("reached", held.value)
try:
    shown = open("/proc/keys").read()
    print("reached" if "KEYNAME" in shown else "", end="")
except OSError:
    pass
print("bounded")
""",
        words="bounded",
        alone=True,
    ),
    "opens special sockets": Attack(
        """
import socket
for family, kind, protocol in ((40, 1, 0), (38, 5, 0), (17, 3, 0), (16, 3, 9), (31, 3, 0)):
    try:
        socket.socket(family, kind, protocol)
        print("reached", family)
    except OSError:
        pass
print("bounded")
""",
        words="bounded",
    ),
    "makes namespaces": Attack(
        """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
unshare, clone3 = {"x86_64": (272, 435), "aarch64": (97, 435)}[os.uname().machine]
if libc.syscall(unshare, 0x10000000) == 0:
    print("reached unshare")
libc.syscall(clone3, None, 0)
if ctypes.get_errno() != 38:
    print("reached clone3")
print("bounded")
""",
        words="bounded",
    ),
    "reads secrets": Attack(
        """
import glob, os, pwd
found = [repr(dict(os.environ))]
for path in ["/proc/self/environ", *glob.glob("/proc/[0-9]*/environ")]:
    try:
        found.append(open(path, "rb").read().decode(errors="replace"))
    except OSError:
        pass
homes = [f"{one.pw_dir}/{names}" for one in pwd.getpwall() for names in ("*", ".*")]
for pattern in (*homes, "/home/*/*", "/tmp/*", "/tmp/*/*", "../*"):
    for path in glob.glob(pattern):
        if os.path.isfile(path):
            found.append(open(path, errors="replace").read())
print("\\n".join(found)[:900_000])
""",
        words="PATH",
        alone=True,
    ),
    "closes descriptors": Attack("import os\nos.closerange(0, 256)", lost=None, slow=True),
    "kills its parent": Attack("import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(1)"),
    "kills all": Attack("import os, time\nos.kill(-1, 9)\ntime.sleep(1)", alone=True, lost=None),
    "exits": Attack("import os\nos._exit(7)", words="it exited", lost=True),
    "crashes": Attack("import ctypes\nctypes.string_at(0)", words="it exited", lost=True),
    "leaves threads": Attack(
        """
import threading, time
try:
    for _ in range(400): threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
except RuntimeError as error:
    print("bounded", error)
""",
        words="bounded",
        alone=True,
    ),
    "hooks imports": Attack(
        """
import builtins, json, sys
def find(*args, **options): raise SystemExit("no")
sys.meta_path.insert(0, type("Finder", (), {"find_spec": staticmethod(find)}))
builtins.__import__ = find
json.dumps = find
print("done")
""",
        lost=None,
        slow=True,
    ),
    "sends nonsense": Attack(
        """
kernel = get_ipython().kernel
for _ in range(50):
    kernel.session.send(kernel.iopub_socket, "stream", {"text": [1], "name": {}})
    kernel.session.send(kernel.iopub_socket, "display_data", {"data": {"image/png": "?"}})
    kernel.iopub_socket.send_multipart([b"<IDS|MSG>", b"x", b"{", b"[", b"1", b"]"])
print("done")
""",
        lost=None,
    ),
    "links out": Attack(
        "import os\nos.symlink('/etc/hostname', 'link.txt')\nos.symlink('/etc', 'folder')\n"
        "os.mkfifo('pipe.txt')",
        words="nothing",
    ),
    "writes a huge file": Attack(
        "with open('huge.bin', 'wb') as file: file.truncate(100_000_000)\n",
        words="100,000,000 bytes, too many to return",
        lost=False,
    ),
    "reaches the network": Attack(
        """
import socket
try:
    socket.create_connection(("127.0.0.1", PORT), 2)
    print("reached")
except OSError as error:
    print("bounded", error)
""",
        words="bounded",
        alone=True,
    ),
    "writes to the system": Attack(
        """
import os, sys
for path in (sys.prefix, os.path.dirname(os.__file__), "/usr", "/etc", "/", "/channels"):
    try:
        open(os.path.join(path, "TOKEN"), "w")
        print("wrote", path)
    except OSError:
        pass
print("bounded")
""",
        words="bounded",
        alone=True,
    ),
}
