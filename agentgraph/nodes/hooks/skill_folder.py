"""A skill's folder: its SKILL.md read and checked, its files listed and read. All of it blocks: for worker threads.

The format is the open Agent Skills one (agentskills.io/specification): front matter in YAML between lines of `---`,
then Markdown. All scalars of the front matter are texts (`version: 1.0`), as the format's own validator has them.
"""

from __future__ import annotations

import codecs
import logging
import mimetypes
import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from agentgraph.errors import AgentGraphError, nearest
from agentgraph.messages import ImagePart
from agentgraph.nodes.tool import ToolError

__all__ = ["MANUALS", "Skill", "SkillError", "file_of", "files_in", "image_or_lines", "lines_of", "read_skill"]

log: logging.Logger = logging.getLogger("agentgraph")

MANUALS = ("SKILL.md", "skill.md")
"""What a skill's own file is called; the second where the first is not there, as for the format's own validator."""

_MOST_IN_NAME = 64
_MOST_IN_DESCRIPTION = 1024
_MOST_IN_COMPATIBILITY = 500
_MOST_FRONT_BYTES = 64_000
_FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
_TOOL = re.compile(r"(?:[^\s,(]|\([^)]*\))+")
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_NOT_LISTED = ("__pycache__", "node_modules")


class SkillError(AgentGraphError, ValueError):
    """A skill is not as the format says. `path` is the file, or the folder, and `field` the front matter's, if any."""

    def __init__(self, path: Path, fault: str, field: str | None = None) -> None:
        super().__init__(f"skill {path}: {f'field {field!r}: ' if field else ''}{fault}")
        self.path = path
        self.field = field


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """What a skill's front matter says."""

    name: str
    description: str
    folder: Path
    """Where it lies; all links on the way there are followed already."""
    manual: str
    """What its own file is called: "SKILL.md"."""
    body_line: int
    """The line of that file, from 1, where the instructions begin."""
    license: str | None = None
    compatibility: str | None = None
    metadata: Mapping[str, str] = {}
    allowed_tools: tuple[str, ...] = ()
    """What the skill says may run without asking. It is told to nobody, and allows nothing by itself."""


def read_skill(folder: Path, manual: str) -> Skill:
    """The skill in a folder. Raises `SkillError` for what the format does not allow, `OSError` where it is not read."""
    path = folder / manual
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SkillError(path, "is a link that leads out of the skill's folder")
    front, body_line = _front_matter(path)
    for field in front:
        if field not in _FIELDS:
            near = nearest(field, _FIELDS)
            hint = f"; did you mean {near!r}?" if near else ""
            log.warning("skill %s: field %r is not one of the format, and says nothing here%s", path, field, hint)
    name = unicodedata.normalize("NFKC", _text(path, front, "name", _MOST_IN_NAME))
    if fault := _fault_of_name(name, folder):
        raise SkillError(path, fault, "name")
    metadata: Any = front.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise SkillError(path, f"must be a mapping of texts to texts, found {metadata!r:.80}", "metadata")
    for key, value in cast("dict[str, Any]", metadata).items():
        if not isinstance(value, str):
            raise SkillError(path, f"must be a text, found {value!r:.80}", f"metadata.{key}")
    return Skill(
        name=name,
        description=_text(path, front, "description", _MOST_IN_DESCRIPTION),
        folder=folder.resolve(),
        manual=manual,
        body_line=body_line,
        license=_text(path, front, "license", None) if front.get("license") else None,
        compatibility=_text(path, front, "compatibility", _MOST_IN_COMPATIBILITY) if "compatibility" in front else None,
        metadata=cast("dict[str, str]", metadata),
        allowed_tools=_tools(path, front.get("allowed-tools") or ""),
    )


def _front_matter(path: Path) -> tuple[dict[str, Any], int]:
    """The mapping, and the line that the body begins with."""
    import yaml  # noqa: PLC0415  # an extra

    lines: list[str] = []
    left = _MOST_FRONT_BYTES
    with _opened(path) as file:
        first = file.readline(left)
        if first.removeprefix(b"\xef\xbb\xbf").rstrip() != b"---":
            raise SkillError(path, "must begin with a line of ---, and YAML after it")
        while (line := file.readline(left)).rstrip() != b"---":
            left -= len(line)
            if not line or left <= 0:
                most = f" within the first {_MOST_FRONT_BYTES:,} bytes" if line else ""
                raise SkillError(path, f"has no line of --- that ends its YAML{most}")
            try:
                lines.append(line.decode())
            except UnicodeDecodeError:
                raise SkillError(path, f"line {len(lines) + 2} is no UTF-8") from None
    try:
        found: Any = yaml.load("".join(lines), Loader=yaml.BaseLoader)  # noqa: S506  # it makes texts, lists and dicts
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 2}" if mark is not None else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise SkillError(path, f"the YAML{where} cannot be read: {problem}") from error
    if not isinstance(found, dict):
        raise SkillError(path, f"the YAML must be a mapping of fields, found {found!r:.80}")
    return cast("dict[str, Any]", found), len(lines) + 3


def _text(path: Path, front: Mapping[str, Any], field: str, most: int | None) -> str:
    if field not in front:
        raise SkillError(path, "is missing", field)
    value = front[field]
    if not isinstance(value, str) or not value.strip():
        raise SkillError(path, f"must be a text that is not empty, found {value!r:.80}", field)
    value = value.strip()
    if most is not None and len(value) > most:
        raise SkillError(path, f"has {len(value)} characters; it may have {most}", field)
    return value


def _fault_of_name(name: str, folder: Path) -> str:
    """What is wrong with a name that has a good length, or ""."""
    if name != name.lower() or not all(sign.isalnum() or sign == "-" for sign in name):
        return f"may have small letters, digits and hyphens, found {name!r}"
    if name.startswith("-") or name.endswith("-") or "--" in name:
        return f"may not begin or end with a hyphen, nor have two in a row, found {name!r}"
    # absolute: the name of "." is empty; and not resolved: a link may give a skill's folder its name
    own = unicodedata.normalize("NFKC", folder.absolute().name)
    return "" if own == name else f"must be the folder's name, {own!r}, found {name!r}"


def _tools(path: Path, given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        return tuple(_TOOL.findall(given))
    if isinstance(given, list) and all(isinstance(item, str) for item in cast("list[Any]", given)):
        return tuple(cast("list[str]", given))
    raise SkillError(path, f"must be a text, or a list of texts, found {given!r:.80}", "allowed-tools")


def files_in(skill: Skill, most: int) -> Iterator[str]:
    """The paths of a skill's further files, `most` at most, and then "" where there are more.

    Not those that are hidden, and none that a link leads out to.
    """
    found = 0
    for folder, folders, names in os.walk(skill.folder):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _NOT_LISTED)
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith(".") or (name == skill.manual and path.parent == skill.folder):
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(skill.folder):
                continue
            if found == most:
                yield ""
                return
            found += 1
            yield path.relative_to(skill.folder).as_posix()


def file_of(skill: Skill, path: str) -> Path:
    """Where a path below the skill's folder leads. Raises `ToolError` where that is out of it, or no file."""
    try:
        found = (skill.folder / path.replace("\\", "/")).resolve()
        is_file = found.is_file()
    except (OSError, ValueError, RuntimeError):  # a loop of links, a name that none can have
        found, is_file = skill.folder, False
    if not found.is_relative_to(skill.folder):
        raise ToolError(f"{path!r} is not below the folder of skill {skill.name!r}")
    if not is_file:
        raise ToolError(f"skill {skill.name!r} has no file {path!r}; load_skill lists its files")
    return found


def image_or_lines(skill: Skill, path: str, first_line: int, most_bytes: int, most_image: int) -> str | ImagePart:
    """A file below the skill's folder: an image, or lines of its text. Raises `ToolError` for what is neither."""
    found = file_of(skill, path)
    media_type, _ = mimetypes.guess_type(found.name)
    if media_type not in _IMAGES:
        return lines_of(found, path, first_line, most_bytes)
    with _opened(found) as file:
        data = file.read(most_image + 1)
    if len(data) > most_image:
        raise ToolError(f"{path!r} is an image of more than {most_image:,} bytes, too large to be read")
    return ImagePart(data=data, media_type=media_type)


def lines_of(path: Path, name: str, first_line: int, most_bytes: int) -> str:
    """Lines of a text file, as many as `most_bytes` hold; where there are more, the last line says how to go on.

    "" where the file ends before. Raises `ToolError` where it is no text.
    """
    taken: list[str] = []
    left = most_bytes
    with _opened(path) as file:
        for number, (line, is_cut) in enumerate(_lines(file, most_bytes), 1):
            if number < first_line:
                continue
            if len(line) > left and taken:
                taken.append(f"[There is more: read on with first_line={number}.]")
                break
            taken.append(_decoded(line, name) + (" [The line goes on, and is too long.]" if is_cut else ""))
            left -= len(line)
    return "\n".join(taken)


def _lines(file: BinaryIO, most: int) -> Iterator[tuple[bytes, bool]]:
    """Each line, cut after `most` bytes, and whether it was cut."""
    while line := file.readline(most):
        rest, is_cut = line, False
        while len(rest) == most and not rest.endswith(b"\n"):
            rest = file.readline(most)
            is_cut = is_cut or bool(rest.strip())
        yield line, is_cut


def _decoded(line: bytes, name: str) -> str:
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(line)  # which takes half a sign at the end
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ToolError(f"{name!r} is neither a text in UTF-8 nor an image, and cannot be read")
    return text.rstrip("\r\n")


def _opened(path: Path) -> BinaryIO:
    """The file, open to be read in bytes: a regular one, for a pipe would block."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ToolError(f"{path.name!r} is no ordinary file")
    return os.fdopen(descriptor, "rb")
