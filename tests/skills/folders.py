"""Folders of skills for tests."""

from __future__ import annotations

from pathlib import Path


def write_skill(root: Path, name: str, text: str | bytes | None = None) -> Path:
    """Write a skill; without a text, a good one."""
    folder = root / name
    folder.mkdir(parents=True)
    if text is None:
        text = f"---\nname: {name}\ndescription: About {name}.\n---\nDo {name}.\n"
    (folder / "SKILL.md").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder
