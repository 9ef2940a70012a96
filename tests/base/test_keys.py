"""Secrets that come to be while a program runs: in the keyring, or in the file of keys."""

from __future__ import annotations

from pathlib import Path

import keyring
import pytest
from keyring.errors import KeyringLocked

from vibe_llms.base.credentials import read_keys
from vibe_llms.base.keys import KeyVault


class Ring:
    """A keyring in memory, which can be locked."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.locked = False

    def _require_open(self) -> None:
        if self.locked:
            raise KeyringLocked

    def get_password(self, service: str, name: str) -> str | None:
        self._require_open()
        return self.kept.get((service, name))

    def set_password(self, service: str, name: str, password: str) -> None:
        self._require_open()
        self.kept[service, name] = password

    def delete_password(self, service: str, name: str) -> None:
        self._require_open()
        del self.kept[service, name]


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    ring = Ring()
    for name in ("get_password", "set_password", "delete_password"):
        monkeypatch.setattr(keyring, name, getattr(ring, name))
    return ring


def test_a_keyring_that_works_has_it(ring: Ring, tmp_path: Path) -> None:
    vault = KeyVault(tmp_path / "keys.toml")
    vault.keep("mcp.a", "token")
    assert ring.kept == {("vibe-llms", "mcp.a"): "token"}
    assert not (tmp_path / "keys.toml").exists()
    assert vault.read("mcp.a") == "token"
    vault.keep("mcp.a", "")
    assert vault.read("mcp.a") == ""
    assert not ring.kept


def test_a_keyring_that_does_not_work_leaves_it_to_the_file(ring: Ring, tmp_path: Path) -> None:
    vault = KeyVault(tmp_path / "keys.toml")
    ring.locked = True
    vault.keep("mcp.a", "token")
    assert read_keys(tmp_path / "keys.toml") == {"mcp.a": "token"}
    assert vault.read("mcp.a") == "token"
    # Once it works, the file has it no more.
    ring.locked = False
    vault.keep("mcp.a", "newer")
    assert read_keys(tmp_path / "keys.toml") == {}
    assert vault.read("mcp.a") == "newer"


def test_without_the_package_the_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "keyring", None)
    vault = KeyVault(tmp_path / "keys.toml")
    vault.keep("mcp.a", "token")
    assert vault.read("mcp.a") == "token"
    vault.keep("mcp.a", "")
    assert vault.read("mcp.a") == ""


def test_removing_a_missing_key_is_no_error(ring: Ring, tmp_path: Path) -> None:
    vault = KeyVault(tmp_path / "keys.toml")
    vault.keep("mcp.a", "")
    assert not ring.kept
