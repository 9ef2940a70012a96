"""What is shipped of models: files that can be read, and families that hold everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from vibe_llms.base.configuration import load_configuration, shipped_folder
from vibe_llms.providers.attributes import ModelAttributes, load_attributes

FILES = sorted((shipped_folder() / "providers").glob("*.toml"))
#: The files that the rows of each interface are made of.
LAYERS = {
    "anthropic": ("anthropic",),
    "openai": ("families", "openai"),
    "ollama": ("families", "ollama"),
}
PICTURES = {"image", "image/png", "image/jpeg"}


def know(interface: str, model: str) -> ModelAttributes:
    return load_attributes(load_configuration(), interface, *LAYERS[interface]).integrate(model)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_where_it_is_from_and_when_it_was_written(path: Path) -> None:
    head = path.read_text("utf-8").partition("\n[")[0]
    assert re.search(r"^# Source: \S", head, re.MULTILINE)
    assert re.search(r"(?:Written|read) on\s+(?:# )?20\d\d-\d\d-\d\d", head)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_pattern_and_all_of_its_attributes_can_be_read(path: Path) -> None:
    models = load_attributes(load_configuration(), "row", path.stem)
    for pattern in tomllib.loads(path.read_text("utf-8"))["models"]:
        re.compile(pattern)
        assert isinstance(models.integrate(pattern), ModelAttributes)


#: A name at Ollama's, those that others have for the same, context, reasoning, pictures.
FAMILIES: list[tuple[str, list[str], int, bool, bool]] = [
    ("llama3:8b", ["meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-70b"], 8_192, False, False),
    (
        "llama3.3:70b",
        [
            "meta-llama/Llama-3.3-70B-Instruct",
            "meta-llama/llama-3.3-70b-instruct:free",
            "llama-3.3-70b-versatile",
            "meta-llama/Llama-3.3-70B-Instruct-Turbo",
            "meta-llama/Meta-Llama-3.1-8B-Instruct",
        ],
        131_072, False, False,
    ),
    ("llama3.2-vision", ["meta-llama/Llama-3.2-11B-Vision-Instruct"], 131_072, False, True),
    ("llama4:scout", ["meta-llama/Llama-4-Scout-17B-16E-Instruct"], 1_048_576, False, True),
    ("qwen2.5:7b", ["Qwen/Qwen2.5-7B-Instruct", "qwen-2.5-32b"], 32_768, False, False),
    ("qwen2.5vl:7b", ["Qwen/Qwen2.5-VL-7B-Instruct"], 128_000, False, True),
    ("qwen3:8b", ["Qwen/Qwen3-8B", "qwen/qwen3-32b", "hf.co/unsloth/Qwen3-8B-GGUF:Q4_K_M"], 40_960,
     True, False),
    ("qwen3-coder:30b", ["Qwen/Qwen3-Coder-30B-A3B-Instruct"], 262_144, False, False),
    ("qwen3-vl:8b", ["Qwen/Qwen3-VL-8B-Thinking"], 262_144, True, True),
    ("qwq:32b", ["Qwen/QwQ-32B"], 40_960, True, False),
    ("mistral:7b", ["mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mixtral-8x7B"], 32_768, False,
     False),
    ("mistral-nemo", ["mistralai/Mistral-Nemo-Instruct-2407"], 131_072, False, False),
    ("mistral-small3.2", ["mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-2506"],
     131_072, False, True),
    ("magistral:24b", ["mistralai/Magistral-Small-2506"], 40_960, True, False),
    ("devstral", ["mistralai/Devstral-Small-2507"], 131_072, False, False),
    ("gemma2:9b", ["google/gemma-2-9b-it", "gemma2-9b-it"], 8_192, False, False),
    ("gemma3:12b", ["google/gemma-3-27b-it"], 131_072, False, True),
    ("gemma3:1b", ["google/gemma-3-1b-it"], 32_768, False, False),
    ("gemma4", ["google/gemma-4-e4b-it"], 131_072, True, True),
    ("gemma4:31b", ["google/gemma-4-31b-it"], 262_144, True, True),
    ("deepseek-r1:8b", ["deepseek-ai/DeepSeek-R1", "deepseek-r1-distill-llama-70b",
                        "deepseek-reasoner", "deepseek-chat"], 131_072, True, False),
    ("deepseek-v3", ["deepseek-ai/DeepSeek-V3-0324"], 163_840, False, False),
    ("deepseek-v3.1", ["deepseek-ai/DeepSeek-V3.1-Terminus"], 163_840, True, False),
    ("gpt-oss:20b", ["openai/gpt-oss-120b", "gpt-oss-20b"], 131_072, True, False),
    ("phi3", ["microsoft/Phi-3.5-mini-instruct"], 131_072, False, False),
    ("phi4", ["microsoft/phi-4"], 16_384, False, False),
    ("phi4-reasoning", ["microsoft/Phi-4-reasoning"], 32_768, True, False),
    ("granite4", ["ibm-granite/granite-4.0-h-small", "granite-3.3-8b"], 131_072, False, False),
    ("command-r", ["cohere/command-r-08-2024"], 131_072, False, False),
    ("glm-4.6:cloud", ["zai-org/GLM-4.6", "accounts/fireworks/models/glm-4p6"], 200_000, True,
     False),
    ("glm-5.3", ["zai-org/GLM-5.3", "zai-glm-5-3", "glm-5p3"], 1_000_000, True, False),
    ("qwen3.8:27b", ["Qwen/Qwen3.8-27B", "qwen/qwen3.8-27b"], 262_144, True, True),
    ("ministral-3:8b", ["ministral-8b-2512"], 262_144, False, True),
    ("deepseek-v4-pro", ["deepseek-ai/DeepSeek-V4-Pro-0813"], 1_000_000, True, False),
    ("minimax-m2.7:cloud", ["MiniMaxAI/MiniMax-M2.7"], 196_608, True, False),
    ("kimi-k2.6", ["moonshotai/Kimi-K2.6", "accounts/fireworks/models/kimi-k2p6"], 262_144, True,
     True),
    ("nemotron-3-super", ["nvidia/NVIDIA-Nemotron-3-Super-120B-A12B"], 262_144, True, False),
    ("kimi-k2:1t", ["moonshotai/Kimi-K2-Instruct"], 131_072, False, False),
    ("kimi-k2-thinking:cloud", ["moonshotai/Kimi-K2-Thinking"], 262_144, True, False),
    ("smollm2", ["HuggingFaceTB/SmolLM2-1.7B-Instruct"], 8_192, False, False),
]  # fmt: skip


#: Most tokens of a reply, where the makers' own servers give less than the context.
REPLIES = {
    "glm-4.6:cloud": 128_000,
    "glm-5.3": 128_000,
    "deepseek-v4-pro": 393_216,
    "minimax-m2.7:cloud": 131_072,
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family[0])
def test_a_family_is_the_same_with_every_provider(
    family: tuple[str, list[str], int, bool, bool],
) -> None:
    local, others, context, reasoning, sees = family
    reply = REPLIES.get(local, context)
    for interface, name in [("ollama", local), *(("openai", other) for other in (local, *others))]:
        attributes = know(interface, name)
        assert (attributes.context_tokens, attributes.output_tokens) == (context, reply), name
        assert attributes.reasoning is reasoning, name
        assert (set(attributes.accepts) >= PICTURES) is sees, (interface, name)
        controls = attributes.controls
        assert controls is not None
        assert controls["output-tokens"].maximum == reply
        assert (controls["temperature"].minimum, controls["temperature"].maximum) == (0, 2)
        assert {"top-p", "stop", "seed", "response-schema", "tool-choice"} <= set(controls)
        assert reasoning <= ("effort" in controls), name
        if interface == "openai":
            assert attributes.tools == "native"
            assert not attributes.surely_takes("response-schema")
        else:
            assert attributes.surely_takes("response-schema")


def test_what_no_family_fits_stays_open() -> None:
    unknown = know("openai", "acme/brand-new-7b")
    assert (unknown.controls, unknown.context_tokens) == (None, None)


def test_levels_of_effort_are_known_of_the_open_models_of_openai() -> None:
    for interface in ("ollama", "openai"):
        controls = know(interface, "gpt-oss:20b").controls
        assert controls is not None
        assert controls["effort"].choices == ("low", "medium", "high")
