"""Access to the package llama-cpp-python: a model is loaded, run, and freed on a single thread.

This is the only module that imports `llama_cpp`. It uses low-level public functions: the package's
own chat completion decodes the whole reply again for every token, returns the tokens of a call as
plain text, and reports no usage when streaming.

Source: the package llama-cpp-python 0.3.36, and the `include/llama.h` that it contains.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vibe_llms.base.exceptions import (
    ConfigurationError,
    ControlInvalid,
    ModelUnavailable,
    PackageMissing,
    ReplyCut,
    RequestRefused,
)
from vibe_llms.providers.llamacpp.quiet import LOG, catch_words, leave_output_alone
from vibe_llms.providers.llamacpp.settings import ChatFormat, LlamacppSettings
from vibe_llms.providers.llamacpp.templates import MARKS

_NAME = "llama_cpp"
_PIECE_BYTES = 64
_CONTROL = 1 << 3  # LLAMA_TOKEN_ATTR_CONTROL of `llama.h`
# Numbered placeholder for a marker within a message, on its way through the template.
_SHIELDED = re.compile("\ue000(\\d+)\ue001")
_ANY_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED: a new seed every time


class Llama(Protocol):
    """Part of the package's class `Llama` that is used."""

    ctx: Any
    model: Any
    n_tokens: int
    input_ids: Any

    def tokenize(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
        """Return the tokens of a text."""
        ...

    def generate(self, tokens: Sequence[int], **sampling: Any) -> Generator[int, Any, None]:
        """Yield one token after another."""
        ...

    def reset(self) -> None:
        """Forget all tokens that were read."""
        ...

    def set_seed(self, seed: int) -> None:
        """Set the seed of later generation."""
        ...

    def n_ctx(self) -> int:
        """Return the context size in tokens."""
        ...

    def token_bos(self) -> int:
        """Return the token of the beginning, or -1."""
        ...

    def token_eos(self) -> int:
        """Return the token of the end, or -1."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


class Halt:
    """Stop flag in memory that C can read without Python."""

    def __init__(self) -> None:
        self._flag = ctypes.create_string_buffer(2)

    @property
    def address(self) -> int:
        """Address of a C string that is empty until the flag is set."""
        return ctypes.addressof(self._flag)

    def set(self) -> None:
        """Set the flag."""
        self._flag[0] = b"\1"

    def is_set(self) -> bool:
        """Return True if the flag is set."""
        return bool(self._flag.value)


class LlamaModel:
    """Model in memory. Not thread-safe: a single thread makes all calls."""

    def __init__(self, provider: str, name: str, package: Any, llama: Llama, room: int) -> None:
        self._provider, self._name = provider, name
        self._package, self._llama = package, llama
        self._vocabulary = package.llama_model_get_vocab(llama.model)
        # llama.cpp rounds up; the package reserves the requested number.
        self.context_tokens = min(room, llama.n_ctx())
        self._formatters: dict[str, Callable[..., Any]] = {}
        self._shown = {tokens[0] for mark in MARKS if len(tokens := self._split(mark)) == 1}
        # An abort callback in Python would need the interpreter at every step of the computation;
        # `strlen` of the flag is 0 or 1, without a lock.
        strlen = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value
        self._probe = package.llama_cpp.ggml_abort_callback(strlen)
        self._no_callback = package.llama_cpp.ggml_abort_callback(0)
        self._foul = False
        self._marks = self._list_marks()
        marks = sorted(self._marks, key=len, reverse=True)
        self._finder = re.compile("|".join(map(re.escape, marks))) if marks else None

    @property
    def partial(self) -> bool:
        """True if part of the context can be kept; False for recurrent and windowed memories."""
        package, model = self._package, self._llama.model
        return not (
            package.llama_model_is_recurrent(model)
            or package.llama_model_is_hybrid(model)
            or package.llama_model_n_swa(model)
        )

    def render(
        self,
        template: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> str:
        """Render the prompt by a Jinja template; `RequestRefused` has the template's message.

        Text of a message that looks like a marker of the model is replaced by a placeholder that
        `tokenize` understands, so that a message cannot end itself and begin another one.
        """
        from_jinja = importlib.import_module("jinja2").TemplateError
        try:
            if template not in self._formatters:
                self._formatters[template] = self._package.llama_chat_format.Jinja2ChatFormatter(
                    template=template,
                    eos_token=self._text_of(self._llama.token_eos()),
                    bos_token=self._text_of(self._llama.token_bos()),
                )
            made = self._formatters[template](
                messages=[self._shield(message) for message in messages],
                tools=[self._shield(tool) for tool in tools] or None,
                **variables,
            )
        except (from_jinja, ValueError, TypeError, KeyError, IndexError) as error:
            raise RequestRefused(
                f"the template of {self._name} does not accept this conversation: {error}",
                provider=self._provider,
                code="template",
            ) from error
        return str(made.prompt)

    def tokenize(self, prompt: str) -> list[int]:
        """Tokenize a rendered prompt: the template's marks as marks, all other text as text."""
        tokens: list[int] = []
        for number, part in enumerate(_SHIELDED.split(prompt)):
            if number % 2:
                tokens += self._split(self._marks[int(part)], special=False)
            elif part:
                tokens += self._split(part)
        start = self._llama.token_bos()
        wanted = start != -1 and self._package.llama_vocab_get_add_bos(self._vocabulary)
        # Most templates write it themselves; a second one makes a model worse.
        return [start, *tokens] if wanted and tokens[:1] != [start] else tokens

    def keep(self, tokens: Sequence[int], *, reuse: bool) -> int:
        """Keep the known beginning of these tokens, if possible; return its length in tokens.

        Call it before each generation: a recurrent memory would take an earlier prompt for the
        beginning of this one.
        """
        llama = self._llama
        if not reuse or self._foul or not self.partial:
            llama.reset()
            if (memory := self._package.llama_get_memory(llama.ctx)) is not None:
                self._package.llama_memory_clear(memory, False)
            self._foul = False
            return 0
        kept = 0
        for one, other in zip(llama.input_ids[: llama.n_tokens].tolist(), tokens, strict=False):
            if one != other:
                break
            kept += 1
        # If the whole prompt is known, its last token is read again.
        return min(kept, len(tokens) - 1)

    def produce_grammar(self, text: str, control: str) -> Any:
        """Compile a GBNF grammar, or raise `ControlInvalid` if it is invalid.

        For an invalid grammar the package passes on a null pointer, which ends the process.
        """
        package = self._package
        with catch_words() as words:
            sampler = package.llama_sampler_init_grammar(
                self._vocabulary, text.encode("utf-8", "replace"), b"root"
            )
        if not sampler:
            reason = next((line for line in "".join(words).splitlines() if line.strip()), "")
            raise ControlInvalid(
                f"the grammar cannot be read: {reason.removeprefix('parse: ') or 'no root rule?'}",
                control=control,
                model=self._name,
            )
        package.llama_sampler_free(sampler)
        return package.LlamaGrammar.from_string(text, verbose=False)

    def convert_schema(self, schema: Mapping[str, Any], control: str) -> str:
        """Return the GBNF grammar of a schema's JSON; raise `ControlInvalid` if it has none."""
        try:
            return str(self._package.llama_grammar.json_schema_to_gbnf(json.dumps(schema)))
        except (AssertionError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ControlInvalid(
                f"the schema cannot be converted to a grammar: {error or type(error).__name__}",
                control=control,
                model=self._name,
            ) from error

    def generate(
        self,
        tokens: Sequence[int],
        halt: Halt,
        *,
        sampling: Mapping[str, Any],
        seed: int | None = None,
        grammar: Any = None,
    ) -> Generator[bytes, None, None]:
        """Yield the reply as bytes, token by token, until it ends or is halted.

        Raise `ReplyCut` if llama.cpp fails.
        """
        llama, package = self._llama, self._package
        llama.set_seed(_ANY_SEED if seed is None else seed)
        package.llama_set_abort_callback(llama.ctx, self._probe, halt.address)
        # After an early end, the context must not be reused.
        self._foul = True
        stream = llama.generate(tokens, grammar=grammar, **sampling)
        try:
            for token in stream:
                if halt.is_set():
                    return
                if package.llama_vocab_is_eog(self._vocabulary, token):
                    break
                yield self._piece_of(token)
        except RuntimeError as error:
            if not halt.is_set():
                raise ReplyCut(
                    f"llama.cpp failed: {error}", provider=self._provider, code="decode"
                ) from error
            return
        except GeneratorExit:
            # The listener has enough; the context is valid so far.
            self._foul = halt.is_set()
            raise
        finally:
            stream.close()
            package.llama_set_abort_callback(llama.ctx, self._no_callback, None)
        self._foul = False

    def close(self) -> None:
        """Free the model's memory; safe to call twice."""
        self._formatters.clear()
        self._llama.close()

    def _list_marks(self) -> list[str]:
        """Return the texts of control tokens, such as the end of a message."""
        package, vocabulary = self._package, self._vocabulary
        return [
            self._text_of(token)
            for token in range(package.llama_vocab_n_tokens(vocabulary))
            if package.llama_vocab_get_attr(vocabulary, token) & _CONTROL
        ]

    def _shield(self, value: Any) -> Any:
        """Replace marks by placeholders at every depth."""
        match value:
            case str() if self._finder is not None:
                return self._finder.sub(
                    lambda found: f"\ue000{self._marks.index(found[0])}\ue001",
                    _SHIELDED.sub("\ufffd", value),
                )
            case Mapping():
                return {key: self._shield(one) for key, one in value.items()}
            case list() | tuple():
                return [self._shield(one) for one in value]
            case _:
                return value

    def _split(self, text: str, *, special: bool = True) -> list[int]:
        data = text.encode("utf-8", "replace")
        return self._llama.tokenize(data, add_bos=False, special=special)

    def _text_of(self, token: int) -> str:
        if token == -1:
            return ""
        text = self._package.llama_vocab_get_text(self._vocabulary, token)
        return bytes(text).decode("utf-8", "replace")

    def _piece_of(self, token: int) -> bytes:
        # The package's own detokenizing silently loses tokens of more than 32 bytes.
        size = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            found = self._package.llama_token_to_piece(
                self._vocabulary, token, buffer, size, 0, token in self._shown
            )
            if found >= 0:
                return buffer.raw[:found]
            size = -found


def check_package(provider: str) -> None:
    """Raise `PackageMissing` if it is not installed; import nothing."""
    if importlib.util.find_spec(_NAME) is None:
        raise _missing(provider)


def load_model(
    provider: str, name: str, path: Path, settings: LlamacppSettings, context_tokens: int
) -> LlamaModel:
    """Load a model from a file. Takes seconds; call it on the thread that will use the model.

    Raise `PackageMissing`, or `ModelUnavailable` if llama.cpp cannot load the file.
    """
    package = _import_package(provider)
    try:
        with leave_output_alone(package):
            LOG.recent.clear()
            llama = package.Llama(**_list_parameters(path, settings, context_tokens))
    except (ValueError, RuntimeError, MemoryError, OSError) as error:
        reason = " ".join((LOG.reason or str(error)).split())
        raise ModelUnavailable(
            f"{path} cannot be loaded: {reason} (take a smaller model or a smaller context-tokens "
            "if memory is short, fetch the file again if it is damaged)",
            provider=provider,
            code="load",
        ) from error
    return LlamaModel(provider, name, package, llama, context_tokens)


def access_format(provider: str, name: ChatFormat) -> str:
    """Return a template that the package has by name."""
    formats = _import_package(provider).llama_chat_format
    return str(
        {
            "chatml": formats.CHATML_CHAT_TEMPLATE,
            "llama-3": formats.LLAMA3_INSTRUCT_CHAT_TEMPLATE,
            "mistral-instruct": formats.MISTRAL_INSTRUCT_CHAT_TEMPLATE,
        }[name]
    )


def _list_parameters(path: Path, settings: LlamacppSettings, context_tokens: int) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "model_path": str(path),
        "n_ctx": context_tokens,
        "n_batch": settings.batch_tokens,
        "n_ubatch": settings.batch_tokens,
        "n_gpu_layers": settings.gpu_layers,
        "main_gpu": settings.main_gpu,
        "flash_attn": settings.flash_attention,
        "use_mmap": settings.memory_map,
        "use_mlock": settings.memory_lock,
        "verbose": False,
    }
    if settings.tensor_split is not None:
        parameters["tensor_split"] = list(settings.tensor_split)
    if settings.threads is not None:
        parameters["n_threads"] = settings.threads
    if settings.batch_threads is not None:
        parameters["n_threads_batch"] = settings.batch_threads
    if settings.lora:
        parameters["lora_path"] = os.path.expanduser(settings.lora)
    return parameters


def _import_package(provider: str) -> Any:
    try:
        package = importlib.import_module(_NAME)
    except ModuleNotFoundError as error:
        raise _missing(provider) from error
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigurationError(
            f"the package llama-cpp-python is installed but cannot be used: {error}",
            table=f"providers.{provider}",
        ) from error
    LOG.attach(package)
    return package


def _missing(provider: str) -> PackageMissing:
    return PackageMissing(
        f"running models in this process, as [providers.{provider}] does,",
        package="llama-cpp-python",
        command="python -m pip install 'vibe-llms[llamacpp]'",
    )
