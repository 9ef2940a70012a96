"""Addresses of rows: `base-url`, with environment variables filled in.

Shipped rows name the variable that the official package reads, such as `OPENAI_BASE_URL`. The
user's own `base-url`, in a file or in `VIBE_LLMS_…`, replaces it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from vibe_llms.base.configuration import VARIABLE, Configuration, fill_variables
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.base.redaction import redact


class Address(Struct, frozen=True):
    """Address of a row's server; `variables` are the environment variables that it is from."""

    url: str
    variables: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the address for display, without a password, and its variables.

        >>> Address("https://gateway.example/v1", ("OPENAI_BASE_URL",)).describe()
        'https://gateway.example/v1 (OPENAI_BASE_URL)'
        """
        origin = f" ({', '.join(self.variables)})" if self.variables else ""
        return redact(self.url) + origin


def find_address(
    text: str,
    provider: str,
    *,
    read: Callable[[str], str] = str,
    environment: Mapping[str, str] | None = None,
) -> Address:
    """Return the address of a `base-url`; `read` normalizes the value of a variable.

    An empty variable counts as unset. Raise `ConfigurationError` if a variable is missing, or is
    not an address.
    """
    environment = os.environ if environment is None else environment
    given = {
        name: value
        for name in _survey_variables(text)
        if (value := environment.get(name, "").strip().strip("\"'").rstrip("/"))
    }
    try:
        url = fill_variables(text, given)
    except KeyError as error:
        raise ConfigurationError(
            f"it uses ${{{error.args[0]}}}, which is not set in the environment; set it",
            table=f"providers.{provider}",
            key="base-url",
        ) from error
    used = tuple(_survey_used(text, given))
    if not used:
        return Address(url)
    path = VARIABLE.sub("\0", text).rpartition("\0")[2]
    if path and url.endswith(path * 2):
        # The variable already contains the path.
        url = url.removesuffix(path)
    url = read(url)
    if not re.match(r"https?://[^/]", url, re.IGNORECASE):
        raise ConfigurationError(
            f"{redact(url)!r} is not an http(s) address; write it as https://host or http://host",
            file="environment",
            key=used[0],
        )
    return Address(url, used)


def find_ignored(
    configuration: Configuration, provider: str, address: Address
) -> tuple[str, str] | None:
    """Return the name and address of a variable that the user's own `base-url` replaces.

    Return None if no such variable is set.
    """
    if not configuration.layers or address.variables:
        return None
    shipped = configuration.layers[0].tree.get("providers", {}).get(provider, {})
    text = shipped.get("base-url", "")
    try:
        usual = find_address(text, provider)
    except ConfigurationError:
        return None
    if not usual.variables or usual.url == address.url.rstrip("/"):
        return None
    return usual.variables[0], usual.url


def name_server(url: str) -> str:
    """Return the address of a server without a user, a password, or a query.

    >>> name_server("https://me:secret@Gateway.example:8080/v1/?key=abc")
    'https://gateway.example:8080/v1'
    """
    try:
        scheme, host, path, _, _ = urlsplit(url)
    except ValueError:
        # The transport reports a wrong address.
        return ""
    host = host.rpartition("@")[2].lower()
    return redact(urlunsplit((scheme, host, path.rstrip("/"), "", "")))


def survey_given(configuration: Configuration) -> Iterator[tuple[str, Address]]:
    """Yield rows with a key whose address is from a variable, without loading their modules."""
    for row in configuration.rows("providers"):
        text = row.settings.get("base-url")
        if not isinstance(text, str) or row.settings.get("credential", "key") == "none":
            continue
        # An invalid address is an error once the row is used.
        with suppress(ConfigurationError):
            address = find_address(text, row.name)
            if address.variables:
                yield row.name, address


def _survey_variables(text: str) -> Iterator[str]:
    for found in VARIABLE.finditer(text):
        yield found[1]
        yield from _survey_variables(found[2] or "")


def _survey_used(text: str, given: Mapping[str, str]) -> Iterator[str]:
    for found in VARIABLE.finditer(text):
        if found[1] in given:
            yield found[1]
        else:
            yield from _survey_used(found[2] or "", given)
