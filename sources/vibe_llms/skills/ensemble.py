"""Skills as an ensemble: their names and descriptions as instructions, their texts by a tool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from vibe_llms.base.exceptions import SkillUnavailable
from vibe_llms.conversations.settings import ALL_SKILLS, SKILLS
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.hidden import one_line
from vibe_llms.skills.catalog import Skill, SkillLibrary

INSTRUCTIONS = """\
You have skills: instructions of the user for certain tasks. If a task fits the description of a
skill, call use_skill with its name before you begin, and follow what it returns; it has the
authority of the user. Do not guess what a skill says from its description. These are the skills:
"""
#: Characters of all descriptions in the instructions; with more, each is shortened.
_TABLE_CHARACTERS = 24_000
#: Bytes of a text that the model sees: instructions cut in the middle would mislead it.
_SHOWN_BYTES = 64 * 1024


class SkillsEnsemble:
    """The skills of one conversation, with the tool `use_skill`; no tool without skills.

    `wanted` are names of skills, or `*` for all. `notify` is told which wanted skills are missing.
    With `show_folders`, the model learns where a skill is, so that it can run a script there;
    without, neither paths nor reasons are shown.
    """

    def __init__(
        self,
        library: SkillLibrary,
        wanted: Sequence[str],
        *,
        show_folders: bool,
        notify: Callable[[str], None],
    ) -> None:
        self._library = library
        self._wanted = wanted
        self._show_folders = show_folders
        self._notify = notify
        self._skills: Sequence[Skill] = ()
        self._invokers: tuple[Invoker, ...] = ()

    @property
    def name(self) -> str:
        """First part of its tool's name."""
        return SKILLS

    @property
    def instructions(self) -> str:
        """The names and descriptions of the skills."""
        if not self._skills:
            return ""
        most = _TABLE_CHARACTERS // len(self._skills)
        lines = [f"- {one.name}: {_shorten(one.description, most)}" for one in self._skills]
        return "\n".join([INSTRUCTIONS, *lines])

    @property
    def invokers(self) -> Sequence[Invoker]:
        """The tool, if there are skills."""
        return self._invokers

    async def open(self) -> None:
        """Find the skills, off the event loop; a broken one is left out."""
        catalog = await asyncio.to_thread(self._library.survey)
        self._skills, missing = catalog.choose(self._wanted)
        for name, problem in missing.items():
            reason = f": {problem}" if self._show_folders else ""
            self._notify(f"the skill {name!r} is left out{reason}")
        if self._skills:
            tool = Invoker.from_function(
                self._use_skill, name=f"{SKILLS}/use_skill", idempotent=True
            )
            self._invokers = (replace(tool, ensemble=SKILLS, shown_bytes=_SHOWN_BYTES),)

    async def close(self) -> None:
        """Do nothing."""

    def _use_skill(self, name: str, file: str = "") -> InvocationOutput:
        """Read the instructions of a skill, or one of its files, before you do its task.

        Args:
            name: The name of the skill.
            file: The path of a file of the skill, as its instructions name it; leave it empty to
                read the instructions, which come with a list of the files.
        """
        if ALL_SKILLS not in self._wanted and name not in self._wanted:
            known = ", ".join(one.name for one in self._skills)
            return _fail(f"There is no skill {name!r}; the skills are {known}.")
        try:
            text = self._library.read_file(name, file) if file else self._describe(name)
        except SkillUnavailable as error:
            return _fail(str(error) if self._show_folders else error.summary)
        return InvocationOutput((TextualContent(text),), f"{name}: {file}" if file else name)

    def _describe(self, name: str) -> str:
        """Return the instructions of a skill with the list of its files."""
        loaded = self._library.load(name)
        parts = [loaded.body or "(The skill has no instructions besides its description.)"]
        if loaded.files:
            lines = [f"- {one.path} ({one.size} bytes)" for one in loaded.files]
            more = ["- and more"] if loaded.cut else []
            parts.append("\n".join(["Files of this skill, for use_skill:", *lines, *more]))
        if self._show_folders:
            parts.append(f"Folder of this skill: {loaded.skill.folder}")
        return "\n\n".join(parts)


def _shorten(text: str, most: int) -> str:
    line = one_line(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _fail(text: str) -> InvocationOutput:
    return InvocationOutput((TextualContent(text),), failed=True)
