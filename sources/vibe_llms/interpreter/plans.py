"""Prepares the start of a kernel: command, environment, folder and sockets."""

from __future__ import annotations

import os
import site
import sys
from typing import Any

import msgspec

from vibe_llms.interpreter.cage import CHANNELS, WORK, CagePlan
from vibe_llms.interpreter.settings import Limits

_ARGUMENTS = (
    *("--HistoryManager.enabled=False", "--InteractiveShell.colors=nocolor"),
    *("--no-secure", "--InteractiveShell.cache_size=100"),
)
_PORTS = ("shell", "iopub", "stdin", "control", "hb")


def produce_plan(folder: str, limits: Limits, *, spaces: bool) -> CagePlan:
    """Return the plan of a kernel's cage, with its own folder."""
    inside = CHANNELS if spaces else f"{folder}/channels"
    home = WORK if spaces else f"{folder}/root"
    visible = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    # Packages that a path file adds, such as those of another environment.
    visible |= {path for path in sys.path if path.endswith(("/site-packages", "/dist-packages"))}
    environment = {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "IPYTHONDIR": f"{home}/.ipython",
        "JUPYTER_CONFIG_DIR": f"{home}/.jupyter",
        "JUPYTER_DATA_DIR": f"{home}/.jupyter",
        "MALLOC_ARENA_MAX": "2",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if site.ENABLE_USER_SITE and os.path.isdir(site.getusersitepackages()):
        visible.add(site.getusersitepackages())
        environment["PYTHONUSERBASE"] = site.getuserbase()
    return CagePlan(
        command=(
            *(sys.executable, "-P", "-m", "ipykernel_launcher"),
            *("-f", f"{inside}/{os.path.basename(folder)}.json", *_ARGUMENTS),
        ),
        environment=environment,
        folder=folder,
        visible=tuple(sorted(visible - {"/", "/usr"}, key=len)),
        spaces=spaces,
        disk_bytes=limits.disk_bytes,
        processes=limits.processes,
    )


def prepare_folder(plan: CagePlan) -> dict[str, Any]:
    """Create the folder of a cage, and return the content of the file that names the sockets."""
    os.mkdir(plan.base, 0o700)
    os.mkdir(plan.channels, 0o700)
    # The kernel's user must be able to reach it, and no other user may use anything in it.
    os.chmod(plan.folder, 0o711)  # noqa: S103
    inside = CHANNELS if plan.spaces else plan.channels
    connection: dict[str, Any] = {
        "transport": "ipc",
        "signature_scheme": "hmac-sha256",
        "key": os.urandom(32).hex(),
        "kernel_name": "",
        **{f"{name}_port": number for number, name in enumerate(_PORTS, 1)},
    }
    path = f"{plan.channels}/{os.path.basename(plan.folder)}.json"
    with open(path, "wb") as file:
        file.write(msgspec.json.encode({**connection, "ip": f"{inside}/k"}))
    os.chmod(path, 0o644)
    return connection
