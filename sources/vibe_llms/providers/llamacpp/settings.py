"""Keys of a row of this module: where the models are, and how they are loaded."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from vibe_llms.base.configuration import Number

#: Default sizes of the context in tokens: the largest that fits into memory, else the last. JSON of
#: tool calls takes many tokens, so the contract should have 16,384.
CONTEXT_TOKENS = (32_768, 16_384, 8_192)

ChatFormat: TypeAlias = Literal["chatml", "llama-3", "mistral-instruct"]
Count: TypeAlias = Annotated[int, Meta(ge=1)]


class LlamacppSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of a row of this module.

    Relative names of models begin in `models_folder`. `context_tokens` is how much a loaded model
    can read and write at once: 0 is the model's own limit, the default is at most 32,768, and less
    if that does not fit into memory.
    `gpu_layers` is the number of layers on the graphics card, or -1 for all. `threads` generate,
    and `batch_threads` read the prompt, `batch_tokens` at a time. `seed` is used if a call gives
    none. `chat_format` or `chat_template`, the path of a Jinja file, overrides the model's
    template. `loaded_models` stay in memory at once; the least recently used is freed first.
    `reuse_prompt` keeps the context of the last prompt.
    """

    models_folder: str = ""
    context_tokens: Number | None = None
    gpu_layers: Annotated[int, Meta(ge=-1)] = 0
    main_gpu: Number = 0
    tensor_split: tuple[float, ...] | None = None
    threads: Count | None = None
    batch_threads: Count | None = None
    batch_tokens: Count = 512
    seed: Annotated[int, Meta(ge=0, lt=2**32)] | None = None
    flash_attention: bool = False
    memory_map: bool = True
    memory_lock: bool = False
    lora: str = ""
    chat_format: ChatFormat | None = None
    chat_template: str = ""
    loaded_models: Count = 1
    reuse_prompt: bool = False
