"""Credentials of AWS through `botocore`: the environment, shared files, SSO, and roles.

This is the only module that imports the package. It is imported when a request is signed, in a
thread, because loading it and asking for credentials block. Addresses of metadata services are
asked by the package only, which follows no redirects.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from vibe_llms.base.exceptions import ConfigurationError, CredentialMissing, PackageMissing
from vibe_llms.base.redaction import redact, remember
from vibe_llms.providers.bedrock.signing import AwsIdentity

PACKAGE = "botocore"
#: Seconds after which credentials without an end are read again: the user may have set others.
_STATIC_SECONDS = 60.0
#: Sources of credentials that ask a server.
_ASKING = (
    *("assume-role", "assume-role-with-web-identity", "sso", "login"),
    *("container-role", "iam-role"),
)
_SEARCHED = (
    "no AWS credentials found in the environment, the files in ~/.aws, SSO, or a role of this "
    "machine; run aws configure or aws sso login, set AWS_PROFILE, or set AWS_BEARER_TOKEN_BEDROCK"
)
_LOADING = threading.local()


class AwsLogin:
    """Credentials of one profile, or those that the package finds first.

    The methods block, so call them in a thread. With `offline`, no server is asked.
    """

    def __init__(self, provider: str, profile: str, *, offline: bool = False) -> None:
        self._provider = provider
        self._profile = profile
        self._offline = offline
        self._lock = threading.Lock()
        self._session: Any = None
        self._credentials: Any = None
        self._read = 0.0

    def check(self) -> None:
        """Raise `PackageMissing` if the package is not installed; import nothing."""
        if self._session is None and find_spec(PACKAGE) is None:
            raise self._miss_package()

    def load(self) -> tuple[AwsIdentity, str]:
        """Return the credentials, renewed if they end soon, and the region of the profile."""
        with self._lock, _quiet():
            try:
                from botocore.exceptions import BotoCoreError, ClientError
            except ImportError as error:
                raise self._miss_package() from error
            try:
                credentials = self._find()
                frozen = None if credentials is None else credentials.get_frozen_credentials()
                region = self._session.get_config_variable("region") or ""
            except (BotoCoreError, ClientError, OSError, ValueError, RuntimeError) as error:
                self._session = self._credentials = None
                raise self._explain(error) from None
        if frozen is None or not frozen.access_key or not frozen.secret_key:
            raise self._miss(_SEARCHED)
        for secret in (frozen.secret_key, frozen.token or ""):
            remember(secret)
        return AwsIdentity(frozen.access_key, frozen.secret_key, frozen.token or ""), region

    def _find(self) -> Any:
        renewed = hasattr(self._credentials, "refresh_needed")
        if self._credentials is not None and (
            renewed or time.monotonic() - self._read < _STATIC_SECONDS
        ):
            return self._credentials
        from botocore.session import Session

        _mute_loggers()
        self._session = session = Session(profile=self._profile or None)
        if self._offline:
            resolver = session.get_component("credential_provider")
            for name in _ASKING:
                resolver.remove(name)
        self._credentials, self._read = session.get_credentials(), time.monotonic()
        return self._credentials

    def _explain(self, error: Exception) -> ConfigurationError:
        """Return the error for a failure of the package, with what to do about it."""
        from botocore import exceptions

        words = redact(str(error)).rstrip(". ")
        named = f" --profile {self._profile}" if self._profile else ""
        match error:
            case exceptions.ProfileNotFound():
                return ConfigurationError(
                    f"{words}; see ~/.aws/config, AWS_PROFILE, and `profile` of the row",
                    table=f"providers.{self._provider}",
                    key="profile",
                )
            case exceptions.SSOError() | exceptions.TokenRetrievalError():
                advice = f"run: aws sso login{named}"
            case exceptions.LoginError():
                advice = f"run: aws login{named}"
            case exceptions.PartialCredentialsError():
                advice = "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            case exceptions.ClientError():
                advice = "may these credentials assume the role?"
            case _:
                advice = "check the environment and the files in ~/.aws"
        return self._miss(f"the AWS credentials cannot be loaded: {words}; {advice}")

    def _miss(self, words: str) -> CredentialMissing:
        return CredentialMissing(words, table=f"providers.{self._provider}", key="credential")

    def _miss_package(self) -> PackageMissing:
        return PackageMissing(
            f'credential = "package" of [providers.{self._provider}]',
            package=PACKAGE,
            command="python -m pip install 'vibe-llms[bedrock]'",
        )


class _LoadingFilter(logging.Filter):
    """Filter that drops the records of a thread that loads credentials.

    The package logs answers of its servers, with new keys that nobody could have remembered, and
    failures that are raised as well.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False while this thread loads credentials."""
        del record
        return not getattr(_LOADING, "active", False)


def _mute_loggers() -> None:
    """Add the filter to the loggers of the package; a filter applies only to its own logger."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in (PACKAGE, "urllib3"):
            logger = logging.getLogger(name)
            if not any(isinstance(one, _LoadingFilter) for one in logger.filters):
                logger.addFilter(_LoadingFilter())


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what the package logs in this thread."""
    _LOADING.active = True
    try:
        yield
    finally:
        _LOADING.active = False
