"""Questions and their answers. Pure.

The rules:
- A question's id says who asks, and by a digest when and what: the step of each graph on the way, the checkpoint and
  line on which it stands, what was shown, and how often the same was asked before. An answer fits nothing else.
- An answer is matched by its id alone, never by an order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentgraph.context import Interrupt
from agentgraph.errors import ResumeError, listed


def question_id(address: str, line: int, base: int, shown: bytes, before: int) -> str:
    """The id of what is asked from an address. `before`: how often this attempt has asked the same already."""
    told = f"{address} {line} {base} {before} ".encode("utf-8", "surrogatepass") + shown
    return f"{address.rpartition('@')[0]}@{hashlib.blake2b(told, digest_size=5).hexdigest()}"


def place_of(question: Interrupt) -> str:
    """Who asks it."""
    return question.id.rpartition("@")[0]


def stop(place: str, when: str, name: str) -> str:
    """The place of a stop "before" or "after" a node, where no node can be."""
    return f"{place}={when}:{name}"


def is_stop(question: Interrupt) -> bool:
    """Whether this is no node's question, but a stop before or after one."""
    return "=" in place_of(question)


def answers_in(resume: Any, asked: Sequence[Interrupt], thread_id: str) -> dict[str, Any]:
    """The answers by id, in what `Command(resume=...)` was given. Raises `ResumeError` where they are for nothing."""
    ids = [q.id for q in asked]
    if not ids:
        raise ResumeError(f"thread {thread_id!r} has no open question that Command(resume=...) could answer")
    if isinstance(resume, Mapping):
        answers = dict(cast("Mapping[str, Any]", resume))
        unknown = [i for i in answers if i not in ids]
        if unknown:
            raise ResumeError(
                f"thread {thread_id!r} has no open question {listed(unknown)}; open: {listed(ids)}. "
                f"Nothing was answered"
            )
        return answers
    if len(ids) > 1:
        raise ResumeError(
            f"thread {thread_id!r} has {len(ids)} open questions, and one bare answer fits none of them; answer by id: "
            f"Command(resume={{id: answer}}), with {listed(ids)}. Nothing was answered"
        )
    return {ids[0]: resume}
