"""The keys of a row of this module: where the models are, and how they are loaded."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from vibe_llms.configuration import Number

#: What is kept free of memory where the row says nothing: many models were made for more than most
#: machines have room for.
CONTEXT_TOKENS = 8_192

ChatFormat: TypeAlias = Literal["chatml", "llama-3", "mistral-instruct"]
Count: TypeAlias = Annotated[int, Meta(ge=1)]


class Settings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys of a row of this module.

    `models_folder` is where relative names of models begin. `context_tokens` is how much a loaded
    model can read and write at once; 0 is as much as it was made for, and without it that is
    bounded by 8,192. `gpu_layers` go to the graphics card, -1 all of them. `threads` generate and
    `batch_threads` read the prompt, `batch_tokens` at a time. `seed` is used where a call gives
    none. `chat_format` or `chat_template`, the path of a Jinja file, go over the template that the
    model brings. `loaded_models` stay in memory at once; the one that was not used for longest
    gives way. `reuse_prompt` keeps what a model has read of the last prompt.
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
