# ruff: noqa: E501 - the sentences are those that servers send
"""The sentences of servers that have no code for what they say."""

from __future__ import annotations

import json

import pytest

from vibe_llms.base.exceptions import (
    ContextOverflow,
    ModelUnavailable,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
)
from vibe_llms.providers.anthropic.errors import ERRORS as ANTHROPIC
from vibe_llms.providers.error_words import find_kind, find_overflow, find_wait
from vibe_llms.providers.http_errors import ErrorMap, find_error, read_object
from vibe_llms.providers.ollama.errors import ERRORS as OLLAMA
from vibe_llms.providers.openai.errors import ERRORS as OPENAI

#: By server, with the tokens and the limit that it names.
OVERFLOWS: dict[str, tuple[str, int | None, int | None]] = {
    "Anthropic": (
        "prompt is too long: 213462 tokens > 200000 maximum",
        213462,
        200000,
    ),
    "Anthropic, with max_tokens": (
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again",
        210000,
        200000,
    ),
    "Amazon Bedrock": (
        "Input is too long for requested model.",
        None,
        None,
    ),
    "Amazon Bedrock, Titan": (
        "Too many input tokens. Max input tokens: 8192, request input token count: 9000",
        9000,
        8192,
    ),
    "OpenAI": (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 10000 tokens. Please reduce the length of the messages.",
        10000,
        8192,
    ),
    "OpenAI, Responses": (
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        None,
        None,
    ),
    "LiteLLM": (
        "Requested token count exceeds the model's maximum context length of 131072 tokens.",
        None,
        131072,
    ),
    "LiteLLM, its class": (
        "litellm.ContextWindowExceededError: oops",
        None,
        None,
    ),
    "Novita": (
        "Input length (265330) exceeds model's maximum context length (262144).",
        265330,
        262144,
    ),
    "Gemini": (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        1196265,
        1048575,
    ),
    "xAI": (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        537812,
        131072,
    ),
    "Groq": (
        "Please reduce the length of the messages or completion.",
        None,
        None,
    ),
    "Cerebras": (
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
        9000,
        8192,
    ),
    "OpenRouter": (
        "This endpoint's maximum context length is 200000 tokens. However, you requested about 250000 tokens (200000 of text input, 50000 in the output).",
        250000,
        200000,
    ),
    "Poolside": (
        "Input length 300000 exceeds the maximum allowed input length of 262144 tokens.",
        300000,
        262144,
    ),
    "Together": (
        "The input (140000 tokens) is longer than the model's context length (131072 tokens).",
        140000,
        131072,
    ),
    "TGI": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 512 `max_new_tokens`",
        9000,
        8193,
    ),
    "TGI, input alone": (
        "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000",
        5000,
        4095,
    ),
    "GitHub Copilot": (
        "prompt token count of 130000 exceeds the limit of 128000",
        130000,
        128000,
    ),
    "llama.cpp": (
        "request (19185 tokens) exceeds the available context size (16384 tokens), try increasing it",
        19185,
        16384,
    ),
    "llama.cpp, older": (
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        None,
        None,
    ),
    "llama-cpp-python": (
        "Requested tokens (5000) exceed context window of 4096",
        5000,
        4096,
    ),
    "LM Studio": (
        "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length, or provide a shorter input",
        None,
        None,
    ),
    "LM Studio, older": (
        "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.",
        9000,
        4096,
    ),
    "LM Studio, n_keep": (
        "Cannot truncate prompt with n_keep (9000) >= n_ctx (4096)",
        9000,
        4096,
    ),
    "LM Studio, midway": (
        "Reached context length of 4096 tokens with model (arch: qwen) that does not currently support mid-generation context overflow",
        None,
        4096,
    ),
    "MiniMax": (
        "invalid params, context window exceeds limit (2013)",
        None,
        None,
    ),
    "Kimi": (
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
        291351,
        262144,
    ),
    "Mistral": (
        "Prompt contains 140000 tokens and 0 draft tokens, too large for model with 131072 maximum context length",
        140000,
        131072,
    ),
    "DS4": (
        "Prompt has 70000 tokens, but the configured context size is 65536 tokens",
        70000,
        65536,
    ),
    "DashScope": (
        "InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
        None,
        129024,
    ),
    "SGLang": (
        "Input length (265330 tokens) exceeds the maximum allowed length (262144 tokens). Use a shorter input or enable --allow-auto-truncate.",
        265330,
        262144,
    ),
    "Fireworks": (
        "The prompt is too long: 140000, model maximum context length: 131071",
        140000,
        131071,
    ),
    "Ollama": (
        "the input length exceeds the context length",
        None,
        None,
    ),
    "Ollama, cloud": (
        "prompt too long; exceeded max context length by 5000 tokens",
        None,
        None,
    ),
    "Ollama, available": (
        "the prompt is longer than the context length currently available",
        None,
        None,
    ),
    "vLLM": (
        "This model's maximum context length is 262144 tokens. However, you requested 0 output tokens and your prompt contains at least 262145 input tokens, for a total of at least 262145 tokens.",
        262145,
        262144,
    ),
    "vLLM, decoder": (
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens.",
        5000,
        4096,
    ),
    "vLLM, validation": (
        "You passed 4097 input tokens and requested 1 output tokens. However, the model's context length is only 4096 tokens",
        4097,
        4096,
    ),
    "z.ai": (
        "Prompt exceeds max length",
        None,
        None,
    ),
    "Cohere": (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000. Try using a shorter prompt.",
        5000,
        4081,
    ),
    "MLX": (
        "Prompt too long: 40000 tokens exceeds max context window of 32768 tokens",
        40000,
        32768,
    ),
    "TabbyAPI": (
        "Prompt length 9000 is greater than max_seq_len 8192",
        9000,
        8192,
    ),
    "NIM": (
        "The sum of prompt length (9000.0) and query length should not exceed max_num_tokens (8192)",
        9000,
        8192,
    ),
    "TensorRT-LLM": (
        "Prompt length (9000) exceeds maximum input length (8192). Set log level to info",
        9000,
        8192,
    ),
    "Cloudflare": (
        "The estimated number of input and maximum output tokens (40000) exceeded this model context window limit (32768).",
        40000,
        32768,
    ),
    "Doubao": (
        "Total tokens of image and text exceed max message tokens. Request id: 1",
        None,
        None,
    ),
    "SambaNova": (
        "Requested total tokens 9000 exceeds model maximum context length 8192",
        9000,
        8192,
    ),
    "Zhipu": (
        "请求的tokens数量超过模型的上下文长度",
        None,
        None,
    ),
    "vLLM, images": (
        "The prompt (total length 40000) is too long to fit into the model (context length 32768). Make sure that `max_model_len` is no smaller than the number of text tokens plus multimodal tokens.",
        40000,
        32768,
    ),
    "vLLM, without a reply": (
        "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens. Please reduce the length of the input messages.",
        5000,
        4096,
    ),
    "vLLM, a reply that fills the context": (
        "'max_tokens' or 'max_completion_tokens' is too large: 20000. This model's maximum context length is 16384 tokens and your request has 1000 input tokens (20000 > 16384 - 1000).",
        1000,
        16384,
    ),
    "llama.cpp, without the tokens": (
        "the request exceeds the available context size (4096 tokens), try increasing it",
        None,
        4096,
    ),
    "OpenAI, with functions": (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 133054 tokens (132550 in the messages, 504 in the functions). Please reduce the length of the messages or functions.",
        133054,
        128000,
    ),
    "watsonx": (
        "Invalid input argument for Model 'm': the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model",
        5000,
        4096,
    ),
    "Databricks": (
        "prompt token count (140000) cannot exceed 128000. Please shorten your prompt",
        140000,
        128000,
    ),
    "any server, characters": (
        "The input text length 30000 exceeds the maximum of 20000 characters",
        None,
        None,
    ),
    "any server": (
        "context_length_exceeded",
        None,
        None,
    ),
    "any server, a word": (
        "token limit exceeded for this model",
        None,
        None,
    ),
}
#: What is too long here is not the prompt, or it is not too long for the model.
OTHERS = (
    "Rate limit reached for m on tokens per min (TPM): Limit 10000, Used 9000, Requested 2000.",
    "ThrottlingException: Too many tokens, please wait before trying again.",
    "max_tokens is too large: 100000. This model supports at most 4096 completion tokens",
    "Invalid 'messages': array too long. Expected an array with maximum length 2048",
    "Input image is too large",
    "description is too long, maximum 1024",
    "image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
    "You exceeded your current quota",
    "tool name exceeds maximum length of 64",
    "string too long. Expected a string with maximum length 10485760",
    "model runner has unexpectedly stopped",
    "The number of input images exceeds the maximum allowed for this model (16).",
    "Image input is too large.",
    "metadata: input value exceeds max length 512",
    "prompt parameter temperature exceeds maximum allowed value",
    "The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value that is lower than 4096.",
    "The requested number of output tokens 65536 exceeds the maximum of 32768 for this model",
    "number of output tokens exceeds the maximum allowed: 8192",
    "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the `context_window` for this model",
    "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for m",
    "Daily tokens limit exceeded: 500000 tokens, limit 500000",
    "Request payload size exceeds the limit: 20971520 bytes.",
)


@pytest.mark.parametrize("server", OVERFLOWS)
def test_a_prompt_that_is_too_long_is_known_by_the_words_of_its_server(server: str) -> None:
    message, tokens, limit = OVERFLOWS[server]
    assert find_overflow(message) == (tokens, limit)


@pytest.mark.parametrize("message", OTHERS)
def test_other_words_are_no_overflow(message: str) -> None:
    assert find_overflow(message) is None


@pytest.mark.parametrize("errors", [OPENAI, ANTHROPIC, OLLAMA, ErrorMap()])
@pytest.mark.parametrize("status", [400, 500, None])
def test_every_provider_knows_the_words_in_bodies_and_in_streams(
    errors: ErrorMap, status: int | None
) -> None:
    body = json.dumps({"error": {"message": OVERFLOWS["Together"][0]}}).encode()
    if status is None:
        error = errors.produce("row", errors.parse(body))
    else:
        error = errors.read("row", status, {}, body)
    assert type(error) is ContextOverflow
    assert (error.tokens, error.limit) == (140000, 131072)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("No models loaded. Please load a model in the developer page.", ModelUnavailable),
        ("Failed to load model: unknown architecture", ModelUnavailable),
        ("The model `m` has been decommissioned and is no longer supported", ModelUnavailable),
        ("The model `m` does not exist or you do not have access to it.", ModelUnavailable),
        ("model 'm' not found, try pulling it first", ModelUnavailable),
        ("m is not a valid model ID", ModelUnavailable),
        ('Error rendering prompt with jinja template: "Unknown test: sequence".', RequestRefused),
        ("Conversation roles must alternate user/assistant/user/assistant/...", RequestRefused),
        ("No user query found in messages.", RequestRefused),
        ("Failed to parse input at pos 184", ReplyMalformed),
    ],
)
def test_what_fails_each_time_is_never_called_overloaded(
    message: str, kind: type[ProviderError]
) -> None:
    for errors in (OPENAI, ANTHROPIC, ErrorMap()):
        for status in (None, 500):
            error = errors.produce("row", read_object({"message": message}), status=status)
            assert type(error) is kind
            assert message in str(error)
            assert "later" not in str(error)


@pytest.mark.parametrize(
    "message",
    [
        "Invalid schema for response_format 'AnswerModel': 'int' is not valid under any of the given schemas.",
        "Tool choice 'ask_model' not found in 'tools' parameter.",
        "messages[3]: invalid tool call arguments: not JSON",
        "Failed to parse message content at messages[0]",
    ],
)
def test_words_about_a_wrong_request_refuse_it(message: str) -> None:
    assert type(OPENAI.produce("row", read_object(message), status=400)) is RequestRefused


def test_a_model_that_wrote_no_call_is_told_by_its_code() -> None:
    told = {"message": "Failed to call a function.", "code": "tool_use_failed"}
    assert type(OPENAI.produce("row", read_object(told), status=400)) is ReplyMalformed


def test_a_code_says_better_than_words_what_is_too_large() -> None:
    told = {"message": "Your input is too large.", "code": "image_too_large"}
    assert type(OPENAI.produce("row", read_object(told), status=400)) is RequestRefused


@pytest.mark.parametrize(
    "message",
    [
        "Model llama3 is not loaded yet, please retry in 20 seconds",
        "The model weights file for shard 3 was not found on this worker",
    ],
)
def test_a_server_that_is_not_ready_may_be_asked_again(message: str) -> None:
    assert type(OPENAI.produce("row", read_object(message), status=503)) is ProviderOverloaded


@pytest.mark.parametrize("message", ["Loading model", "Model m is currently loading", "overloaded"])
def test_a_server_that_is_only_busy_may_be_asked_again(message: str) -> None:
    assert find_kind(message) is None
    assert type(OPENAI.produce("row", read_object(message))) is ProviderOverloaded


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("Please try again in 7.66s.", 7.66),
        ("Please retry after 20 seconds.", 20),
        ("Please wait 30 seconds and try again", 30),
        ("try again in 20ms", 0.02),
        ("Please retry in 38.5s.", 38.5),
        ("Try again in about 2 minutes.", 120),
        ("The limit resets in 1h5m", 3900),
        ("try again at 2026-01-01", None),
        ("retry later", None),
    ],
)
def test_words_say_how_long_to_wait(message: str, seconds: float | None) -> None:
    assert find_wait(message) == seconds
    error = OPENAI.produce("row", read_object({"message": message, "code": 429}))
    assert isinstance(error, RateLimited)
    assert error.retry_after == seconds


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({"details": [{"@type": "x"}, {"retryDelay": "38s"}]}, 38),
        ({"details": [{"retryDelay": {"seconds": "9"}}]}, 9),
        ({"metadata": {"headers": {"Retry-After": "12"}}}, 12),
        ({"retry_after_ms": 1500}, 1.5),
        ({"retry_after": 3}, 3),
        ({"estimated_time": 20.5}, 20.5),
        ({"retry_after": True, "other": {"retry_after": -1}}, None),
        ({"retry_after": 10**400}, None),
    ],
)
def test_a_body_says_how_long_to_wait_and_a_header_says_it_better(
    said: dict[str, object], seconds: float | None
) -> None:
    body = json.dumps([{"error": {"message": "slow down", "code": 429, **said}}]).encode()
    for headers, expected in (({}, seconds), ({"retry-after": "2"}, 2)):
        error = OPENAI.read("row", 429, headers, body)
        assert isinstance(error, RateLimited)
        assert error.retry_after == expected


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ({"error": {"message": "no", "status": "INVALID_ARGUMENT"}}, RequestRefused, "no"),
        ({"error": {"message": "no", "status_code": 400}}, RequestRefused, "no"),
        ({"error": "no", "status": 400}, RequestRefused, "no"),
        ({"error": True, "message": "no", "statusCode": "422"}, RequestRefused, "no"),
        ({"errors": [{"message": "no", "code": 429}]}, RateLimited, "no"),
        ({"message": "no", "type": "invalid_request_error"}, RequestRefused, "no"),
        ({"code": 404, "msg": "no", "choices": []}, ModelUnavailable, "no"),
        ({"base_resp": {"status_code": 1002, "status_msg": "no"}}, RateLimited, "no"),
        ({"base_resp": {"status_code": [1], "status_msg": "no"}}, ProviderOverloaded, "no"),
        (
            {"error": {"message": '{"error": {"code": 400, "message": "inner"}}', "code": 502}},
            RequestRefused,
            "inner",
        ),
        (
            {"error": {"message": "Provider returned error", "metadata": {"raw": "inner"}}},
            ProviderOverloaded,
            "inner",
        ),
    ],
)
def test_an_error_is_found_in_every_form(
    body: dict[str, object], kind: type[ProviderError], words: str
) -> None:
    found = find_error(body)
    assert found is not None
    error = OPENAI.produce("row", found)
    assert type(error) is kind
    assert words in str(error)


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"delta": {}}], "message": "no"},
        {"usage": {"total_tokens": 9}},
        {"message": {"role": "assistant"}, "done": False},
        {"type": "ping"},
        {"error": None, "id": "x"},
        {"base_resp": {"status_code": 0, "status_msg": ""}},
        {"choices": [], "message": "processing"},
        {"choices": [], "detail": "queue 3"},
        {},
    ],
)
def test_what_is_no_error_is_not_taken_for_one(body: dict[str, object]) -> None:
    assert find_error(body) is None
