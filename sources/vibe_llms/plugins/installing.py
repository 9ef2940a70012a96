"""Installs a row's pinned packages with uv, or else pip, into the plugin's own folder.

No code of a package runs during installation: only wheels are used, nothing is compiled, and no
`.pth` file takes effect, because Python does not search the folder. Every installed file is
recorded; a folder without a record is not a plugin.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from vibe_llms.base.exceptions import PackageMissing, RegistrationError
from vibe_llms.base.folders import (
    TEMPORARY,
    make_folder,
    storage_errors,
    synchronise_folder,
    write_new,
)
from vibe_llms.base.locks import locked
from vibe_llms.base.network.connections import choose_proxy
from vibe_llms.base.network.offline import permit_request
from vibe_llms.base.redaction import redact
from vibe_llms.plugins.pins import Plugin
from vibe_llms.plugins.records import Record, survey_files, write_record

_LOCK_SECONDS = 10.0
_SHOWN_BYTES = 2000
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
#: Variables passed to the installer: no keys, and none that would choose an index.
_PASSED_ON = (
    *("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "XDG_CACHE_HOME"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *_PROXIES,
    *(name.lower() for name in _PROXIES),
)


class Installation(Struct, frozen=True):
    """A planned installation: `command` runs unchanged in the folder `work`."""

    plugin: Plugin
    work: Path
    command: tuple[str, ...]

    @property
    def line(self) -> str:
        """The command as typed in a shell."""
        return shlex.join(self.command)


def plan_installation(plugin: Plugin, *, offline: bool = False) -> Installation:
    """Plan the installation of a plugin on this machine.

    `offline` is the configuration key. Raise `PackageMissing` if there is no installer, or
    `RequestForbidden` if requests are forbidden and one is needed.
    """
    permit_request(plugin.index, f"installing [providers.{plugin.row}]", offline=offline)
    work = plugin.folder.with_name(f"{TEMPORARY}{plugin.folder.name[:24]}-{os.urandom(4).hex()}")
    uv = shutil.which("uv")
    command: tuple[str, ...]
    # A command found by a relative path is in the current directory, which is not trusted.
    if uv is not None and os.path.isabs(uv):
        command = (uv, "pip", "install", "--no-config", "--python", sys.executable)
        own = ("--link-mode", "copy")
        index = ("--default-index", plugin.index)
    elif find_spec("pip") is not None:
        command = (sys.executable, "-I", "-m", "pip", "install", "--isolated", "--no-input")
        own = ("--no-compile", "--disable-pip-version-check")
        index = ("--index-url", plugin.index)
    else:
        raise PackageMissing(
            f"installing [providers.{plugin.row}]",
            package="uv",
            command="python -m pip install uv, or see https://docs.astral.sh/uv",
        )
    if os.path.isabs(plugin.index):
        index = ("--no-index", f"--find-links={plugin.index}")
    target = ("--target", str(work / "packages"), "--requirement", str(work / "requirements.txt"))
    strict = ("--no-deps", "--require-hashes", "--only-binary", ":all:")
    return Installation(plugin, work, (*command, *own, *strict, *index, *target))


def install(installation: Installation) -> None:
    """Install a plugin: its folder appears completely, replacing an older one, or not at all.

    Raise `RegistrationError` with the installer's message if it fails, or if the packages lack the
    row's module, and `StorageError` if the disk fails.
    """
    plugin, work = installation.plugin, installation.work
    home = plugin.folder.parent
    with storage_errors(home):
        make_folder(home)
        with locked(home, seconds=_LOCK_SECONDS):
            _clear_away(home)
            os.mkdir(work, 0o700)
            try:
                os.mkdir(work / "packages", 0o700)
                write_new(work / "requirements.txt", plugin.pinned.encode(), durable=False)
                _run(installation)
                _require_module(plugin, work / "packages")
                files = survey_files(work / "packages")
                write_record(work, Record(plugin.row, plugin.module, plugin.requirements, files))
                _put_in_place(work, plugin.folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            synchronise_folder(home)


def remove(folder: Path) -> None:
    """Uninstall a plugin; it cannot be loaded from then on, even if files are left."""
    with storage_errors(folder), locked(folder.parent, seconds=_LOCK_SECONDS):
        gone = folder.with_name(f"{TEMPORARY}{os.urandom(12).hex()}")
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def _run(installation: Installation) -> None:
    plugin = installation.plugin
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if choose_proxy(plugin.index) is None:
        environment |= {"NO_PROXY": "*", "no_proxy": "*"}
    # A configuration file of the machine could choose another index.
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PYTHONNOUSERSITE": "1"}
    try:
        done = subprocess.run(
            installation.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=installation.work,
            check=False,
        )
    except OSError as error:
        raise _failure(plugin, f"{installation.command[0]} cannot be run: {error}") from error
    if done.returncode != 0:
        said = redact(done.stdout.decode("utf-8", "replace")).strip()[-_SHOWN_BYTES:]
        raise _failure(plugin, f"nothing was installed; the installer reported: {said}")


def _require_module(plugin: Plugin, packages: Path) -> None:
    top = plugin.module.partition(".")[0]
    there = {path.name.partition(".")[0] for path in packages.iterdir()}
    if top not in there:
        raise _failure(
            plugin, f"nothing was installed, because {plugin.name} has no module {top!r}"
        )


def _failure(plugin: Plugin, message: str) -> RegistrationError:
    return RegistrationError(message, table=f"providers.{plugin.row}", key="install")


def _put_in_place(work: Path, folder: Path) -> None:
    synchronise_folder(work)
    if folder.exists():
        # Between the two renames, the plugin is missing, and errors say so.
        os.rename(folder, folder.with_name(f"{TEMPORARY}{os.urandom(12).hex()}"))
    os.rename(work, folder)
    _clear_away(folder.parent)


def _clear_away(home: Path) -> None:
    """Delete the leftovers of an interrupted installation."""
    for path in home.iterdir():
        if path.name.startswith(TEMPORARY):
            shutil.rmtree(path, ignore_errors=True)
