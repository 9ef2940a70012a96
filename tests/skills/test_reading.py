"""The text of a `SKILL.md`: our verdicts beside those of the format's reference reader."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skills_ref import validate
from skills_ref.parser import read_properties

from tests.skills.folders import write_skill
from vibe_llms.skills.catalog import check_skill
from vibe_llms.skills.reading import read_skill

FIELDS = "name: pdf\ndescription: Fills in forms."
#: Front matters of a skill in the folder `pdf` that both readers accept.
GOOD = {
    "only what is required": FIELDS,
    "in another order": "description: Fills in forms.\nname: pdf",
    "every field": f"{FIELDS}\nlicense: MIT\ncompatibility: Needs git\n"
    'allowed-tools: Bash(git:*) Read\nmetadata:\n  author: me\n  version: "1.0"',
    "in quotes": "name: 'pdf'\ndescription: \"Fills in: forms.\"",
    "folded lines": "name: pdf\ndescription: >\n  Fills in\n  forms.",
    "kept lines": "name: pdf\ndescription: |\n  Fills in\n  forms.",
    "a comment": f"# mine\n{FIELDS} # yes",
    "letters of another language": "name: pdf\ndescription: Füllt Formulare aus. 填写表格",
    "a number as text": f"{FIELDS}\nmetadata:\n  version: 1.0",
    "an empty license": f"{FIELDS}\nlicense:",
    "a list of tools": f"{FIELDS}\nallowed-tools:\n  - Read\n  - Write",
    "the longest description": f"name: pdf\ndescription: {'x' * 1024}",
    "the longest compatibility": f"{FIELDS}\ncompatibility: {'x' * 500}",
    "words that YAML reads as other values": "name: pdf\ndescription: yes",
}
#: Front matters that both refuse, with words of our reason.
BAD = {
    "no name": ("description: Fills in forms.", "it has no name"),
    "no description": ("name: pdf", "it has no description"),
    "an empty name": ("name:\ndescription: Fills in forms.", "its name is empty"),
    "an empty description": ("name: pdf\ndescription: ''", "its description is empty"),
    "white space as description": ("name: pdf\ndescription: '  '", "its description is empty"),
    "a list as description": ("name: pdf\ndescription:\n  - a", "its description is empty or not"),
    "another name": ("name: png\ndescription: Draws.", "is not that of its folder, 'pdf'"),
    "capitals": ("name: PDF\ndescription: Fills in forms.", "only lowercase letters"),
    "a space": ("name: pdf forms\ndescription: Fills.", "only lowercase letters"),
    "an underscore": ("name: pdf_forms\ndescription: Fills.", "only lowercase letters"),
    "a path as name": ("name: ../pdf\ndescription: Fills.", "only lowercase letters"),
    "a hyphen first": ("name: -pdf\ndescription: Fills.", "a hyphen at an end"),
    "a hyphen last": ("name: pdf-\ndescription: Fills.", "a hyphen at an end"),
    "two hyphens": ("name: pdf--a\ndescription: Fills.", "two in a row"),
    "a long name": (f"name: {'p' * 65}\ndescription: Fills.", "65 characters; at most 64"),
    "a long description": (f"name: pdf\ndescription: {'x' * 1025}", "1025 characters; at most"),
    "a long compatibility": (f"{FIELDS}\ncompatibility: {'x' * 501}", "501 characters; at most"),
    "a list as compatibility": (f"{FIELDS}\ncompatibility:\n  - a", "compatibility is not text"),
    "a colon without quotes": (
        "name: pdf\ndescription: Use it so: fill in",
        "invalid YAML in line 3: mapping values are not allowed",
    ),
    "an open quote": ("name: pdf\ndescription: 'Fills", "invalid YAML in line"),
    "a tab": ("name: pdf\n\tdescription: a", "invalid YAML in line 3"),
    "a field twice": (f"{FIELDS}\nname: pdf", "the field 'name' occurs twice"),
    "an alias": (f"{FIELDS}\nlicense: &a x\ncompatibility: *a", "line 4 has an anchor"),
    "a tag": (f"{FIELDS}\nlicense: !!python/object:os.system x", "line 4 has an anchor"),
    "no fields": ("just words", "its front matter has no fields"),
    "a list of fields": ("- name: pdf", "its front matter has no fields"),
    "nothing": ("", "its front matter has no fields"),
    "only for the user": (f"{FIELDS}\ndisable-model-invocation: true", "excludes use by models"),
}
#: Front matters that only the reference reader refuses, with words of our remark.
TOLERATED = {
    "a field of another program": (f"{FIELDS}\nmodel: opus\ncolor: red", "fields: color, model;"),
    "brackets": (f"{FIELDS}\nallowed-tools: [Read, Write]", "it uses brackets or braces"),
    "braces": (f"{FIELDS}\nmetadata: {{author: me}}", "it uses brackets or braces"),
}


@pytest.mark.parametrize("front", GOOD.values(), ids=GOOD)
def test_a_skill_in_the_format_is_read_without_a_remark(tmp_path: Path, front: str) -> None:
    folder = write_skill(tmp_path, "pdf", f"---\n{front}\n---\nDo this.\n")
    assert validate(folder) == []
    skill = check_skill(folder)
    assert (skill.problem, skill.remarks) == ("", ())
    known = read_properties(folder)
    assert (skill.name, skill.description) == (known.name, known.description)
    assert skill.license == (known.license or "")
    assert skill.compatibility == (known.compatibility or "")
    assert skill.metadata == (known.metadata or {})


@pytest.mark.parametrize(("front", "words"), BAD.values(), ids=BAD)
def test_a_skill_against_the_format_is_refused_with_the_reason(
    tmp_path: Path, front: str, words: str
) -> None:
    folder = write_skill(tmp_path, "pdf", f"---\n{front}\n---\nDo this.\n")
    assert validate(folder)
    assert words in check_skill(folder).problem


@pytest.mark.parametrize(("front", "words"), TOLERATED.values(), ids=TOLERATED)
def test_a_harmless_departure_from_the_format_is_a_remark(
    tmp_path: Path, front: str, words: str
) -> None:
    folder = write_skill(tmp_path, "pdf", f"---\n{front}\n---\nDo this.\n")
    assert validate(folder)
    skill = check_skill(folder)
    assert skill.problem == ""
    assert words in skill.remarks[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"Do this.", "no front matter"),
        (b"", "no front matter"),
        (b"\n---\nname: pdf\ndescription: a\n---\n", "no front matter"),
        (b"---\nname: pdf\ndescription: a\n", "has no end"),
        (b"---", "has no end"),
    ],
)
def test_a_file_without_front_matter_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    folder = write_skill(tmp_path, "pdf", data)
    assert validate(folder)
    assert words in check_skill(folder).problem


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"---\nname: pdf\ndescription: \xff\n---\n", "it is not UTF-8 text"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "it is a binary file"),
        ("---\nname: pdf\n".encode("utf-16"), "it is not UTF-8 text"),
    ],
)
def test_a_binary_file_is_refused(data: bytes, words: str) -> None:
    assert words in read_skill(data, "pdf").problem


def test_line_ends_of_windows_make_no_difference(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "pdf", f"---\n{FIELDS}\n---\nOne\nTwo\n".replace("\n", "\r\n"))
    assert validate(folder) == []
    assert (check_skill(folder).problem, check_skill(folder).remarks) == ("", ())
    assert read_skill((folder / "SKILL.md").read_bytes(), "pdf").body == "One\nTwo"


def test_a_rule_in_the_text_does_not_end_the_front_matter() -> None:
    text = read_skill(f"---\n{FIELDS}\nlicense: a --- b\n---\nOne\n\n---\n\nTwo".encode(), "pdf")
    assert (text.license, text.body) == ("a --- b", "One\n\n---\n\nTwo")


def test_the_file_may_have_a_lowercase_name(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "pdf", f"---\n{FIELDS}\n---\n")
    os.rename(folder / "SKILL.md", folder / "skill.md")
    assert validate(folder) == []
    assert check_skill(folder).problem == ""


def test_a_name_may_have_letters_of_any_language(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "größe-技能", "---\nname: größe-技能\ndescription: a\n---\n")
    assert validate(folder) == []
    assert check_skill(folder).problem == ""


def test_deep_nesting_is_refused_before_anything_is_made_of_it() -> None:
    for front in ("metadata: " + "[" * 100_000, "\n".join(" " * n + "a:" for n in range(500))):
        text = read_skill(f"---\n{FIELDS}\n{front}\n---\n".encode(), "pdf")
        assert "nest" in text.problem


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_fail(data: bytes) -> None:
    assert read_skill(data, "pdf").problem or data
    assert read_skill(b"---\n" + data + b"\n---\n", "pdf").problem


@given(st.text(st.sampled_from("-abc: \n#'\"[]{}&*!|>%@,?\t\r"), max_size=60))
def test_no_yaml_makes_the_reader_fail(front: str) -> None:
    read_skill(f"---\n{FIELDS}\n{front}\n---\n".encode(), "pdf")
