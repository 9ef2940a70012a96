"""No regular expression of the package takes time out of proportion to the text it is given."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec import Struct

import vibe_llms
from tests.faults.pumping import Run, find_growth
from vibe_llms.base.configuration import shipped_folder
from vibe_llms.memory import gate, patterns, secrets
from vibe_llms.providers import azure, error_words, vertex_errors
from vibe_llms.providers.anthropic import errors as anthropic_errors
from vibe_llms.providers.attributes import LONGEST_NAME
from vibe_llms.providers.bedrock import errors as bedrock_errors
from vibe_llms.providers.gemini import errors as gemini_errors
from vibe_llms.server import endpoints

ROOT = Path(vibe_llms.__file__).parent
_METHODS = frozenset(
    {"findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"}
)
_ANCHORED_PHRASES = ("COMMAND", "QUESTION", "REQUEST")
_SIZE, _NIGHTLY_SIZE = 3_000, 12_000
_TEXTS, _NIGHTLY_TEXTS = 120, 4_000


class Site(Struct, frozen=True):
    """A pattern, and what the program does with it: something is done with a whole text."""

    name: str
    pattern: re.Pattern[Any]
    run: Run


def scan(pattern: re.Pattern[Any], methods: Iterable[str] = ("search",)) -> Run:
    """Look for a pattern with these methods of it; what scans does so to the end of the text."""
    anchored = [getattr(pattern, name) for name in ("match", "fullmatch") if name in methods]
    if len(anchored) == len(set(methods)):
        return lambda text: [match(text) for match in anchored]
    return lambda text: sum(1 for _ in pattern.finditer(text))


def scan_words(pattern: re.Pattern[str]) -> Run:
    """Search as much of a text as is searched of an error."""
    return lambda text: pattern.search(text[: error_words._MOST_CHARACTERS])


def list_phrases() -> Iterator[tuple[re.Pattern[str], Run]]:
    for name, shape in vars(patterns).items():
        if name.isupper() and name != "GREETINGS" and not name.startswith("_"):
            pattern = re.compile(shape)
            run = scan(pattern, ("match",) if name in _ANCHORED_PHRASES else ("search",))
            yield pattern, lambda text, run=run: run(gate.normalize(text))  # type: ignore[misc]


def list_remedies() -> Iterator[tuple[re.Pattern[str], Run]]:
    for module in (anthropic_errors, azure, bedrock_errors, gemini_errors, vertex_errors):
        for one in module.REMEDIES:
            pattern = re.compile(one.words, re.IGNORECASE | re.DOTALL)
            yield pattern, scan(pattern)


def list_attributes() -> Iterator[tuple[re.Pattern[str], Run]]:
    for path in sorted((shipped_folder() / "providers").glob("*.toml")):
        for name in tomllib.loads(path.read_text("utf-8")).get("models", {}):
            pattern = re.compile(name)
            yield pattern, lambda text, one=pattern: one.fullmatch(text[:LONGEST_NAME])  # type: ignore[misc]


def like(pattern: str, flags: int = 0) -> Callable[[], Iterable[tuple[re.Pattern[str], Run]]]:
    compiled = re.compile(pattern, flags)
    return lambda: [(compiled, scan(compiled))]


#: Patterns that are known only when the program runs, by their file and the words of the argument:
#: those that there are, or one like them.
MADE: dict[tuple[str, str], Callable[[], Iterable[tuple[re.Pattern[str], Run]]]] = {
    ("cli/settings.py", r"f'^[ \\t]*{re.escape(key)}[ \\t]*=.*$'"): like(
        r"^[ \t]*default\-model[ \t]*=.*$", re.MULTILINE
    ),
    ("documents/readers/pdf.py", r"f'^[ \\t]*(?:[\\d.]+[ \\t]+)?{pattern}'"): like(
        r"^[ \t]*(?:[\d.]+[ \t]+)?Methods\s+of\s+work", re.MULTILINE
    ),
    ("memory/gate.py", "shape"): list_phrases,
    ("memory/secrets.py", "shape"): lambda: [
        (one, secrets.mask_secrets) for one in secrets._shapes()
    ],
    ("providers/attributes.py", "pattern"): list_attributes,
    ("providers/llamacpp/package.py", "'|'.join(map(re.escape, marks))"): like(
        r"<\|im_start\|>|<\|im_end\|>|<s>"
    ),
    ("providers/http_errors.py", "one.words"): list_remedies,
    ("providers/error_words.py", "pattern"): lambda: [
        (one, scan_words(one)) for one in error_words._OVERFLOWS
    ],
    ("providers/error_words.py", r"pattern.replace('{n}', _N)"): lambda: [
        (one, scan_words(one)) for one in error_words._SIZES
    ],
    ("providers/scripted/demo.py", r"f'\\b{spoken}\\b'"): like(
        r"\bget[ _-]?weather\b", re.IGNORECASE
    ),
    # The program's own schemas; those of others have no such expressions.
    ("invocation/keywords.py", "pattern"): list,
    # The content of a user's own script.
    ("providers/scripted/scripts.py", "pattern"): list,
    (
        "server/endpoints.py",
        r"re.sub('{\\w+}', '([^/]+)', re.sub('{\\w+\\.\\.\\.}', '(.+)', path))",
    ): lambda: [(one, one.fullmatch) for one in endpoints._PATTERNS.values()],
    ("storage/texts.py", "'|'.join((_whole(word) for word in bare))"): like(
        "\\bcat\\b|\\bcats\\b|\u732b", re.IGNORECASE
    ),
}


def list_sites() -> Iterator[Site]:
    """All patterns of the package."""
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text("utf-8")
        # Most modules have none, and need not be parsed.
        nodes = [*ast.walk(ast.parse(text))] if re.search(r"\bre\s*\.", text) else []
        calls: list[Any] = [node for node in nodes if _is_call(node)]
        file = path.relative_to(ROOT)
        module = (
            import_module(".".join(("vibe_llms", *file.with_suffix("").parts))) if calls else None
        )
        for call in calls:
            assert module is not None
            name = f"{file.as_posix()}:{call.lineno}"
            words = ast.unparse(call.args[0])
            if (file.as_posix(), words) in MADE:
                made = MADE[file.as_posix(), words]()
                yield from (Site(name, *one) for one in made)
                continue
            pattern = _evaluate(call, module)
            yield Site(name, pattern, scan(pattern, _list_methods(call, nodes)))


def _is_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in {"compile", *_METHODS}
    )


def _list_methods(call: Any, nodes: Sequence[ast.AST]) -> frozenset[str]:
    """What is done with the pattern of a call: perhaps within the module, by its name."""
    if call.func.attr != "compile":
        return frozenset({call.func.attr})
    names = [
        node.targets[0].id
        for node in nodes
        if isinstance(node, ast.Assign)
        and node.value is call
        and isinstance(node.targets[0], ast.Name)
    ]
    return frozenset(
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr in _METHODS
        and isinstance(node.value, ast.Name)
        and node.value.id in names
    ) or frozenset({"search"})


def _evaluate(call: Any, module: ModuleType) -> re.Pattern[Any]:
    """The pattern of a call whose arguments are known in its module; add it to `MADE` if not."""
    place = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(call.func.attr, 2)
    flags = [one.value for one in call.keywords if one.arg == "flags"] or call.args[place:]
    code = [compile(ast.Expression(one), "", "eval") for one in (call.args[0], *flags)]
    return re.compile(*(eval(one, vars(module)) for one in code))


@pytest.mark.storm
@pytest.mark.timeout(300)
def test_no_pattern_takes_its_time_over_any_text(rounds: Callable[[int, int], int]) -> None:
    sites = list(list_sites())
    assert len(sites) > 200
    size, texts = rounds(_SIZE, _NIGHTLY_SIZE), rounds(_TEXTS, _NIGHTLY_TEXTS)
    slow = [
        f"{site.name}: {text}"
        for site in sites
        if (text := find_growth(site.pattern, site.run, size, texts)) is not None
    ]
    assert not slow, "\n".join(slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        r"(\d+(?:\.\d+)?)(ms|s|m|h|d)",
        r"(?m)^ {0,3}(?=.*\|)\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$",
        r"\bpassword(?:\s+for\s+[^.]{1,60}?)?(?:\s*:|\s+is\s+)\S+",
        r"\"(?:[^\"\\]|\\.)*\"",
        r"(?:a|aa)+b",
        r"(a+)+$",
        r"/\*.*?\*/",
        r"\s+$",
    ],
)
def test_a_pattern_that_takes_its_time_is_detected(pattern: str) -> None:
    compiled = re.compile(pattern)
    assert find_growth(compiled, scan(compiled), _SIZE, _TEXTS)


@pytest.mark.parametrize("pattern", [r"\w+", r"\"[^\"\n]*\"?", r"\b(?:a|b){1,8}\b", r"(?m)^#.*$"])
def test_a_pattern_that_does_not_is_left_alone(pattern: str) -> None:
    compiled = re.compile(pattern)
    assert not find_growth(compiled, scan(compiled), _SIZE, _TEXTS)
