"""Amazon Bedrock, through its Converse interface."""

from vibe_llms.providers.bedrock.client import BedrockProvider
from vibe_llms.providers.registry import register

register("bedrock", BedrockProvider)
