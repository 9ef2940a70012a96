"""Errors of Vertex AI: what Google says of projects, locations and quotas, and what to do then."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.exceptions import (
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
)
from vibe_llms.providers.http_errors import ErrorObject
from vibe_llms.providers.repairs import parse_value

#: Command that logs in.
LOGIN = "gcloud auth application-default login"


class _Remedy(Struct, frozen=True):
    """Remedy for an error with certain words; `kind` replaces the class of its status."""

    pattern: re.Pattern[str]
    kind: type[ProviderError] | None
    words: str


def _find(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


#: Source: public reports, such as anthropics/anthropic-sdk-python#963 (2025-06),
#: yym68686/uni-api#41 (2024-11), BerriAI/litellm#18781 (2026-01), NousResearch/hermes-agent#32678
#: (2026-08), and https://cloud.google.com/vertex-ai/generative-ai/docs/error-code-429 (2026-11).
_REMEDIES = (
    _Remedy(
        _find(r"\blimit: 0(?!\.?\d)"),
        PaymentRequired,
        "the project's quota for this model is 0: raise it in the Google Cloud console, or use "
        "another location or model",
    ),
    _Remedy(
        _find(r"Please submit a quota increase request"),
        None,
        "the project's quota for this model may be 0: see Quotas in the Google Cloud console, or "
        "use another location",
    ),
    _Remedy(
        _find(
            r"is not servable in region|not (?:available|supported) in (?:the )?(?:region|location)"
        ),
        ModelUnavailable,
        "set another location in [providers.NAME], such as global",
    ),
    _Remedy(
        _find(r"not allowed to use Publisher Model"),
        ModelUnavailable,
        "enable the model in Model Garden, in the Google Cloud console",
    ),
    _Remedy(
        _find(r"Publisher Model .{0,300}not found"),
        ModelUnavailable,
        "enable the model in Model Garden, or set another location in [providers.NAME], such as "
        "global; list the models: vibe-llms models NAME",
    ),
    _Remedy(
        _find(
            r"has not been used in project|API .{0,60}is(?: not enabled| disabled)|SERVICE_DISABLED"
        ),
        None,
        "run: gcloud services enable aiplatform.googleapis.com, then wait some minutes",
    ),
    _Remedy(
        _find(r"requires a quota project|does not have required permission to use project"),
        None,
        "run: gcloud auth application-default set-quota-project PROJECT",
    ),
    _Remedy(
        _find(r"Permission '[^']+' denied on resource"),
        None,
        "is project of [providers.NAME] right? Give the identity the role Vertex AI User, "
        "roles/aiplatform.user",
    ),
    _Remedy(
        _find(r"Permission denied on resource project|CONSUMER_INVALID|project .{0,80}not found"),
        None,
        "is project of [providers.NAME] right? It is the ID of the project, not its title",
    ),
    _Remedy(
        _find(r"API keys? (?:are|is) not supported"),
        None,
        'log in instead: set credential = "package" in [providers.NAME]',
    ),
    _Remedy(
        _find(r"requires billing|billing .{0,60}disabled"),
        PaymentRequired,
        "enable billing for the project",
    ),
)


def refine(
    kind: type[ProviderError], message: str, provider: str
) -> tuple[type[ProviderError], str]:
    """Return the class of an error of Vertex AI, and what to do; see `ErrorMap.refine`."""
    if issubclass(kind, RequestRefused | CredentialRefused | ModelUnavailable | RateLimited):
        for one in _REMEDIES:
            if one.pattern.search(message):
                words = one.words.replace("NAME", provider)
                return one.kind or kind, f" ({words})"
    if issubclass(kind, CredentialRefused):
        return kind, f" (run: {LOGIN}; or set another key: vibe-llms keys set {provider})"
    return kind, ""


def tell_limit(error: ErrorObject, body: bytes) -> ErrorObject:
    """Return an error whose message names a quota of 0, which may be only in its details."""
    try:
        value: Any = parse_value(body)
    except ValueError:
        return error
    value = value[0] if isinstance(value, list) and value else value
    told = value.get("error") if isinstance(value, dict) else None
    details = told.get("details") if isinstance(told, dict) else None
    for detail in details if isinstance(details, list) else ():
        metadata = detail.get("metadata") if isinstance(detail, dict) else None
        if isinstance(metadata, dict) and metadata.get("quota_limit_value") == "0":
            return replace(error, message=f"{error.message} (limit: 0)")
    return error


def doubt_location(error: ProviderError) -> ProviderError:
    """Return an error that names the location, if a web page was the answer to a path."""
    if not isinstance(error, ReplyMalformed) or error.status != 404:
        return error
    words = str(error).removeprefix(f"{error.provider}: ")
    words = words.replace(
        "is base-url right?", "is location of the row right, and is base-url right?"
    )
    return ReplyMalformed(words, provider=error.provider, status=error.status)
