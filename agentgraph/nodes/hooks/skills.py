"""Skills: folders with a SKILL.md, found, listed in the prompt, loaded on demand.

Their YAML is an extra: `pip install "agentgraph-engine[skills]"`.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from agentgraph.config import positive
from agentgraph.errors import ConfigError, unknown
from agentgraph.messages import ImagePart, SystemMessage
from agentgraph.models.protocol import ModelResponse
from agentgraph.nodes.hooks.skill_folder import (
    MANUALS,
    Skill,
    SkillError,
    file_of,
    files_in,
    image_or_lines,
    lines_of,
    read_skill,
)
from agentgraph.nodes.llm_node import LlmRequest, ModelCall
from agentgraph.nodes.tool import Tool, ToolContext, ToolError
from agentgraph.threads import ThreadCall

__all__ = ["SKILLS_PROMPT", "Skill", "SkillError", "Skills"]

log: logging.Logger = logging.getLogger("agentgraph")

SKILLS_PROMPT: str = (
    "You have skills: written instructions for certain tasks. Below are their names and what each is for. When a task "
    "fits a skill, call load_skill with its name before you begin, and do as it says. It may name further files: read "
    "them by read_skill_file when you need them, not before."
)
"""What stands before the list in the system prompt."""

_FOUND = "_skills"
"""Under this in `run.scratch`: the skills that this run knows."""

_DEEP = 4
"""How many folders further down a skill may lie."""

_TOOLS = ("load_skill", "read_skill_file")


class Skills:
    """Gives an agent skills: instructions in folders, of which the model sees a list, and loads what it needs.

        agent = ReactAgent("clerk", model, hooks=[Skills("skills")])

    A folder is a skill itself (it has a SKILL.md), or holds skills, up to four folders further down; hidden folders are
    left out. Of one name the first one found stays, in the order of the folders. `include` are the names of those that
    are used, `exclude` of those that are not.

    The list, `name: description` of each after `prompt`, is part of each request's system prompt, and not of the
    history. `load_skill(name)` gives the model a skill's instructions and the names of its files, and
    `read_skill_file(name, path, first_line)` one of them: a text or an image below the skill's folder, and nothing that
    a link leads to outside of it. At most `max_bytes` of a text go into one answer, the rest by `first_line`; an image
    has `max_image_bytes` at most, and `max_files` are listed. With `show_folder` the model is told where a skill lies
    on disk: for agents that have a shell of their own.

    The folders are looked at in a worker thread with the first model call of each run, so that a skill that was added
    or changed is there in the next turn, and the list stays as it is during one. `on_fault`: what is wrong in a skill
    (see `SkillError`) ends the run ("raise"), or is a warning in the log, and the skill is left out ("warn").
    `found()` looks at once, for a check when a program starts.

    Raises `ConfigError` for options that cannot be meant, `ImportError` where PyYAML is not installed.
    """

    name = "skills"

    def __init__(
        self,
        *folders: str | Path,
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        prompt: str = SKILLS_PROMPT,
        on_fault: Literal["raise", "warn"] = "raise",
        max_bytes: int = 50_000,
        max_image_bytes: int = 5_000_000,
        max_files: int = 100,
        show_folder: bool = False,
    ) -> None:
        if not folders:
            raise ConfigError("Skills needs folders to look into: Skills('skills')")
        for folder in folders:
            if not isinstance(folder, (str, Path)) or not str(folder):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"Skills: a folder is a path, found {folder!r:.80}")
        for option, given in (("include", include), ("exclude", exclude)):
            if isinstance(given, str):
                raise ConfigError(f"Skills({option}=...) takes a list of names, found {given!r:.80}")
        if on_fault not in ("raise", "warn"):
            raise ConfigError(f"Skills(on_fault=...): {unknown('choice', on_fault, ('raise', 'warn'))}")
        for option, bound in (("max_bytes", max_bytes), ("max_image_bytes", max_image_bytes), ("max_files", max_files)):
            positive(f"Skills({option}=...)", bound, whole=True, needed=True)
        if importlib.util.find_spec("yaml") is None:
            raise ImportError('Skills needs PyYAML: pip install "agentgraph-engine[skills]"')
        self._folders = tuple(Path(folder) for folder in folders)
        self._include = None if include is None else frozenset(include)
        self._exclude = frozenset(exclude)
        self._prompt = prompt
        self._on_fault = on_fault
        self._max_bytes = max_bytes
        self._max_image_bytes = max_image_bytes
        self._max_files = max_files
        self._show_folder = show_folder
        self._read: dict[Path, tuple[tuple[int, ...], Skill]] = {}  # replaced whole: several threads may look
        self.tools: tuple[Tool, ...] = (Tool(self._load, name=_TOOLS[0]), Tool(self._file, name=_TOOLS[1]))

    def found(self) -> tuple[Skill, ...]:
        """Look into the folders, and return the skills in the order of their names. It blocks.

        Raises `SkillError` for the first fault, unless these are warnings.
        """
        read: dict[Path, tuple[tuple[int, ...], Skill]] = {}
        by_name: dict[str, Skill] = {}
        seen: set[Path] = set()
        for folder in self._folders:
            for path in self._manuals(folder, _DEEP, seen):
                try:
                    state = path.stat()
                    stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
                    known = self._read.get(path)
                    skill = known[1] if known and known[0] == stamp else read_skill(path.parent, path.name)
                except (SkillError, OSError, ToolError) as error:
                    self._fault(
                        error if isinstance(error, SkillError) else SkillError(path, f"cannot be read: {error}")
                    )
                    continue
                read[path] = (stamp, skill)
                before = by_name.setdefault(skill.name, skill)
                if before.folder != skill.folder and not (known and known[0] == stamp):  # told once
                    log.warning("skill %r in %s stays, and that in %s goes", skill.name, before.folder, skill.folder)
        self._read = read
        for name in sorted((self._include or frozenset()) | self._exclude):
            if name not in by_name:
                self._fault(SkillError(self._folders[0], unknown("skill", name, sorted(by_name))))
        names = sorted(n for n in by_name if n not in self._exclude and (self._include is None or n in self._include))
        return tuple(by_name[name] for name in names)

    def _fault(self, error: SkillError) -> None:
        if self._on_fault == "raise":
            raise error
        log.warning("%s; it is left out", error)

    def _manuals(self, folder: Path, deep: int, seen: set[Path]) -> Iterator[Path]:
        """The SKILL.md of a folder, or of those below it. Each folder once, for links may go round."""
        try:
            real = folder.resolve()
            entries = {} if real in seen else {entry.name: entry for entry in os.scandir(folder)}
        except (OSError, RuntimeError) as error:
            self._fault(SkillError(folder, f"is no folder that can be read: {error}"))
            return
        seen.add(real)
        for manual in MANUALS:
            if manual in entries:
                yield folder / manual
                return
        for name in sorted(entries) if deep else ():
            if not name.startswith(".") and _is_folder(entries[name]):
                yield from self._manuals(folder / name, deep - 1, seen)

    async def wrap_model(self, request: LlmRequest, call: ModelCall) -> ModelResponse:
        """Put the list into the system prompt; where there are no skills, hide the tools."""
        scratch: dict[str, Any] = {} if request.run is None else request.run.scratch
        skills = cast("tuple[Skill, ...] | None", scratch.get(_FOUND))
        if skills is None:
            skills = scratch[_FOUND] = await ThreadCall().run(self.found)
        if not skills:
            tools = [tool for tool in request.tools if tool.name not in _TOOLS]
            return await call(msgspec.structs.replace(request, tools=tools))
        listed = "\n".join(f"- {skill.name}: {' '.join(skill.description.split())}" for skill in skills)
        text = f"{self._prompt}\n\n{listed}"
        system = request.system
        if system is None:
            system = SystemMessage(text)
        else:
            system = msgspec.structs.replace(system, text=f"{system.text}\n\n{text}")
        return await call(msgspec.structs.replace(request, system=system))

    def _load(self, name: str, context: ToolContext) -> str:
        """Get a skill's instructions, and the list of its files.

        Args:
            name: The skill's name, from the list of skills.
        """
        skill = self._skill(name, context)
        try:
            path = file_of(skill, skill.manual)
            text = lines_of(path, skill.manual, skill.body_line, self._max_bytes).strip()
        except OSError as error:
            raise ToolError(f"skill {name!r} cannot be read: {error.strerror}") from error
        told = [text or "(This skill has no instructions.)"]
        if skill.compatibility:
            told.append(f"It needs: {skill.compatibility}")
        if self._show_folder:
            told.append(f"The skill's folder: {skill.folder}")
        files = [path or "(and more)" for path in files_in(skill, self._max_files)]
        if files:
            told.append("Files of this skill, for read_skill_file:\n" + "\n".join(f"- {path}" for path in files))
        return "\n\n".join(told)

    def _file(self, name: str, path: str, context: ToolContext, first_line: int = 1) -> str | ImagePart:
        """Read a file of a skill.

        Args:
            name: The skill's name.
            path: The file's path in the skill's folder, as load_skill lists it or the skill names it.
            first_line: The line to begin with, where an earlier answer says that there is more.
        """
        skill = self._skill(name, context)
        try:
            found = image_or_lines(skill, path, first_line, self._max_bytes, self._max_image_bytes)
        except OSError as error:
            raise ToolError(f"{path!r} of skill {name!r} cannot be read: {error.strerror}") from error
        if not found and first_line > 1:
            raise ToolError(f"{path!r} of skill {name!r} ends before line {first_line}")
        return found

    def _skill(self, name: str, context: ToolContext) -> Skill:
        """The skill of that name, of those that this run knows: a run that goes on elsewhere looks again."""
        scratch = context.run.scratch
        skills: tuple[Skill, ...] | None = scratch.get(_FOUND)
        if skills is None:
            skills = scratch[_FOUND] = self.found()
        for skill in skills:
            if skill.name == name:
                return skill
        raise ToolError(unknown("skill", name, [skill.name for skill in skills]))

    def __repr__(self) -> str:
        return f"<Skills {', '.join(map(str, self._folders))}>"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
