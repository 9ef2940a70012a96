"""The package llama-cpp-python as this library uses it, without the library in C behind it.

It refuses what the real one refuses, and also what the real one takes and should not: a second
thread, a context that overflows, a grammar that cannot be read (there the real process dies), and a
recurrent memory that was not cleared. Templates are rendered as the package renders them, by Jinja.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: What a token stands for; single bytes come first, so that characters are spread over tokens.
SPECIALS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<tool_call>", "</tool_call>", "<think>", "</think>"),
)
LONG = "=" * 70
VOCABULARY = [bytes([byte]) for byte in range(256)] + [
    word.encode() for word in (*SPECIALS, LONG, "<s>")
]
END = VOCABULARY.index(b"<|im_end|>")
BEGIN = VOCABULARY.index(b"<s>")
#: Tokens whose text the package hides unless it is asked for.
_CONTROL = {VOCABULARY.index(word.encode()) for word in (*SPECIALS, "<s>")}

CHATML = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}\
{{ '<|im_end|>\\n' }}\
{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""
TOOLS = """{%- if tools %}{{ '<tools>' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}\
{{ '</tools>' }}{%- endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}\
{{ m.content }}\
{%- for call in m.tool_calls or [] %}{{ '<tool_call>{"name": "' + call.function.name }}\
{{ '", "arguments": ' + call.function.arguments | tojson + '}</tool_call>' }}{%- endfor %}\
{{ '<|im_end|>\\n' }}{%- endfor %}{{ '<|im_start|>assistant\\n' }}"""
THINKING = (
    CHATML + "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)
OPENED = CHATML + "{{ '<think>\\n' }}"

_STRING, _ARRAY = 8, 9
#: The parameters that the class of the package has; others it would take without a word.
_PARAMETERS = frozenset(
    (
        *("model_path", "n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "vocab_only"),
        *("use_mmap", "use_mlock", "kv_overrides", "seed", "n_ctx", "n_batch", "n_ubatch"),
        *("n_threads", "n_threads_batch", "flash_attn", "lora_path", "lora_scale", "verbose"),
    )
)
_SAMPLING = frozenset(
    (
        *("top_k", "top_p", "min_p", "typical_p", "temp", "repeat_penalty", "frequency_penalty"),
        *("presence_penalty", "mirostat_mode", "mirostat_tau", "mirostat_eta", "grammar"),
    )
)


def encode_gguf(members: Mapping[str, Any], *, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    """The head of a file; a list is an array of texts or of numbers."""
    parts = [struct.pack("<4sIQQ", magic, version, 0, len(members))]
    for name, value in members.items():
        kind, data = _encode_value(value)
        parts += [_encode_text(name), struct.pack("<I", kind), data]
    return b"".join(parts)


def write_model(
    path: Path, template: str | None = TOOLS, *, context: int = 4_096, **members: Any
) -> Path:
    """A file of a model, with nothing behind its head."""
    found: dict[str, Any] = {
        "general.architecture": "tiny",
        "general.name": "Tiny",
        "tiny.context_length": context,
        "tokenizer.ggml.tokens": [word.decode("latin-1") for word in VOCABULARY],
        "tokenizer.ggml.scores": [0.5, 1.5],
        **{name.replace("__", "."): value for name, value in members.items()},
    }
    if template is not None:
        found["tokenizer.chat_template"] = template
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_gguf(found))
    return path


def call_text(name: str, arguments: str) -> str:
    """A call as a model writes it."""
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def tokenize(text: str) -> list[int]:
    """The tokens of a text."""
    return FakeLlama.split(text.encode(), special=True)


class Broken(NamedTuple):
    """A reply that breaks off after some tokens: with an error of `llama_decode`, or, without a
    code, because its next step takes for ever.
    """

    tokens: Sequence[int]
    code: int | None = 1


#: What the model says next: a text, which then ends, or tokens, or an error of `llama_decode`.
Reply = str | Sequence[int] | int | Broken


class FakePackage(ModuleType):
    """The module `llama_cpp`.

    `replies` are said in turn, after them what `answer` gives to a prompt. `prompts` and `tokens`
    are what was read, `samplings` how was sampled. `held` holds every decoding up until it is set,
    or aborted.
    """

    def __init__(self) -> None:
        super().__init__("llama_cpp")
        self.__spec__ = ModuleSpec("llama_cpp", None)
        self.replies: list[Reply] = []
        self.answer: Callable[[str], Reply] = lambda prompt: "Hello."
        self.prompts: list[str] = []
        self.tokens: list[list[int]] = []
        self.samplings: list[dict[str, Any]] = []
        self.seeds: list[int] = []
        self.loaded: list[FakeLlama] = []
        self.held: threading.Event | None = None
        self.pace_seconds = 0.0
        self.recurrent = False
        self.windowed = 0
        self.adds_begin = False
        self.complaint = ""
        self.aborted = 0
        self.left = 0
        self.aborts: dict[int, tuple[Any, int]] = {}
        self._readable: dict[str, bool] = {}
        self._log: Any = None
        home = SimpleNamespace(suppress_stdout_stderr=_Suppress)
        self.llama, self._internals = home, home
        abort = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
        self.llama_cpp = SimpleNamespace(ggml_abort_callback=abort)
        self.llama_chat_format = SimpleNamespace(
            Jinja2ChatFormatter=FakeFormatter,
            CHATML_CHAT_TEMPLATE=CHATML,
            LLAMA3_INSTRUCT_CHAT_TEMPLATE=CHATML,
            MISTRAL_INSTRUCT_CHAT_TEMPLATE=CHATML + "{{ eos_token }}",
        )
        self.llama_grammar = SimpleNamespace(json_schema_to_gbnf=_convert_schema)
        self.LlamaGrammar = FakeGrammar
        self.llama_log_callback = ctypes.CFUNCTYPE(
            None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
        )

    def Llama(self, **parameters: Any) -> FakeLlama:  # noqa: N802  (as in the package)
        """The class of the package."""
        with self.llama.suppress_stdout_stderr(disable=bool(parameters.get("verbose", True))):
            return FakeLlama(self, **parameters)

    def llama_log_set(self, callback: Any, _: object) -> None:
        """Where the words of llama.cpp go."""
        self._log = callback

    def log(self, level: int, text: str) -> None:
        """Say something, as llama.cpp does; without a callback it is on the terminal."""
        if self._log is None:
            os.write(2, text.encode())
        else:
            self._log(level, text.encode(), None)

    def llama_model_get_vocab(self, model: FakeLlama) -> FakeLlama:
        return model.alive()

    def llama_vocab_get_text(self, vocabulary: FakeLlama, token: int) -> bytes:
        return VOCABULARY[token]

    def llama_vocab_n_tokens(self, vocabulary: FakeLlama) -> int:
        return len(VOCABULARY)

    def llama_vocab_get_attr(self, vocabulary: FakeLlama, token: int) -> int:
        return 1 << 3 if token in _CONTROL else 1

    def llama_vocab_get_add_bos(self, vocabulary: FakeLlama) -> bool:
        return self.adds_begin

    def llama_vocab_is_eog(self, vocabulary: FakeLlama, token: int) -> bool:
        return token in (END, VOCABULARY.index(b"<|endoftext|>"))

    def llama_token_to_piece(
        self, vocabulary: FakeLlama, token: int, buffer: Any, size: int, lstrip: int, special: bool
    ) -> int:
        """The bytes of a token; the size it would need as a negative number if there is no room."""
        assert 0 <= token < len(VOCABULARY)
        word = b"" if token in _CONTROL and not special else VOCABULARY[token]
        if len(word) > size:
            return -len(word)
        buffer[: len(word)] = word
        return len(word)

    def llama_model_is_recurrent(self, model: FakeLlama) -> bool:
        return self.recurrent

    def llama_model_is_hybrid(self, model: FakeLlama) -> bool:
        return False

    def llama_model_n_swa(self, model: FakeLlama) -> int:
        return self.windowed

    def llama_get_memory(self, context: FakeLlama) -> FakeLlama:
        return context.alive()

    def llama_memory_clear(self, memory: FakeLlama, data: bool) -> None:
        memory.alive().cleared = True

    def llama_set_abort_callback(self, context: FakeLlama, callback: Any, data: Any) -> None:
        self.aborts[id(context.alive())] = (callback, data)

    def llama_sampler_init_grammar(
        self, vocabulary: FakeLlama, grammar: bytes, root: bytes
    ) -> int | None:
        """A handle, or nothing after a complaint on the terminal."""
        text = grammar.decode()
        readable = f"{root.decode()} ::=" in text and "::= =" not in text
        self._readable[text] = readable
        if "::= =" in text:
            os.write(2, b"parse: error parsing grammar: expecting name at =\n\n")
        return 7 if readable else None

    def llama_sampler_free(self, sampler: int) -> None:
        assert sampler == 7

    def is_readable(self, grammar: str) -> bool:
        """Whether it was looked at and found good."""
        return self._readable.get(grammar, False)


class FakeLlama:
    """The class `Llama`, of one thread and one context."""

    input_ids: Any

    def __init__(self, package: FakePackage, **parameters: Any) -> None:
        assert set(parameters) <= _PARAMETERS, set(parameters) - _PARAMETERS
        self.package = package
        self.parameters = parameters
        self.model = self.ctx = self
        self.thread = threading.get_ident()
        self.closed = False
        self.cleared = True
        self.n_tokens = 0
        self._generating = False
        self._whole = False
        self._room = int(parameters["n_ctx"])
        self.input_ids = FakeArray()
        path = parameters["model_path"]
        if not os.path.exists(path):
            raise ValueError(f"Model path does not exist: {path}")
        package.log(1, "llama_model_load: something unasked\n")
        print("noise on the terminal", file=sys.stderr) if parameters.get("verbose", True) else None
        if package.complaint:
            package.log(4, f"llama_model_load: error loading model: {package.complaint}\n")
            package.log(4, "llama_model_load_from_file_impl: failed to load model\n")
            raise ValueError(f"Failed to load model from file: {path}")
        package.loaded.append(self)

    def alive(self) -> FakeLlama:
        """Itself, if it may be used so."""
        assert not self.closed, "a freed model is used"
        assert threading.get_ident() == self.thread, "two threads use one model"
        return self

    @staticmethod
    def split(text: bytes, *, special: bool) -> list[int]:
        tokens: list[int] = []
        at = 0
        words = sorted(VOCABULARY[256:], key=len, reverse=True)
        while at < len(text):
            found = next((word for word in words if special and text.startswith(word, at)), None)
            word = found or text[at : at + 1]
            tokens.append(VOCABULARY.index(word))
            at += len(word)
        return tokens

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        assert isinstance(text, bytes)
        return [*([BEGIN] if add_bos else []), *self.alive().split(text, special=special)]

    def token_bos(self) -> int:
        return BEGIN if self.package.adds_begin else -1

    def token_eos(self) -> int:
        return END

    def n_ctx(self) -> int:
        return -(-self._room // 256) * 256

    def set_seed(self, seed: int) -> None:
        assert 0 <= seed < 2**32
        self.alive().package.seeds.append(seed)

    def reset(self) -> None:
        self.alive().n_tokens = 0
        self.cleared = True

    def close(self) -> None:
        assert self.closed or not self._generating, "freed while it generates"
        self.closed = True

    def generate(self, tokens: Sequence[int], **sampling: Any) -> Generator[int, None, None]:
        self.alive()
        assert tokens
        assert all(0 <= token < len(VOCABULARY) for token in tokens)
        assert set(sampling) <= _SAMPLING, set(sampling) - _SAMPLING
        assert not self._generating, "two replies at once"
        grammar = sampling.get("grammar")
        if grammar is not None:
            assert self.package.is_readable(grammar.text), "this would end the process"
        self._generating, self._whole = True, False
        try:
            yield from self._generate(list(tokens), sampling)
        finally:
            self._generating = False
            self.package.left += not self._whole

    def _generate(self, tokens: list[int], sampling: dict[str, Any]) -> Generator[int, None, None]:
        package = self.package
        if package.recurrent and not self.cleared:
            raise RuntimeError("llama_decode returned -1")
        self.cleared = False
        kept = 0
        for one, other in zip(self.input_ids.tokens[: self.n_tokens], tokens, strict=False):
            if one != other:
                break
            kept += 1
        self.n_tokens = min(kept, len(tokens) - 1)
        package.tokens.append(tokens)
        package.prompts.append(b"".join(VOCABULARY[token] for token in tokens).decode())
        package.samplings.append(sampling)
        self._decode(tokens[self.n_tokens :])
        reply = package.replies.pop(0) if package.replies else package.answer(package.prompts[-1])
        if isinstance(reply, int):
            raise RuntimeError(f"llama_decode returned {reply}")
        broken = None
        if isinstance(reply, Broken):
            broken, reply = reply, reply.tokens
        said = [*tokenize(reply), END] if isinstance(reply, str) else list(reply)
        for number, token in enumerate(said, 1):
            if package.pace_seconds:
                time.sleep(package.pace_seconds)
            self._whole = broken is None and number == len(said)
            yield token
            self._decode([token])
        if broken is None:
            raise AssertionError("it went on after its end")
        while broken.code is None:
            self._check_abort()
            time.sleep(0.001)
        raise RuntimeError(f"llama_decode returned {broken.code}")

    def _decode(self, tokens: list[int]) -> None:
        """Read tokens, as far as there is room, unless it is aborted."""
        self.alive()
        package = self.package
        if self.n_tokens + len(tokens) > self._room:
            raise ValueError("could not broadcast input array")
        self._check_abort()
        while package.held is not None and not package.held.is_set():
            time.sleep(0.001)
            self._check_abort()
        del self.input_ids.tokens[self.n_tokens :]
        self.input_ids.tokens += tokens
        self.n_tokens += len(tokens)

    def _check_abort(self) -> None:
        callback, data = self.package.aborts.get(id(self), (None, None))
        if callback and callback(data):
            self.package.aborted += 1
            raise RuntimeError("llama_decode returned 2")


class FakeArray:
    """As much of an array of numpy's as is used."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens = list(tokens)

    def __getitem__(self, part: slice) -> FakeArray:
        return FakeArray(self.tokens[part])

    def tolist(self) -> list[int]:
        return list(self.tokens)


class FakeGrammar:
    """The class `LlamaGrammar`: a text, not looked at."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> FakeGrammar:
        return cls(grammar)


class FakeFormatter:
    """The class `Jinja2ChatFormatter`."""

    def __init__(
        self,
        template: str,
        eos_token: str,
        bos_token: str,
        add_generation_prompt: bool = True,
        stop_token_ids: Sequence[int] | None = None,
    ) -> None:
        self._tokens = {"eos_token": eos_token, "bos_token": bos_token}
        environment = ImmutableSandboxedEnvironment(
            loader=jinja2.BaseLoader(),
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(template)

    def __call__(
        self, *, messages: list[Any], tools: list[Any] | None = None, **more: Any
    ) -> SimpleNamespace:
        assert all(isinstance(message["content"], str) for message in messages)
        prompt = self._template.render(
            messages=messages,
            tools=tools,
            raise_exception=_raise,
            add_generation_prompt=True,
            **self._tokens,
            **more,
        )
        return SimpleNamespace(prompt=prompt, stop=[self._tokens["eos_token"]])


class _Suppress:
    """What the package does to the whole process while it loads, unless it is verbose."""

    used: ClassVar[int] = 0

    def __init__(self, disable: bool = True) -> None:
        self._disable = disable

    def __enter__(self) -> None:
        if not self._disable:
            _Suppress.used += 1
            raise AssertionError("the output of the whole process would be lost")

    def __exit__(self, *_: object) -> None: ...


def _raise(message: str) -> None:
    raise ValueError(message)


def _convert_schema(schema: str) -> str:
    found = json.loads(schema)
    types = ("object", "array", "string", "integer", "number", "boolean", "null", None)
    for one in (found, *found.get("properties", {}).values()):
        assert one.get("type") in types, f"Unrecognized schema: {one}"
    return f'root ::= "{{" space\nspace ::= | " " | "\\n"{{1,2}} [ \\t]{{0,20}} # {schema}'


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _encode_value(value: Any) -> tuple[int, bytes]:
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return _STRING, _encode_text(value)
        case _:
            kinds = [_encode_value(one) for one in value]
            head = struct.pack("<IQ", kinds[0][0] if kinds else 4, len(kinds))
            return _ARRAY, head + b"".join(data for _, data in kinds)
