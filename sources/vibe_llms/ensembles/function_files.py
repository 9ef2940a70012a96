"""Python files whose functions are tools; a file runs only after the user approved its hash."""

from __future__ import annotations

import ast
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from msgspec import Struct

from vibe_llms.base.exceptions import FunctionsInvalid, InvokerInvalid
from vibe_llms.base.files import LARGEST_SETTINGS, read_trusted
from vibe_llms.base.folders import describe
from vibe_llms.ensembles.functions import FunctionEnsemble
from vibe_llms.ensembles.pins import Definition, Pins, ToolChange
from vibe_llms.invocation.invokers import Invoker, normalize_name

#: Statements whose bodies Python runs in the scope around them.
_BLOCKS = (ast.If, ast.Try, ast.With)
_MODULES = "vibe_llms_functions"


class FunctionFile(Struct, frozen=True):
    """A Python file that has been read and parsed, but not run.

    `functions` are the names of its public functions, as they appear in its text.
    """

    path: str
    name: str
    digest: str
    code: CodeType
    functions: tuple[str, ...]

    @property
    def definition(self) -> Definition:
        """Everything that the user approves: the file's hash, and its functions for display."""
        return Definition(self.name, f"sha256:{self.digest}", {}, {"functions": self.functions})


def read_functions(path: str) -> FunctionFile:
    """Read and parse a file without running it.

    Raises `FunctionsInvalid` if it cannot be read or parsed, or if another user can change it.
    """
    import hashlib

    # Links are resolved so that the folder of the file itself is checked.
    real = os.path.realpath(os.path.expanduser(path))
    try:
        data = read_trusted(real, LARGEST_SETTINGS)
    except FileNotFoundError:
        raise FunctionsInvalid("no such file; give the path of a Python file", path=path) from None
    except OSError as error:
        raise FunctionsInvalid(describe(error), path=path) from error
    try:
        tree = ast.parse(data, real)
        code = compile(tree, real, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f" in line {error.lineno}" if error.lineno else ""
        raise FunctionsInvalid(f"invalid Python{where}: {error.msg}", path=path) from error
    except (ValueError, RecursionError) as error:
        raise FunctionsInvalid(f"invalid Python: {error}", path=path) from error
    functions = [one for one in _survey(tree.body) if not one.name.startswith("_")]
    if not functions:
        raise FunctionsInvalid("it defines no public function", path=path)
    # A decorated function may share its name, as an overload does.
    plain = Counter(one.name for one in functions if one in tree.body and not one.decorator_list)
    for name in (name for name, count in plain.items() if count > 1):
        raise FunctionsInvalid(f"it defines {name!r} more than once; rename one", path=path)
    try:
        stem = normalize_name(Path(real).stem.replace("/", "_"))
    except InvokerInvalid as error:
        raise FunctionsInvalid(
            "its name cannot be the first part of its tools' names; rename it to letters, digits, "
            "_ and -, at most 64",
            path=path,
        ) from error
    return FunctionFile(
        path=real,
        name=stem,
        digest=hashlib.sha256(data).hexdigest(),
        code=code,
        functions=tuple(dict.fromkeys(one.name for one in functions)),
    )


class FilePin:
    """The approved hash of a file of functions, in the state folder."""

    def __init__(self, state: Path, file: FunctionFile) -> None:
        self._file = file
        self._pins = Pins(state, file.name, file.path)

    @property
    def approved(self) -> bool:
        """True if the user approved exactly this content of the file."""
        known = self._known()
        return known is not None and known.description == self._file.definition.description

    @property
    def change(self) -> Sequence[str]:
        """Lines that say how the file differs from the approved one; none if none is approved."""
        known = self._known()
        if known is None:
            return ()
        before = known.annotations.get("functions", ())
        lines = [f"approved: {known.description}", f"now:      sha256:{self._file.digest}"]
        for word, names in (
            ("new", [name for name in self._file.functions if name not in before]),
            ("gone", [name for name in before if name not in self._file.functions]),
        ):
            if names:
                lines.append(f"{word}: {', '.join(names)}")
        return lines

    def approve(self) -> None:
        """Store the file's hash as approved."""
        now = self._file.definition
        self._pins.approve([ToolChange(self._known() or now, now)])

    def _known(self) -> Definition | None:
        return self._pins.load().get(self._file.name)


def load_functions(file: FunctionFile) -> FunctionEnsemble:
    """Run a file, and return its functions as tools, which ask unless they are marked otherwise.

    What it prints while it runs goes to standard error. Raises `FunctionsInvalid` if it fails, or
    if a function cannot be a tool.
    """
    module = _run(file)
    ensemble = FunctionEnsemble(file.name)
    for function in _survey_functions(module):
        try:
            _check(function)
            marked = "approval" in getattr(function, "__invoker__", {})
            if marked:
                ensemble.register()(function)
            else:
                ensemble.register(approval="ask")(function)
        except InvokerInvalid as error:
            line = function.__code__.co_firstlineno
            raise FunctionsInvalid(f"line {line}: {error}", path=file.path) from error
    if not ensemble.invokers:
        raise FunctionsInvalid("it defines no public function", path=file.path)
    return ensemble


def _run(file: FunctionFile) -> ModuleType:
    module = ModuleType(f"{_MODULES}_{file.name}")
    module.__file__ = file.path
    # Dataclasses and pydantic look up the module of their classes.
    sys.modules[module.__name__] = module
    try:
        with redirect_stdout(sys.stderr):
            exec(file.code, vars(module))  # noqa: S102  (the user approved it)
    except SystemExit as error:
        raise FunctionsInvalid(
            f"it exits when it is run{_locate(error, file)}; put that below "
            "if __name__ == '__main__'",
            path=file.path,
        ) from error
    except Exception as error:
        raise FunctionsInvalid(
            f"it fails when it is run{_locate(error, file)}: {type(error).__name__}: {error}",
            path=file.path,
        ) from error
    return module


def _locate(error: BaseException, file: FunctionFile) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    line = next((one.lineno for one in reversed(frames) if one.filename == file.path), None)
    return f", in line {line}" if line else ""


def _survey_functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the public functions that the module itself defines, each once."""
    for name, one in vars(module).items():
        own = isinstance(one, FunctionType) and one.__module__ == module.__name__
        if own and one.__name__ == name and not name.startswith("_"):
            yield one


def _check(function: FunctionType) -> None:
    import inspect

    for parameter in inspect.signature(function).parameters.values():
        named = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if named and parameter.annotation is parameter.empty:
            raise InvokerInvalid(
                f"the parameter {parameter.name!r} of {function.__name__!r} has no type; add one, "
                f"such as {parameter.name}: str"
            )
    if not Invoker.from_function(function).description.strip():
        raise InvokerInvalid(
            f"{function.__name__!r} has no docstring; say in one what it does, for the model"
        )


def _survey(body: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions that a body defines at the top level, also in its `if` and `try`."""
    for one in body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            yield one
        elif isinstance(one, _BLOCKS):
            yield from _survey(one.body)
            yield from _survey(getattr(one, "orelse", ()))
            for handler in getattr(one, "handlers", ()):
                yield from _survey(handler.body)
            yield from _survey(getattr(one, "finalbody", ()))
