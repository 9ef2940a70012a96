"""The pins of a row: exact versions of packages, their hashes, and their source.

Nothing is installed or loaded here.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.registries import Row

INDEX = "https://pypi.org/simple"
_TABLE = "providers"
_KEY = "install"
_OURSELVES = "vibe-llms"
_REQUIREMENT = r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][\w.!+-]*)"
_HASH = r"sha256:[0-9a-f]{64}"
_LONGEST_SLUG = 40


class InstallSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Settings of `[providers.NAME.install]`: the packages of a row's module.

    `requirements` lists all needed packages that are not this library's, each as `name==version`
    with the hashes of its wheels. `index` is the address of a package index, or a folder of wheels.
    """

    requirements: dict[str, tuple[str, ...]]
    index: str = INDEX


class Plugin(Struct, frozen=True):
    """The packages of a row; `folder` is their folder after installation."""

    row: str
    module: str
    requirements: Mapping[str, tuple[str, ...]]
    index: str
    folder: Path

    @property
    def packages(self) -> Path:
        """The folder of the plugin's modules."""
        return self.folder / "packages"

    @property
    def name(self) -> str:
        """The requirements in one line."""
        return ", ".join(self.requirements)

    @property
    def pinned(self) -> str:
        """The requirements with their hashes, as the installers read them."""
        return "".join(
            " ".join([requirement, *(f"--hash={digest}" for digest in sorted(hashes))]) + "\n"
            for requirement, hashes in sorted(self.requirements.items())
        )

    @property
    def remedy(self) -> str:
        """The command that installs it."""
        return f"vibe-llms plugins install {self.row}"


def read_plugin(configuration: Configuration, row: Row, settings: InstallSettings) -> Plugin:
    """Return a row's plugin; raise `ConfigurationError` if something is wrong or not pinned.

    Rows with the same pins share a folder. Each version of Python has its own.
    """
    path = (_TABLE, row.name, _KEY, "requirements")
    if not settings.requirements:
        raise configuration.error("it must name a package", *path)
    ours = set(survey_own_packages())
    seen: set[str] = set()
    for requirement, hashes in settings.requirements.items():
        found = re.fullmatch(_REQUIREMENT, requirement)
        if found is None:
            raise configuration.error("write it as name==version, one version", *path, requirement)
        name = normalize(found[1])
        if name in seen:
            raise configuration.error(f"{name!r} is listed twice", *path, requirement)
        seen.add(name)
        if name in ours:
            raise configuration.error(
                f"{name!r} is a package of this library, which a plugin must not replace; "
                "leave it out, and install the extra of vibe-llms that contains it",
                *path,
                requirement,
            )
        if not hashes or not all(re.fullmatch(_HASH, digest) for digest in hashes):
            raise configuration.error(
                "each version needs the hashes of its wheels, written sha256: and 64 digits; "
                "`pip hash` and `uv pip compile --generate-hashes` print them",
                *path,
                requirement,
            )
    top = row.module.partition(".")[0]
    if top in survey_own_modules():
        raise configuration.error(
            f"{top!r} is a module of Python or of this library, which a plugin must not replace",
            _TABLE,
            row.name,
            "module",
        )
    if problem := _find_fault(settings.index):
        raise configuration.error(problem, _TABLE, row.name, _KEY, "index")
    folder = survey_folder(configuration.places.data)
    requirements = {key: tuple(sorted(settings.requirements[key])) for key in settings.requirements}
    seed = [sys.implementation.cache_tag, sys.platform, top, sorted(requirements.items())]
    import hashlib

    digest = hashlib.sha256(msgspec.json.encode(seed)).hexdigest()
    slug = re.sub(r"[^a-z0-9]+", "-", top.lower())[:_LONGEST_SLUG].strip("-")
    return Plugin(row.name, row.module, requirements, settings.index, folder / f"{slug}-{digest}")


def survey_folder(data: Path) -> Path:
    """Return the folder of all plugins, inside the user's data folder."""
    return data / "plugins"


def survey_own_modules() -> frozenset[str]:
    """Return the top-level modules that no plugin may replace: Python's and this library's."""
    names = {package.replace("-", "_") for package in survey_own_packages()}
    return frozenset({*sys.stdlib_module_names, "__main__", "vibe_llms", *names})


def survey_own_packages() -> Iterator[str]:
    """Yield the packages that this library consists of or can use."""
    from importlib.metadata import PackageNotFoundError, requires

    yield _OURSELVES
    try:
        declared = requires(_OURSELVES) or []
    except PackageNotFoundError:
        # The library runs from its sources, which do not declare its packages.
        return
    for line in declared:
        name = re.match(r"[A-Za-z0-9._-]+", line)
        if name is not None and not re.search(r"extra == .dev.", line):
            yield normalize(name[0])


def normalize(name: str) -> str:
    """Return a package's name as indexes compare it. Source: PEP 503.

    >>> normalize("Some_Package.Name")
    'some-package-name'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _find_fault(index: str) -> str:
    if os.path.isabs(index):
        return ""
    try:
        address = urlsplit(index)
    except ValueError:
        return "it is not a URL"
    if address.scheme not in ("http", "https") or not address.hostname:
        return "it must be an http(s) address, or the absolute path of a folder of wheels"
    if address.username is not None or address.password is not None:
        return "addresses are shown to users, so they must not contain a user name or password"
    return ""
