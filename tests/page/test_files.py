"""The files of the page, read without a browser: their sizes, hashes, and words."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from vibe_llms.server.page import load_page

PAGE = Path(__file__).parents[2] / "sources/vibe_llms/page"
#: The largest first load: all that the browser requests before it shows a conversation.
LARGEST_LOAD = 100_000
LONGEST_FILE = 400
#: Sinks that turn text into markup or code; the policy of the page forbids most of them too.
FORBIDDEN = re.compile(
    r"""\b(?:innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|srcdoc
    |createContextualFragment|DOMParser|setHTML\w*|parseHTMLUnsafe|javascript:
    |document\.write(?:ln)?|eval|new\s+Function|(?:setTimeout|setInterval)\(\s*["'`])
    # An address is made by `address` or `readAddress` before; that of a menu's item is.
    |\b(?:href|src|action|formaction)=\$\{(?!item\.href\b)\w+\.[\w.]+\}""",
    re.VERBOSE,
)
_STATIC = re.compile(
    r"""^\s*(?:import|export)\s[^"'()]*["'](\.[^"']+)["']|^import\s*["'](\.[^"']+)["']""", re.M
)
_COMMENT = re.compile(r"/\*.*?\*/|(?:^|(?<=\s))//[^\n]*", re.DOTALL)
#: A text with words: a letter, then at least one space, then a letter.
_SENTENCE = re.compile(r"""(["'])([A-Z][a-z]+ [A-Za-z][^"'\n]*)\1|`([A-Z][a-z]+ [a-z][^`$]*)""")
_WORD = re.compile(r"[A-Za-z]{2,}")
#: Attributes that a person reads or hears.
_READ = re.compile(r"""\b(?:aria-label|title|placeholder|alt|label)="([^"]*[A-Za-z]{2}[^"]*)\"""")


def own_scripts() -> dict[str, str]:
    """Return the texts of the page's own scripts by their names."""
    found = sorted(PAGE.rglob("*.js"))
    return {
        str(one.relative_to(PAGE)): one.read_text() for one in found if one.parent.name != "vendor"
    }


def find_first_modules(first: str = "main.js") -> set[str]:
    """Return the names of the modules that a module imports statically, itself included."""
    found, left = {first}, [first]
    while left:
        name = left.pop()
        for match in _STATIC.finditer((PAGE / name).read_text()):
            target = os.path.normpath(os.path.join(os.path.dirname(name), match[1] or match[2]))
            if target not in found:
                found.add(target)
                left.append(target)
    return found


def find_templates(text: str) -> Iterator[str]:
    """Yield the source of each html template without its `${…}`, the inner ones on their own."""
    for match in re.finditer(r"\bhtml`", text):
        parts, place, depth = [], match.end(), 0
        while True:
            if not depth and text[place] == "`":
                break
            if text.startswith("${", place):
                if not depth:
                    parts.append("\0")
                depth, place = depth + 1, place + 2
                continue
            if depth and text[place] == "`":
                # A template in an expression: its own turn comes.
                place = _skip_template(text, place + 1)
                continue
            if depth and text[place] in "{}":
                depth += 1 if text[place] == "{" else -1
            elif not depth:
                parts.append(text[place])
            place += 1
        yield "".join(parts)


def _skip_template(text: str, place: int) -> int:
    depth = 0
    while depth or text[place] != "`":
        if text.startswith("${", place):
            depth, place = depth + 1, place + 2
        elif depth and text[place] == "`":
            place = _skip_template(text, place + 1)
        else:
            depth += {"{": 1, "}": -1}.get(text[place], 0) if depth else 0
            place += 1
    return place + 1


def find_words(scripts: Mapping[str, str]) -> list[str]:
    """Return the words in scripts that a person reads and that are not in the table of words."""
    found = []
    for name, source in scripts.items():
        if name.startswith("words/"):
            continue
        text = _COMMENT.sub("", source)
        found += [f"{name}: {match[2] or match[3]}" for match in _SENTENCE.finditer(text)]
        for template in find_templates(text):
            found += [f"{name}: {match[1]}" for match in _READ.finditer(template)]
            shown = re.sub(r"<[^<>]*>", " ", template)
            found += [f"{name}: {one.strip()}" for one in shown.split("\0") if _WORD.search(one)]
    return found


def test_the_first_load_is_small() -> None:
    files = load_page().files
    names = {"index.html", "icon.svg", "boot.js", *find_first_modules()}
    names |= set(re.findall(r'/page/\{version\}/([^"]+)"', (PAGE / "index.html").read_text()))
    sizes = {name: len(files[name].packed or files[name].data) for name in names}
    assert len(sizes) > 30
    assert "vendor/ui.js" in sizes
    assert "vendor/math.js" not in sizes
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:8]
    assert sum(sizes.values()) <= LARGEST_LOAD, (sum(sizes.values()), largest)


def test_all_modules_of_the_first_view_are_requested_at_once() -> None:
    index = load_page().files["index.html"].data.decode()
    version = load_page().version
    linked = re.findall(rf'<link rel="modulepreload" href="/page/{version}/([^"]+)" />', index)
    assert len(linked) == len(set(linked))
    assert set(linked) == find_first_modules()
    assert "{" not in index


@pytest.mark.parametrize("name", own_scripts())
def test_a_script_is_short_and_makes_no_markup_of_text(name: str) -> None:
    text = own_scripts()[name]
    assert text.startswith("//"), "the first line says what the file holds"
    assert len(text.splitlines()) <= LONGEST_FILE
    assert not FORBIDDEN.search(text), FORBIDDEN.search(text)


@pytest.mark.parametrize(
    "planted",
    [
        "element.innerHTML = text;",
        "document.write(text)",
        "place.insertAdjacentHTML('beforeend', text)",
        "html`<div dangerouslySetInnerHTML=${{ __html: text }} />`",
        "html`<iframe srcdoc=${text} />`",
        "eval(text)",
        "new Function(text)()",
        "setTimeout('alert(1)')",
        "html`<a href=${citation.source}>${title}</a>`",
        'location.href = "javascript:void 0"',
    ],
)
def test_markup_made_of_text_is_found(planted: str) -> None:
    assert FORBIDDEN.search(planted)


def test_words_are_in_the_table_only() -> None:
    assert find_words(own_scripts()) == []


@pytest.mark.parametrize(
    "planted",
    [
        'tell("The server does not answer.");',
        "tell(`Line ${1}: Nothing was found`, html`<p>Planted ${one} words</p>`);",
        "html`<button>${one ? html`<b>planted</b>` : null}</button>`;",
        'html`<button aria-label="planted">${one}</button>`;',
    ],
)
def test_words_outside_the_table_are_found(planted: str) -> None:
    assert find_words({"planted.js": planted})


def test_each_word_of_the_table_is_used_or_composed() -> None:
    table = "\n".join(one.read_text() for one in sorted((PAGE / "words").glob("en*.js")))
    names = re.findall(r'^  "?([\w.]+)"?:', table, re.M)
    assert len(names) == len(set(names)) > 100
    scripts = "\n".join(
        text for name, text in own_scripts().items() if not name.startswith("words/")
    )
    said = re.findall(r'say\("([\w.]+)"', scripts)
    assert set(said) <= set(names)


def test_bundles_are_those_of_the_table() -> None:
    table = (PAGE / "vendor/README.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \|.*\| `([0-9a-f]{64})` \|$", table, re.M))
    bundles = list((PAGE / "vendor").glob("*.js"))
    assert {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in bundles} == rows


def test_the_bundles_hold_the_versions_that_are_pinned() -> None:
    pinned = json.loads((PAGE.parents[2] / ".auxiliary/page/package.json").read_text())
    table = (PAGE / "vendor/README.md").read_text()
    for name in ("preact", "htm", "@preact/signals", "marked", "prismjs", "temml"):
        assert f"{name} {pinned['devDependencies'][name]} (" in table
        assert (
            f"{name} {pinned['devDependencies'][name]}\n"
            in (PAGE / "vendor/LICENSES.txt").read_text()
        )


def test_compressed_files_are_what_they_were() -> None:
    for name, file in load_page().files.items():
        if name != "index.html" and file.packed:
            assert gzip.decompress(file.packed) == (PAGE / name).read_bytes()
