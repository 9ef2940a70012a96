"""Errors of Vertex AI: what Google says of projects, locations and quotas, and what to do then."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from vibe_llms.base.exceptions import (
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
)
from vibe_llms.providers.http_errors import ErrorMap, ErrorObject, Remedy
from vibe_llms.providers.repairs import parse_value

#: Command that logs in.
LOGIN = "gcloud auth application-default login"


#: Source: public reports, such as anthropics/anthropic-sdk-python#963 (2025-06),
#: yym68686/uni-api#41 (2024-11), BerriAI/litellm#18781 (2026-01), NousResearch/hermes-agent#32678
#: (2026-08), and https://cloud.google.com/vertex-ai/generative-ai/docs/error-code-429 (2026-11).
REMEDIES = (
    Remedy(
        r"\blimit: 0(?!\.?\d)",
        "the project's quota for this model is 0: raise it in the Google Cloud console, or use "
        "another location or model",
        PaymentRequired,
    ),
    Remedy(
        r"Please submit a quota increase request",
        "the project's quota for this model may be 0: see Quotas in the Google Cloud console, or "
        "use another location",
    ),
    Remedy(
        r"is not servable in region|not (?:available|supported) in (?:the )?(?:region|location)",
        "set another location in [providers.NAME], such as global",
        ModelUnavailable,
    ),
    Remedy(
        r"not allowed to use Publisher Model",
        "enable the model in Model Garden, in the Google Cloud console",
        ModelUnavailable,
    ),
    Remedy(
        r"Publisher Model .{0,300}not found",
        "enable the model in Model Garden, or set another location in [providers.NAME], such as "
        "global; list the models: vibe-llms models NAME",
        ModelUnavailable,
    ),
    Remedy(
        r"has not been used in project|API .{0,60}is(?: not enabled| disabled)|SERVICE_DISABLED",
        "run: gcloud services enable aiplatform.googleapis.com, then wait some minutes",
    ),
    Remedy(
        r"requires a quota project|does not have required permission to use project",
        "run: gcloud auth application-default set-quota-project PROJECT",
    ),
    Remedy(
        r"Permission '[^']+' denied on resource",
        "is project of [providers.NAME] right? Give the identity the role Vertex AI User, "
        "roles/aiplatform.user",
    ),
    Remedy(
        r"Permission denied on resource project|CONSUMER_INVALID|project .{0,80}not found",
        "is project of [providers.NAME] right? It is the ID of the project, not its title",
    ),
    Remedy(
        r"API keys? (?:are|is) not supported",
        'log in instead: set credential = "package" in [providers.NAME]',
    ),
    Remedy(
        r"requires billing|billing .{0,60}disabled",
        "enable billing for the project",
        PaymentRequired,
    ),
)


class VertexErrors(ErrorMap, frozen=True):
    """The errors of an interface on Vertex AI; Google's own are among them."""

    doubt: str = "is location of the row right, and is base-url right?"

    def parse(self, body: bytes) -> ErrorObject:
        """Parse an error body."""
        return _tell_limit(super().parse(body), body)

    def refine(
        self, kind: type[ProviderError], message: str, provider: str, model: str
    ) -> tuple[type[ProviderError], str]:
        """Return the class of an error, and what to do; without other advice, how to log in."""
        kind, advice = super().refine(kind, message, provider, model)
        if not advice and issubclass(kind, CredentialRefused):
            advice = f" (run: {LOGIN}; or set another key: vibe-llms keys set {provider})"
        return kind, advice


def _tell_limit(error: ErrorObject, body: bytes) -> ErrorObject:
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
