"""Object stores such as S3 for contents, by user and hash: `[archive.contents]`.

Credentials come from the usual sources of AWS programs: the environment, a web identity, or the
machine.
"""

from __future__ import annotations

import atexit
import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias

from msgspec import Meta, Struct

from vibe_llms.base.configuration import ARCHIVE, Configuration, Number, Seconds
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ContentMissing,
    PackageMissing,
    StorageUnavailable,
)
from vibe_llms.base.registries import Registry

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Store

CONTENTS = "contents"
_RETRIES = 2
#: obstore panics at its first use if the endpoint has another form.
_ENDPOINT = re.compile(r"https?://([\w.-]+|\[[\da-f:.]+\])(:\d{1,5})?(/\S*)?", re.ASCII)
#: Bytes per part; larger objects are sent in several parts.
_PART_BYTES = 16 * 1024**2
#: Reason for a failure, as the server or the system reports it.
_REASON = re.compile(r'<Message>(?P<said>[^<]+)|(?:message|error): "(?P<met>[^"]+)"|kind: Timeout')
_KEY = re.compile(r"Object at location (\S+) not found")
#: Last source of credentials: the metadata service of AWS machines.
_MACHINE = re.compile(r"/latest/(api/token|meta-data/)")
_CREDENTIALS = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_RIGHTS = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
#: Remedies by S3 error code.
_REMEDIES = {
    "NoSuchBucket": f"create it, or correct [{ARCHIVE}.{CONTENTS}]",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "AccessDenied": f"its credentials need {_RIGHTS}",
}
_QUIET_SECONDS = 0.05
#: Hash that no content has.
_NO_HASH = "0" * 64


class ObjectStore(Protocol):
    """Store of bytes by user and hash, for an archive that keeps its own list of them.

    Contents smaller than `least_bytes` are kept elsewhere. The same hash always means the same
    bytes, so nothing depends on the order of writes or on conditional requests, which some servers
    ignore. Methods raise `StorageUnavailable` while the store cannot be used.
    """

    least_bytes: int

    def locate(self, user: str, digest: str) -> str:
        """Return the name of an object for people to read."""
        ...

    async def write(self, user: str, digest: str, data: bytes) -> None:
        """Store bytes durably. They may already be stored, intact or damaged."""
        ...

    async def read(self, user: str, digest: str) -> bytes:
        """Return the unchecked bytes, or raise `ContentMissing`."""
        ...

    async def remove(self, user: str, digests: Sequence[str]) -> None:
        """Delete objects. Some may already be gone."""
        ...

    async def survey(self, user: str) -> Mapping[str, int]:
        """Return the sizes of all objects of a user, keyed by hash."""
        ...


ObjectStoreFactory: TypeAlias = Callable[[Configuration, Mapping[str, Any]], ObjectStore]
_REGISTRY: Registry[ObjectStoreFactory] = Registry(ARCHIVE)


def register(name: str, factory: ObjectStoreFactory) -> None:
    """Offer an object store to an `[archive.contents]` table that names the calling module."""
    _REGISTRY.register(name, factory)


def produce_object_store(configuration: Configuration) -> ObjectStore | None:
    """Return the object store that `[archive.contents]` names, or `None` without that table."""
    if CONTENTS not in configuration.archive:
        return None
    row = configuration.row(ARCHIVE, CONTENTS)
    return _REGISTRY.access(row)(configuration, row.settings)


class BucketSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of `[archive.contents]` besides its module.

    Without an `endpoint`, the bucket is on AWS. Objects are named `{prefix}/{user}/{hash}`. With
    `skip_signature`, the store must be open to this machine.
    """

    bucket: Annotated[str, Meta(min_length=1)]
    prefix: str = "vibe-llms"
    endpoint: str = ""
    region: str = ""
    least_bytes: Number = 65536
    timeout_seconds: Seconds = 30.0
    skip_signature: bool = False


class BucketStore:
    """A bucket of S3, or of a store with the same interface."""

    def __init__(self, settings: BucketSettings) -> None:
        self.settings = settings
        self.least_bytes = settings.least_bytes
        self._store: S3Store | None = None

    def locate(self, user: str, digest: str) -> str:
        """Return the name of an object; see `ObjectStore`."""
        return "/".join(filter(None, (self.settings.prefix.strip("/"), user, digest)))

    async def write(self, user: str, digest: str, data: bytes) -> None:
        """Store bytes; see `ObjectStore`."""
        with self._errors():
            store = self._access()
            import obstore

            await obstore.put_async(store, self.locate(user, digest), data, chunk_size=_PART_BYTES)

    async def read(self, user: str, digest: str) -> bytes:
        """Return the bytes of an object; see `ObjectStore`."""
        with self._errors():
            store = self._access()
            import obstore

            found = await obstore.get_async(store, self.locate(user, digest))
            return bytes(await found.bytes_async())

    async def remove(self, user: str, digests: Sequence[str]) -> None:
        """Delete objects; see `ObjectStore`."""
        with self._errors():
            store = self._access()
            import obstore

            await obstore.delete_async(store, [self.locate(user, digest) for digest in digests])

    async def survey(self, user: str) -> Mapping[str, int]:
        """Return the sizes of all objects of a user; see `ObjectStore`."""
        with self._errors():
            store = self._access()
            import obstore

            found = await obstore.list(store, self.locate(user, "")).collect_async()
        return {one["path"].rpartition("/")[2]: one["size"] for one in found}

    def _access(self) -> S3Store:
        if self._store is None:
            try:
                from obstore.store import S3Store
            except ImportError as error:
                raise PackageMissing(
                    "an object store", package="obstore", command='pip install "vibe-llms[s3]"'
                ) from error
            _end_quietly()
            settings = self.settings
            options: ClientConfig = {
                # The user wrote the address without TLS, so allow it.
                "allow_http": settings.endpoint.startswith("http://"),
                "timeout": timedelta(seconds=settings.timeout_seconds),
            }
            config: S3Config = {"bucket": settings.bucket}
            if settings.endpoint:
                config["endpoint"] = settings.endpoint
            if settings.region:
                config["region"] = settings.region
            self._store = S3Store(
                config=config,
                client_options=options,
                retry_config={
                    "max_retries": _RETRIES,
                    "retry_timeout": timedelta(seconds=settings.timeout_seconds),
                },
                skip_signature=settings.skip_signature,
            )
        return self._store

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert the store's errors within the block to this library's errors."""
        try:
            from obstore.exceptions import BaseError
        except ImportError:
            # `_access` raises the error for a missing package.
            yield
            return
        try:
            yield
        except (BaseError, OSError) as error:
            text = str(error)
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
                raise ContentMissing(
                    f"a message refers to {_find_key(text)}, which is not in the bucket "
                    f"{self.settings.bucket!r}; restore it from a backup",
                    lost=True,
                ) from error
            settings = self.settings
            place = f" at {settings.endpoint}" if settings.endpoint else ""
            raise StorageUnavailable(
                f"the bucket {settings.bucket!r}{place} cannot be used now: {_explain(text)}"
            ) from error


@functools.cache
def _end_quietly() -> None:
    """Let the threads of obstore end before Python does.

    A thread that just delivered a result still needs Python's lock. If Python ends first, it ends
    the thread, and Rust aborts the process with status 134.
    """
    atexit.register(time.sleep, _QUIET_SECONDS)


def _find_key(text: str) -> str:
    found = _KEY.search(text)
    return found[1] if found else "an object"


def _explain(text: str) -> str:
    """Return the reason from obstore's error, which spans many lines, and remedies."""
    line = text.partition("\n")[0]
    if _MACHINE.search(line):
        return "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    found = _REASON.search(text)
    if found is None:
        return line.rpartition(" - ")[2]
    reason = found["said"] or found["met"] or "it did not answer in time"
    remedies = [remedy for code, remedy in _REMEDIES.items() if f"<Code>{code}<" in text]
    return "; ".join([reason.removesuffix("."), *remedies])


async def check_objects(objects: ObjectStore) -> None:
    """Raise `StorageUnavailable` if an object store cannot be used now."""
    with suppress(ContentMissing):
        await objects.read("", _NO_HASH)


def _produce(configuration: Configuration, values: Mapping[str, Any]) -> BucketStore:
    settings = configuration.read(BucketSettings, values, ARCHIVE, CONTENTS)
    if settings.endpoint and not _ENDPOINT.fullmatch(settings.endpoint):
        raise ConfigurationError(
            f"{settings.endpoint!r} is not an address; write it as https://HOST or "
            "http://HOST:PORT",
            table=f"{ARCHIVE}.{CONTENTS}",
            key="endpoint",
        )
    return BucketStore(settings)


register("s3", _produce)
