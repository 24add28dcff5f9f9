"""Calls that a human has to see before they run: approved, edited, rejected, or answered in the tool's place."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, Union, cast

import msgspec

from agentgraph.context import Interrupted, RunContext
from agentgraph.errors import ConfigError, listed, unknown
from agentgraph.messages import AssistantMessage, ToolCall, ToolResponse, ToolResponseMessage
from agentgraph.node import as_mapping
from agentgraph.nodes.answer import content_of
from agentgraph.nodes.arguments import ArgumentsError, decode
from agentgraph.nodes.history import with_own_ids
from agentgraph.nodes.hooks.hook import AgentParts
from agentgraph.nodes.tool import Tool

__all__ = ["Approve", "Decision", "Edit", "HumanApproval", "Reject", "Respond", "Review", "Rule"]


class _Decision(msgspec.Struct, frozen=True, tag_field="decision", forbid_unknown_fields=True):
    pass


class Approve(_Decision, frozen=True, tag="approve"):
    """The call runs as it is. In JSON `{"decision": "approve"}`."""


class Edit(_Decision, frozen=True, tag="edit"):
    """The call runs with other arguments, which must fit the tool's schema, or as a call of the tool `name`."""

    arguments: dict[str, Any]
    name: str | None = None


class Reject(_Decision, frozen=True, tag="reject"):
    """The call does not run, and the model is told so, with the reason."""

    reason: str = ""


class Respond(_Decision, frozen=True, tag="respond"):
    """The call does not run: the content, a text or any value with a JSON form, is what the tool would have said."""

    content: Any


Decision = Union[Approve, Edit, Reject, Respond]
"""What a question of `HumanApproval` is answered with: one of these, or its JSON form."""

DecisionName = Literal["approve", "edit", "reject", "respond"]

_DECISIONS: Final[Mapping[str, Any]] = {"approve": Approve, "edit": Edit, "reject": Reject, "respond": Respond}

Rule = Callable[[ToolCall, Any], bool | Awaitable[bool]]
"""`(call, state) -> bool`, sync (it must not block) or async: whether the call is to be seen by a human."""

Description = Callable[[ToolCall, Any], str | Awaitable[str]]
"""`(call, state) -> text`, sync (it must not block) or async: what is told to whoever decides."""


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """How calls of one tool are decided on. None: as the hook says for all."""

    when: Rule | None = None
    """None: always."""
    decisions: Sequence[DecisionName] | None = None
    description: str | Description | None = None


class HumanApproval:
    """Pauses the run before calls that a human must see, and does with each as was decided.

        HumanApproval({"delete", "send"})
        HumanApproval({"delete": True, "pay": Review(when=is_large, decisions=["approve", "reject"])})
        ...
        paused = await agent.run("Pay the rent.", thread)
        question = paused.interrupts[0]
        await agent.run(Command(resume={question.id: Approve()}), thread)

    `tools`: names; or a mapping from names to True, False, a rule or a `Review`; or one rule for the calls of all
    tools; None for all calls. `decisions` are those that are allowed, `description` is a text or a function, where a
    tool has none of its own. A question's `value` has `tool`, `arguments`, `call_id`, `description` and `decisions`. It
    is asked once, however often the run pauses and goes on, and an answer is bound to the arguments that were shown. A
    decision that is not allowed, or arguments that the tool does not take, are asked for again, and the interrupt's
    `error` says why.

    No call of the message runs before all questions about it are answered. In the history an edited call stands as it
    ran (the original is in the message's `metadata["edited"]`). Hooks after a model call run in reverse: given first,
    this one sees what all others have made of the calls. Raises `ConfigError` for a choice that there is not.
    """

    types: tuple[type, ...] = (Approve, Edit, Reject, Respond)

    def __init__(
        self,
        tools: Collection[str] | Mapping[str, bool | Rule | Review] | Rule | None = None,
        *,
        decisions: Sequence[DecisionName] = ("approve", "edit", "reject", "respond"),
        description: str | Description = "",
        name: str = "HumanApproval",
    ) -> None:
        self.name = name
        self._everywhere = _review(tools) if tools is None or callable(tools) else None
        self._reviews: dict[str, Review] = {}
        if isinstance(tools, str):
            raise ConfigError(f"HumanApproval(tools=...) takes several names; write {{{tools!r}}}")
        if isinstance(tools, Mapping):
            named = cast("Mapping[str, Any]", tools)
            self._reviews = {tool: _review(said, tool) for tool, said in named.items() if said is not False}
        elif self._everywhere is None:
            self._reviews = {tool: Review() for tool in cast("Collection[str]", tools)}
        self._decisions = _allowed(decisions, "HumanApproval(decisions=...)")
        self._description = description
        for tool, review in self._reviews.items():
            if review.decisions is not None:
                _allowed(review.decisions, f"HumanApproval: tool {tool!r}: Review(decisions=...)")
        self._tools: Mapping[str, Tool] = {}

    def bind(self, agent: AgentParts) -> HumanApproval:
        """The hook that knows the agent's tools."""
        bound = HumanApproval.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound._tools = {tool.name: tool for tool in agent.tools}
        agent.tell_unknown(self.name, self._reviews)
        return bound

    async def after_model(self, state: Any, run: RunContext[Any]) -> dict[str, Any] | None:
        """Ask about the open calls of the last message, and return the messages as they were decided on."""
        given, answered = _open_calls(as_mapping(state).get("messages") or ())
        if given is None:
            return None
        asked = with_own_ids(given)
        before = {} if answered is None else {response.id: response for response in answered.responses}
        calls = [call for call in asked.tool_calls if call.id not in before]
        # by what they are: what was decided of other arguments holds for those alone
        shown = hashlib.blake2b(repr([(c.id, c.name, c.arguments) for c in calls]).encode(), digest_size=8).hexdigest()
        ask = partial(self._questions, calls, state)
        questions: dict[str, dict[str, Any]] = await run.once(f"questions {shown}", ask)
        decided: dict[str, Decision] = {}
        waiting: list[Any] = []
        for call in calls:
            if call.id in questions:
                try:
                    decided[call.id] = self._decision(run.part(call.id), questions[call.id])
                except Interrupted as question:
                    waiting += question.interrupts
        if waiting:
            raise Interrupted(tuple(waiting))
        return _told(given, asked, answered, decided) if decided else None

    async def _questions(self, calls: Sequence[ToolCall], state: Any) -> dict[str, dict[str, Any]]:
        """What is to be asked, by call id."""
        found: dict[str, dict[str, Any]] = {}
        for call in calls:
            review = self._reviews.get(call.name, self._everywhere)
            if review is None or not (review.when is None or await _given(review.when(call, state))):
                continue
            described = self._description if review.description is None else review.description
            found[call.id] = {
                "tool": call.name,
                "arguments": _arguments(call),
                "call_id": call.id,
                "description": described if isinstance(described, str) else await _given(described(call, state)),
                "decisions": list(self._decisions if review.decisions is None else review.decisions),
            }
        return found

    def _decision(self, part: RunContext[Any], question: dict[str, Any]) -> Decision:
        """What was decided. Raises `Interrupted` where nothing was yet, or nothing that does."""
        schema = Union[tuple(_DECISIONS[name] for name in question["decisions"])]
        error = ""
        while True:
            try:
                decision = cast("Decision", part.interrupt(question, schema=schema))
            except Interrupted as asked:
                known = {q.id: q.error for q in part.open_questions()}
                raise Interrupted(
                    tuple(
                        msgspec.structs.replace(q, error=q.error or known.get(q.id) or error) for q in asked.interrupts
                    )
                ) from None
            error = self._fault(decision, question["tool"])
            if not error:
                return decision

    def _fault(self, decision: Decision, name: str) -> str:
        """What is wrong with a decision that has the right form; "" for nothing."""
        if not isinstance(decision, Edit):
            return ""
        if decision.name is not None and decision.name != name and decision.name not in self._tools:
            return unknown("tool", decision.name, self._tools)
        tool = self._tools.get(decision.name or name)
        if tool is not None:
            try:
                tool.arguments(_json(decision.arguments))
            except ArgumentsError as error:
                return str(error)
        return ""

    def __repr__(self) -> str:
        return f"<{self.name} {'by a rule' if self._everywhere is not None else list(self._reviews)}>"


def _review(said: Any, tool: str = "") -> Review:
    if isinstance(said, Review):
        return said
    if said is None or said is True:
        return Review()
    if callable(said):
        return Review(when=cast("Rule", said))
    raise ConfigError(
        f"HumanApproval: tool {tool!r} takes True, False, a rule (call, state) -> bool, or a Review; found {said!r:.80}"
    )


def _allowed(decisions: Sequence[str], where: str) -> tuple[str, ...]:
    if isinstance(decisions, str) or not decisions:
        raise ConfigError(f"{where} takes one or more of {listed(_DECISIONS)}; found {decisions!r}")
    for name in decisions:
        if name not in _DECISIONS:
            raise ConfigError(f"{where}: {unknown('decision', name, _DECISIONS)}")
    return tuple(decisions)


async def _given(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def _open_calls(messages: Sequence[Any]) -> tuple[AssistantMessage | None, ToolResponseMessage | None]:
    """The message whose calls the tool node would run, and the answers that some of them have already."""
    last = messages[-1] if messages else None
    if isinstance(last, AssistantMessage):
        return last, None
    if isinstance(last, ToolResponseMessage):
        return next((m for m in reversed(messages) if isinstance(m, AssistantMessage)), None), last
    return None, None


def _arguments(call: ToolCall) -> Any:
    """The arguments as the tool will read them; the text itself where it is no JSON object."""
    try:
        return decode(call.arguments, call.name)
    except (ArgumentsError, RecursionError):
        return call.arguments


def _json(arguments: Mapping[str, Any]) -> str:
    return msgspec.json.encode(arguments).decode()


def _told(
    given: AssistantMessage,
    asked: AssistantMessage,
    answered: ToolResponseMessage | None,
    decided: Mapping[str, Decision],
) -> dict[str, Any] | None:
    """The message with its calls as they are to run, and the answers of those that are not to run."""
    calls: list[ToolCall] = []
    responses = {} if answered is None else {response.id: response for response in answered.responses}
    edited: dict[str, Any] = {}
    for was in asked.tool_calls:
        call, decision = was, decided.get(was.id)
        if isinstance(decision, Edit):
            edited[was.id] = {"name": was.name, "arguments": was.arguments}
            call = ToolCall(was.id, decision.name or was.name, _json(decision.arguments))
        elif isinstance(decision, Reject):
            why = f": {decision.reason}" if decision.reason else ""
            text = f"This call of {call.name!r} was rejected by a human, and did not run{why}"
            responses[call.id] = ToolResponse(call.id, call.name, text, is_error=True)
        elif isinstance(decision, Respond):
            responses[call.id] = ToolResponse(call.id, call.name, content_of(decision.content, call.name))
        calls.append(call)
    messages: list[Any] = []
    if edited:
        metadata = {**asked.metadata, "edited": {**asked.metadata.get("edited", {}), **edited}}
        messages.append(msgspec.structs.replace(asked, tool_calls=calls, metadata=metadata))
    elif asked is not given:
        messages.append(asked)
    if responses:
        in_order = [responses[call.id] for call in calls if call.id in responses]
        id = f"{asked.id}-answers" if answered is None else answered.id
        metadata = {} if answered is None else answered.metadata
        messages.append(ToolResponseMessage(in_order, id=id, metadata=metadata))
    return {"messages": messages} if messages else None
