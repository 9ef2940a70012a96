"""The skills in the folders of the user: which there are, which are offered, and their files."""

from __future__ import annotations

import errno
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import SkillUnavailable
from vibe_llms.base.files import find_distrust, read_beneath, walk_files
from vibe_llms.conversations.settings import ALL_SKILLS
from vibe_llms.skills.reading import SkillText, read_skill

#: Names of the file with the instructions, the usual one first.
FILES = ("SKILL.md", "skill.md")
#: Largest `SKILL.md` in bytes.
LARGEST_SKILL = 256 * 1024
#: Largest other file of a skill in bytes.
LARGEST_FILE = 1024 * 1024
#: Subfolders of a folder that are looked at.
_MOST_SKILLS = 500
#: Listed files of a skill.
_MOST_FILES = 200
_LINKED = "it is a symbolic link or in one; link the whole folder of the skill, or copy the file"


class Skill(Struct, frozen=True, kw_only=True):
    """A skill on disk, offered if it has no `problem`.

    `remarks` are departures from the format that do not matter here.
    """

    name: str
    folder: str
    description: str = ""
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}
    problem: str = ""
    remarks: tuple[str, ...] = ()


class SkillCatalog(Struct, frozen=True):
    """The skills of some folders, in their order, and why a folder itself cannot be used."""

    skills: Sequence[Skill] = ()
    problems: Mapping[str, str] = {}

    def choose(self, wanted: Sequence[str]) -> tuple[Sequence[Skill], Mapping[str, str]]:
        """Return the wanted skills that are offered, and why others are not; `*` means all."""
        offered = {one.name: one for one in self.skills if not one.problem}
        if ALL_SKILLS in wanted:
            return [*offered.values()], {}
        broken = {one.name: one.problem for one in self.skills if one.problem}
        missing = {name: broken.get(name, "not found") for name in wanted if name not in offered}
        return [offered[name] for name in dict.fromkeys(wanted) if name in offered], missing


class SkillFile(Struct, frozen=True):
    """A file of a skill besides `SKILL.md`, by its path in the folder, with its size in bytes."""

    path: str
    size: int


class LoadedSkill(Struct, frozen=True):
    """A skill with its instructions and other files, as they are now; `cut` if too many."""

    skill: Skill
    body: str
    files: Sequence[SkillFile]
    cut: bool = False


class SkillLibrary:
    """The skills in some folders; of several skills of one name, the first one is offered.

    Its methods read files and block; they may be called in several threads. A `SKILL.md` that has
    not changed is not read again by `survey`.
    """

    def __init__(self, folders: Sequence[Path], *, own: Path | None = None) -> None:
        """Take the folders in order of precedence; `own` comes first, and may be missing."""
        self._folders = folders
        self._own = own
        self._known: Mapping[str, _Found] = {}

    def survey(self) -> SkillCatalog:
        """Return the skills as they are now."""
        found: dict[str, _Found] = {}
        problems: dict[str, str] = {}
        for root in dict.fromkeys((*([self._own] if self._own else ()), *self._folders)):
            try:
                problem = self._survey_folder(str(root), found)
            except OSError as error:
                missing = root == self._own and isinstance(error, FileNotFoundError)
                problem = "" if missing else _explain(error)
            if problem:
                problems[str(root)] = problem
        self._known = found
        return SkillCatalog(_mark_repeated(one.skill for one in found.values()), problems)

    def load(self, name: str) -> LoadedSkill:
        """Return a skill with its instructions; raise `SkillUnavailable` if it is not offered."""
        text, skill = _read(self._access(name).folder)
        if skill.problem:
            raise SkillUnavailable(f"the skill {name!r} cannot be used", skill.problem)
        files = [*islice(_survey_files(skill.folder), _MOST_FILES + 1)]
        return LoadedSkill(skill, text.body, files[:_MOST_FILES], len(files) > _MOST_FILES)

    def read_file(self, name: str, path: str) -> str:
        """Return the text of a file of a skill; raise `SkillUnavailable` if there is none."""
        folder = self._access(name).folder
        normal = os.path.normpath(path)
        # An absolute path has an empty part; hidden files are not listed either.
        if "\0" in path or any(not one or one.startswith(".") for one in normal.split("/")):
            raise SkillUnavailable(
                f"{path!r} is not allowed; name a file in the folder of the skill, without '..' "
                "and hidden names"
            )
        try:
            data = read_beneath(folder, os.path.join(folder, normal), LARGEST_FILE, trusted=True)
        except (FileNotFoundError, IsADirectoryError, UnicodeEncodeError):
            files = ", ".join(one.path for one in self.load(name).files) or "none"
            raise SkillUnavailable(
                f"the skill {name!r} has no file {path!r}; its files: {files}"
            ) from None
        except OSError as error:
            raise SkillUnavailable(f"{path!r} cannot be read", _explain(error)) from error
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise SkillUnavailable(f"{path!r} is not a text file")
        return text

    def _access(self, name: str) -> Skill:
        found = [one for one in self.survey().skills if one.name == name]
        if (offered := next((one for one in found if not one.problem), None)) is not None:
            return offered
        problem = found[0].problem if found else "not found"
        raise SkillUnavailable(f"the skill {name!r} cannot be used", problem)

    def _survey_folder(self, root: str, found: dict[str, _Found]) -> str:
        """Add the skills of a folder, by their own folders; return the folder's problem or ''."""
        distrust = find_distrust(os.stat(root), root)
        if _find_file(root) is not None:
            # The folder of a skill was named instead of the folder that it is in.
            found.setdefault(root, self._find(root))
            return ""
        names = sorted(one for one in os.listdir(root) if not one.startswith("."))
        paths = [os.path.join(root, one) for one in names]
        # A link that leads nowhere is listed too, with this as its problem.
        folders = [one for one in paths if not os.path.isfile(one)]
        for path in folders[:_MOST_SKILLS]:
            if distrust:
                problem = f"{root}: {distrust}"
                skill = Skill(name=os.path.basename(path), folder=path, problem=problem)
                found.setdefault(path, _Found(None, skill))
            else:
                found.setdefault(path, self._find(path))
        if not distrust and len(folders) > _MOST_SKILLS:
            return f"only the first {_MOST_SKILLS} of its folders are looked at"
        return distrust

    def _find(self, folder: str) -> _Found:
        """Return a skill, known or read again."""
        try:
            signature = _sign(folder)
        except OSError as error:
            skill = Skill(name=os.path.basename(folder), folder=folder, problem=_explain(error))
            return _Found(None, skill)
        known = self._known.get(folder)
        if known is not None and known.signature == signature:
            return known
        return _Found(signature, _read(folder)[1])


class _Found(Struct, frozen=True):
    """A skill, and what changes when its instructions or their owner change."""

    signature: object
    skill: Skill


def produce_library(configuration: Configuration) -> SkillLibrary:
    """Return the skills of the user: those next to the configuration, then those of `[skills]`."""
    places = configuration.places
    folders = [
        places.configuration / os.path.expanduser(one) for one in configuration.skills.folders
    ]
    return SkillLibrary([*map(Path, map(os.path.normpath, folders))], own=places.skills)


def check_skill(folder: Path) -> Skill:
    """Return the skill in a folder; its problem says why it is not offered.

    The format is checked in a folder of others too.
    """
    path = os.path.abspath(folder)
    if not os.path.isdir(path):
        exists = os.path.exists(path)
        problem = "it is not a folder; name the folder of the skill" if exists else "not found"
        return Skill(name=os.path.basename(path), folder=path, problem=problem)
    found, offered = _read(path, trusted=False)[1], _read(path)[1]
    problems = dict.fromkeys(filter(None, (found.problem, offered.problem)))
    return replace(found, problem="; ".join(problems))


def _read(folder: str, *, trusted: bool = True) -> tuple[SkillText, Skill]:
    """Read the instructions of a skill, if `trusted` only from a folder that the user owns."""
    name = os.path.basename(folder)
    file = _find_file(folder)
    if file is None:
        text = SkillText(problem="it has no SKILL.md")
    else:
        try:
            data = read_beneath(folder, os.path.join(folder, file), LARGEST_SKILL, trusted=trusted)
            text = read_skill(data, name)
        except OSError as error:
            text = SkillText(problem=_explain(error))
    return text, Skill(
        name=unicodedata.normalize("NFKC", name),
        folder=folder,
        description=text.description,
        license=text.license,
        compatibility=text.compatibility,
        allowed_tools=text.allowed_tools,
        metadata=text.metadata,
        problem=text.problem,
        remarks=text.remarks,
    )


def _find_file(folder: str) -> str | None:
    return next((one for one in FILES if os.path.lexists(os.path.join(folder, one))), None)


def _sign(folder: str) -> object:
    """Return the identities, sizes and times of the folder and of the instructions."""
    file = _find_file(folder)
    return [
        (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        for status in (os.stat(folder), *([] if file is None else [os.lstat(f"{folder}/{file}")]))
    ]


def _survey_files(folder: str) -> Iterator[SkillFile]:
    """Yield the files of a skill that can be read, in order; links are left out."""
    for path, status in walk_files(folder):
        name = os.path.relpath(path, folder)
        if name not in FILES and isinstance(status, os.stat_result):
            yield SkillFile(name, status.st_size)


def _mark_repeated(skills: Iterable[Skill]) -> Sequence[Skill]:
    """Return skills with a problem for each that another one of its name precedes."""
    first: dict[str, str] = {}
    marked: list[Skill] = []
    for one in skills:
        before = one.folder if one.problem else first.setdefault(one.name, one.folder)
        problem = f"the skill in {before} has the same name and comes first"
        marked.append(one if before == one.folder else replace(one, problem=problem))
    return marked


def _explain(error: OSError) -> str:
    return _LINKED if error.errno == errno.ELOOP else error.strerror or str(error)
