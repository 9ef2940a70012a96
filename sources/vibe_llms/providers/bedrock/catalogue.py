"""Bedrock's lists of models and inference profiles, converted to our attributes.

Source: `ListFoundationModels` and `ListInferenceProfiles` of `bedrock` (2023-04-20) in
botocore 1.44.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

_PICTURES = ("image", "image/png", "image/jpeg", "image/gif", "image/webp")


class Lifecycle(Struct, rename="camel"):
    """Life of a model."""

    end_of_life_time: str | None = None


class FoundationModel(Struct, rename="camel"):
    """An item of the list of models."""

    model_id: str
    model_name: str | None = None
    provider_name: str | None = None
    input_modalities: list[str] | None = None
    output_modalities: list[str] | None = None
    inference_types_supported: list[str] | None = None
    model_lifecycle: Lifecycle | None = None

    @property
    def speaks(self) -> bool:
        """True if the model answers with text."""
        return "TEXT" in (self.output_modalities or ())

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Reported properties of the model as our attributes."""
        made = " ".join(filter(None, (self.provider_name, self.model_name)))
        cycle = self.model_lifecycle
        reported: dict[str, Any] = {
            "title": made,
            "retires": (cycle.end_of_life_time or "")[:10] if cycle is not None else "",
        }
        if "IMAGE" not in (self.input_modalities or ()):
            reported["accepts"] = []
        return reported


class FoundationModelList(Struct, rename="camel"):
    """The list of models."""

    model_summaries: list[FoundationModel] = []


class ProfileModel(Struct, rename="camel"):
    """A model of a profile, in one region."""

    model_arn: str | None = None


class InferenceProfile(Struct, rename="camel"):
    """An item of the list of inference profiles."""

    inference_profile_id: str
    inference_profile_arn: str | None = None
    inference_profile_name: str | None = None
    models: list[ProfileModel] | None = None
    type: str | None = None

    @property
    def name(self) -> str:
        """Name of the model that the profile is; only profiles of AWS can be named by identity."""
        own = self.type == "APPLICATION" and self.inference_profile_arn
        return own or self.inference_profile_id


class ProfileList(Struct, rename="camel"):
    """One page of the list of inference profiles."""

    inference_profile_summaries: list[InferenceProfile] = []
    next_token: str | None = None


MODELS = msgspec.json.Decoder(FoundationModelList)
PROFILES = msgspec.json.Decoder(ProfileList)


def merge_lists(
    models: Sequence[FoundationModel], profiles: Sequence[InferenceProfile]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the names that can be asked, with their attributes: models on demand, and profiles."""
    speaking = {one.model_id: one for one in models if one.speaks}
    for name, model in speaking.items():
        if "ON_DEMAND" in (model.inference_types_supported or ("ON_DEMAND",)):
            yield name, model.attributes
    for profile in profiles:
        arns = [one.model_arn or "" for one in profile.models or ()]
        found = (speaking.get(arn.rpartition("/")[2]) for arn in arns)
        if (known := next(filter(None, found), None)) is not None:
            yield profile.name, {**known.attributes, "title": profile.inference_profile_name or ""}
