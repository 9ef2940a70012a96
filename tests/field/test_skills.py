"""Folders of skills, from public reports about other programs: none is lost in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.field.cases import SkillCase, load_skill_cases
from vibe_llms.base.exceptions import SkillUnavailable
from vibe_llms.skills.catalog import SkillLibrary

CASES = load_skill_cases()


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
def test_skills_are_offered_or_listed_with_the_reason(case: SkillCase, tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    for name, text in case.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    for name, target in case.links.items():
        (tmp_path / name).symlink_to(tmp_path / target)
    library, expect = SkillLibrary([tmp_path / "skills"]), case.expect
    found = library.survey().skills
    assert [one.name for one in found if not one.problem] == expect.offered
    problems = {one.name: one.problem for one in found if one.problem}
    assert problems.keys() == expect.problems.keys()
    for name, words in expect.problems.items():
        assert words in problems[name]
    for name, body in expect.bodies.items():
        assert library.load(name).body == body
    for path in expect.refused:
        with pytest.raises(SkillUnavailable, match="is not allowed"):
            library.read_file(expect.offered[0], path)
