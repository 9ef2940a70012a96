"""The standard tests of LangChain, for the models that reach the server in its three dialects.

Those of images are left out, because they fetch theirs from the Internet, and those of the mode
`json_mode`, because a script does not read which keys are asked for.
"""

from __future__ import annotations

import os
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

#: Another name of the same model.
OTHER = "gpt-6-astra"
URL, KEY = os.environ["TEST_API_BASE_URL"], "My API Key"


class TestChatCompletions(ChatModelIntegrationTests):
    """`ChatOpenAI` by Chat Completions."""

    model_override_value = OTHER

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        """The class that LangChain's users import."""
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        """What it is made with."""
        return {
            "model": "scripted/demo",
            "base_url": f"{URL}/v1",
            "api_key": KEY,
            "stream_usage": True,
        }


class TestResponses(TestChatCompletions):
    """`ChatOpenAI` by Responses."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        """What it is made with."""
        return {**super().chat_model_params, "use_responses_api": True}


class TestMessages(ChatModelIntegrationTests):
    """`ChatAnthropic` by Messages."""

    model_override_value = OTHER

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        """The class that LangChain's users import."""
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        """What it is made with."""
        return {"model": "scripted/demo", "base_url": URL, "api_key": KEY}
