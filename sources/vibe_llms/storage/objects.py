"""Contents in an object store such as S3, by user and hash: `[archive.contents]`.

Credentials come from where other programs of AWS take them: the environment, a web identity, or the
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

from vibe_llms.configuration import ARCHIVE, Configuration, Number, Seconds
from vibe_llms.exceptions import (
    ConfigurationError,
    ContentMissing,
    PackageMissing,
    StorageUnavailable,
)
from vibe_llms.registries import Registry

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Store

CONTENTS = "contents"
_RETRIES = 2
#: With anything else, obstore panics when it is used.
_ENDPOINT = re.compile(r"https?://([\w.-]+|\[[\da-f:.]+\])(:\d{1,5})?(/\S*)?", re.ASCII)
#: Larger objects are sent in parts of this size.
_PART_BYTES = 16 * 1024**2
#: What servers say of themselves, and what the system says of connections.
_REASON = re.compile(r'<Message>(?P<said>[^<]+)|(?:message|error): "(?P<met>[^"]+)"|kind: Timeout')
_KEY = re.compile(r"Object at location (\S+) not found")
#: Where credentials are looked for last: at a service that AWS's machines have.
_MACHINE = re.compile(r"/latest/(api/token|meta-data/)")
_CREDENTIALS = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_RIGHTS = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
#: What to do, by the codes of S3.
_REMEDIES = {
    "NoSuchBucket": f"create it, or correct [{ARCHIVE}.{CONTENTS}]",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "AccessDenied": f"its credentials need {_RIGHTS}",
}
_QUIET_SECONDS = 0.05
#: No content has it.
_NO_HASH = "0" * 64


class ObjectStore(Protocol):
    """Bytes under a user and their hash, for an archive that knows which of them there are.

    Contents smaller than `least_bytes` are not for it. The same hash always means the same bytes,
    so nothing depends on the order of writes or on conditional requests, which some servers ignore.
    Its methods raise `StorageUnavailable` while the store cannot be used.
    """

    least_bytes: int

    def locate(self, user: str, digest: str) -> str:
        """The name of an object, for people."""
        ...

    async def write(self, user: str, digest: str, data: bytes) -> None:
        """Store bytes; returns when they are durable. They may be there already, or damaged."""
        ...

    async def read(self, user: str, digest: str) -> bytes:
        """The bytes; `ContentMissing` if there are none. They are not checked."""
        ...

    async def remove(self, user: str, digests: Sequence[str]) -> None:
        """Delete objects; some may be gone already."""
        ...

    async def survey(self, user: str) -> Mapping[str, int]:
        """The sizes of all objects of a user, by their hashes."""
        ...


ObjectStoreFactory: TypeAlias = Callable[[Configuration, Mapping[str, Any]], ObjectStore]
_REGISTRY: Registry[ObjectStoreFactory] = Registry(ARCHIVE)


def register(name: str, factory: ObjectStoreFactory) -> None:
    """Offer an object store to an `[archive.contents]` table that names the calling module."""
    _REGISTRY.register(name, factory)


def produce_object_store(configuration: Configuration) -> ObjectStore | None:
    """The object store that `[archive.contents]` names, if there is that table."""
    if CONTENTS not in configuration.archive:
        return None
    row = configuration.row(ARCHIVE, CONTENTS)
    return _REGISTRY.access(row)(configuration, row.settings)


class BucketSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys of `[archive.contents]` besides its module.

    Without an `endpoint`, the bucket is one of AWS. Objects are `{prefix}/{user}/{hash}`. Without
    signatures, the store must be open to this machine.
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
        """The name of an object; see `ObjectStore`."""
        return "/".join(filter(None, (self.settings.prefix.strip("/"), user, digest)))

    async def write(self, user: str, digest: str, data: bytes) -> None:
        """Store bytes; see `ObjectStore`."""
        with self._errors():
            store = self._access()
            import obstore

            await obstore.put_async(store, self.locate(user, digest), data, chunk_size=_PART_BYTES)

    async def read(self, user: str, digest: str) -> bytes:
        """The bytes of an object; see `ObjectStore`."""
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
        """The sizes of all objects of a user; see `ObjectStore`."""
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
                # An address without TLS was written by the user.
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
        """Errors of the store within the block become our own."""
        try:
            from obstore.exceptions import BaseError
        except ImportError:
            # What needs it says so.
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

    One that has just handed over a result still wants Python's lock. If Python ends first, it ends
    the thread, and Rust aborts the process, with status 134.
    """
    atexit.register(time.sleep, _QUIET_SECONDS)


def _find_key(text: str) -> str:
    found = _KEY.search(text)
    return found[1] if found else "an object"


def _explain(text: str) -> str:
    """The reason within an error of obstore, which describes it over many lines, and what to do."""
    line = text.partition("\n")[0]
    if _MACHINE.search(line):
        return "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    found = _REASON.search(text)
    if found is None:
        return line.rpartition(" - ")[2]
    reason = found["said"] or found["met"] or "it does not answer in time"
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
            f"{settings.endpoint!r} is no address; write it as https://HOST or http://HOST:PORT",
            table=f"{ARCHIVE}.{CONTENTS}",
            key="endpoint",
        )
    return BucketStore(settings)


register("s3", _produce)
