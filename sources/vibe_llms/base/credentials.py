"""Finds keys and removes them from log records.

Keys are searched for in this order: the caller, the environment variables of the row, the command
of the row, the system's keyring if the package `keyring` is installed, the key file.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import traceback
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from vibe_llms.base.exceptions import ConfigurationError, CredentialMissing
from vibe_llms.base.files import UntrustedFile, parse_toml, read_trusted
from vibe_llms.base.redaction import redact, remember

KEYRING_SERVICE = "vibe-llms"
_COMMAND_SECONDS = 30
#: Child loggers that are created at the first request.
_CONNECTIONS = ("connection", "http11", "http2", "proxy", "socks")
_LATE_LOGGERS = {"httpcore": _CONNECTIONS, "httpcore2": _CONNECTIONS}


class Secret:
    """A key that prints as `[secret]` and is removed from all errors and log records."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text
        remember(text)

    def reveal(self) -> str:
        """Return the key itself, only to build a header."""
        return self._text

    def __repr__(self) -> str:
        return "[secret]"


class Credential(Struct, frozen=True):
    """The sources of a row's key, which are searched only on demand.

    `table` is the table of the row, for errors.
    """

    row: str
    kind: str = "key"
    variable: str | tuple[str, ...] = ""
    command: tuple[str, ...] = ()
    keys_file: Path | None = None
    given: Secret | None = None
    table: str = "providers"

    def find(self) -> Secret:
        """Return the key; raises `CredentialMissing` with instructions if there is none."""
        secret = self.search()
        if secret is None:
            places = [f"set {self._variables[0]}"] if self._variables else []
            places += [f"run: vibe-llms keys set {self.row}"]
            raise CredentialMissing(
                f"no API key for {self.row!r}; {' or '.join(places)}",
                table=f"{self.table}.{self.row}",
            )
        return secret

    def search(self) -> Secret | None:
        """Return the key, or None."""
        return (
            self.given
            or self._from_environment()
            or self._from_command()
            or self._from_keyring()
            or self._from_file()
        )

    def present(self) -> bool:
        """Return True if a key is available, without running a command."""
        if self.kind != "key":
            return self.kind == "none"
        return bool(
            self.given
            or self._from_environment()
            or self.command
            or self._from_file()
            or self._from_keyring()
        )

    @property
    def _variables(self) -> tuple[str, ...]:
        several = self.variable if isinstance(self.variable, tuple) else (self.variable,)
        return tuple(filter(None, several))

    def _from_environment(self) -> Secret | None:
        for variable in self._variables:
            if text := os.environ.get(variable, ""):
                return check_key(text, f"the environment variable {variable}")
        return None

    def _from_command(self) -> Secret | None:
        if not self.command:
            return None
        place = {"table": f"{self.table}.{self.row}", "key": "api-key-command"}
        try:
            done = subprocess.run(
                self.command, capture_output=True, timeout=_COMMAND_SECONDS, check=False
            )
        except OSError as error:
            raise CredentialMissing(
                f"the command {self.command[0]!r} cannot be run: {error.strerror}", **place
            ) from error
        except subprocess.TimeoutExpired as error:
            raise CredentialMissing(
                f"the command {self.command[0]!r} did not finish in {_COMMAND_SECONDS} s", **place
            ) from error
        if done.returncode != 0:
            raise CredentialMissing(
                f"the command {self.command[0]!r} failed with status {done.returncode}", **place
            )
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        return check_key(lines[0] if lines else "", f"the output of {self.command[0]!r}")

    def _from_keyring(self) -> Secret | None:
        try:
            import keyring
            from keyring.errors import KeyringError
        except ImportError:
            return None
        try:
            text = keyring.get_password(KEYRING_SERVICE, self.row)
        except KeyringError:
            return None
        return check_key(text, "the system's keyring") if text else None

    def _from_file(self) -> Secret | None:
        if self.keys_file is None:
            return None
        text = read_keys(self.keys_file).get(self.row)
        return check_key(text, str(self.keys_file)) if text else None


def check_key(text: str, place: str) -> Secret:
    """Return a key without surrounding white space.

    Raises `ConfigurationError` if it cannot be a key. Characters that a header cannot contain are
    refused here, so no later error quotes them.
    """
    key = text.strip()
    if not key or not re.fullmatch(r"[\x21-\x7e]+", key):
        what = "is empty" if not key else "contains white space or invalid characters"
        raise ConfigurationError(f"the key from {place} {what}")
    return Secret(key)


def read_keys(path: Path) -> Mapping[str, str]:
    """Return the keys in the key file by row name; raises an error if other users can read it."""
    try:
        keys = parse_toml(read_trusted(path, private=True))
    except FileNotFoundError:
        return {}
    except UntrustedFile as error:
        raise ConfigurationError(str(error.strerror), file=str(error.filename)) from error
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", file=str(path)) from error
    except ValueError as error:
        raise ConfigurationError(f"not valid TOML: {error}", file=str(path)) from error
    return {name: key for name, key in keys.items() if isinstance(key, str)}


class RedactingFilter(logging.Filter):
    """A filter of log records that removes keys and escapes text that no file can contain."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record in place, and return True."""
        try:
            record.msg, record.args = _clear(record.getMessage()), ()
        except (TypeError, ValueError):
            # The arguments do not fit the format; the handler reports this.
            record.msg, record.args = _clear(str(record.msg)), ()
        if record.exc_info and record.exc_info[0] is not None:
            trace = record.exc_text or "".join(traceback.format_exception(*record.exc_info))
            if (cleared := _clear(trace)) != trace:
                record.exc_text, record.exc_info = cleared, None
        return True


def _clear(text: str) -> str:
    """Return a text without keys, and escape lone surrogates, which a log file cannot contain."""
    return redact(text).encode("utf-8", "backslashreplace").decode()


def get_logger(name: str) -> logging.Logger:
    """Return a logger of this library whose records never contain a key.

    Nothing is printed unless the calling program configures logging.
    """
    top = logging.getLogger(name.partition(".")[0])
    if not top.handlers:
        top.addHandler(logging.NullHandler())
    guard_loggers(name)
    return logging.getLogger(name)


def guard_loggers(*names: str) -> None:
    """Remove keys from the records of these loggers and all existing ones below them.

    Use it for packages that receive a key. A filter applies only to its own logger, so call this
    after the package is imported.
    """
    below = tuple(f"{name}." for name in names)
    known = [name for name in list(logging.root.manager.loggerDict) if name.startswith(below)]
    late = [f"{name}.{part}" for name in names for part in _LATE_LOGGERS.get(name, ())]
    for name in (*names, *known, *late):
        logger = logging.getLogger(name)
        if not any(isinstance(one, RedactingFilter) for one in logger.filters):
            logger.addFilter(RedactingFilter())
