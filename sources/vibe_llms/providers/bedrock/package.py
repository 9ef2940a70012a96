"""Credentials of AWS through `botocore`: the environment, shared files, SSO, and roles.

This is the only module that imports the package, when a request is signed. Addresses of metadata
services are asked by the package only, which follows no redirects.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.base.redaction import redact
from vibe_llms.providers.bedrock.signing import AwsIdentity
from vibe_llms.providers.logins import CloudLogin

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


class AwsGrant(Struct, frozen=True):
    """Credentials of AWS, and the region of their profile, which may be empty.

    `loaded` is when credentials without an end were read, on the monotonic clock. It is None for
    others, which the package renews.
    """

    identity: AwsIdentity
    region: str
    loaded: float | None

    @property
    def secrets(self) -> Sequence[str]:
        """Texts that must not be shown."""
        return tuple(filter(None, (self.identity.secret_key, self.identity.token)))

    def lasts(self, seconds: float) -> bool:
        """Return True if the credentials need not be read again."""
        del seconds
        return self.loaded is not None and time.monotonic() - self.loaded < _STATIC_SECONDS


class AwsLogin(CloudLogin[AwsGrant]):
    """Credentials of one profile, or those that the package finds first.

    With `offline`, no server is asked.
    """

    package = "botocore"
    distribution = "botocore"
    extra = "bedrock"
    loggers = ("botocore", "urllib3")

    def __init__(self, provider: str, profile: str, *, offline: bool = False) -> None:
        super().__init__(provider, offline=offline)
        self._profile = profile
        self._session: Any = None
        self._credentials: Any = None

    def load(self) -> None:
        """Import the package."""
        import botocore.exceptions
        import botocore.session  # noqa: F401

    def fetch(self) -> AwsGrant:
        """Return the credentials, renewed if they end soon, and the region of the profile."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            credentials, renewed = self._find()
            frozen = None if credentials is None else credentials.get_frozen_credentials()
            region = self._session.get_config_variable("region") or ""
        except (BotoCoreError, ClientError, OSError, ValueError, RuntimeError) as error:
            self._session = self._credentials = None
            raise self._explain(error) from None
        if frozen is None or not frozen.access_key or not frozen.secret_key:
            raise self.miss(_SEARCHED)
        identity = AwsIdentity(frozen.access_key, frozen.secret_key, frozen.token or "")
        return AwsGrant(identity, region, None if renewed else time.monotonic())

    def _find(self) -> tuple[Any, bool]:
        """Return the credentials, and True if the package renews them."""
        from botocore.session import Session

        if not hasattr(self._credentials, "refresh_needed"):
            self._session = session = Session(profile=self._profile or None)
            if self._offline:
                resolver = session.get_component("credential_provider")
                for name in _ASKING:
                    resolver.remove(name)
            self._credentials = session.get_credentials()
        return self._credentials, hasattr(self._credentials, "refresh_needed")

    def _explain(self, error: Exception) -> ConfigurationError:
        """Return the error for a failure of the package, with what to do about it."""
        from botocore import exceptions

        words = redact(str(error)).rstrip(". ")
        named = f" --profile {self._profile}" if self._profile else ""
        match error:
            case exceptions.ProfileNotFound():
                return ConfigurationError(
                    f"{words}; see ~/.aws/config, AWS_PROFILE, and `profile` of the row",
                    table=f"providers.{self.provider}",
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
        return self.miss(f"the AWS credentials cannot be loaded: {words}; {advice}")
