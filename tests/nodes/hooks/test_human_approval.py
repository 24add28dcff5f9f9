"""Human approval: which calls are asked about, what each decision does, and that it lasts over a restart."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import END, START, Command, RunConfig, StateGraph
from agentgraph.checkpoint import MemorySaver
from agentgraph.errors import ConfigError, ResumeError
from agentgraph.events import InterruptRaised
from agentgraph.messages import AssistantMessage, ToolCall, ToolResponse, ToolResponseMessage, UserMessage
from agentgraph.nodes import AgentResult, ReactAgent, ToolContext, tool
from agentgraph.nodes.hooks import Approve, Edit, HumanApproval, Jump, Reject, Respond, Review, after_model
from agentgraph.strategies import Messages
from agentgraph.testing import ScriptedModel, check_request

THREAD = RunConfig(thread_id="t")


class Shop:
    """A tool that is dangerous, one that is not, and what they have done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def tools(self) -> list[Any]:
        @tool
        async def delete(path: str, depth: int = 0) -> str:
            """Delete a file."""
            self.done.append(f"delete {path}")
            return f"{path} is gone"

        @tool
        async def look(path: str) -> str:
            """Look at a file."""
            self.done.append(f"look {path}")
            return f"{path} is there"

        return [delete, look]


def call(id: str, path: str, name: str = "delete") -> ToolCall:
    return ToolCall(id, name, f'{{"path": "{path}"}}')


def agent(shop: Shop, script: list[Any], *hooks: Any, **options: Any) -> ReactAgent:
    hung = hooks or (HumanApproval({"delete"}),)
    return ReactAgent("clerk", ScriptedModel(script), shop.tools(), hooks=hung, **options)


def answers(result: AgentResult) -> list[ToolResponse]:
    return [r for m in result.messages if isinstance(m, ToolResponseMessage) for r in m.responses]


async def test_a_run_pauses_with_the_call_that_needs_it_and_runs_it_when_it_is_approved() -> None:
    shop = Shop()
    clerk = agent(shop, [[call("c1", "a")], "Done."], checkpointer=MemorySaver())
    paused = await clerk.run("Delete a.", THREAD)
    assert (paused.status, shop.done) == ("interrupted", [])
    (question,) = paused.interrupts
    assert question.value == {
        "tool": "delete",
        "arguments": {"path": "a"},
        "call_id": "c1",
        "description": "",
        "decisions": ["approve", "edit", "reject", "respond"],
    }
    result = await clerk.run(Command(resume={question.id: {"decision": "approve"}}), THREAD)
    assert (result.text, shop.done) == ("Done.", ["delete a"])
    assert [r.content for r in answers(result)] == ["a is gone"]


@pytest.mark.parametrize(
    ("decision", "done", "answer"),
    [
        (Approve(), ["delete a"], ToolResponse("c1", "delete", "a is gone")),
        (Edit({"path": "b"}), ["delete b"], ToolResponse("c1", "delete", "b is gone")),
        (Edit({"path": "b"}, "look"), ["look b"], ToolResponse("c1", "look", "b is there")),
        (
            Reject("it is mine"),
            [],
            ToolResponse(
                "c1", "delete", "This call of 'delete' was rejected by a human, and did not run: it is mine", True
            ),
        ),
        (Respond({"gone": 1}), [], ToolResponse("c1", "delete", '{"gone":1}')),
        (Respond(""), [], ToolResponse("c1", "delete", "(no output)")),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
async def test_each_decision_does_what_it_says(
    decision: Any, done: list[str], answer: ToolResponse, as_json: bool
) -> None:
    shop, model = Shop(), ScriptedModel([[call("c1", "a")], "Done."])
    clerk = ReactAgent("clerk", model, shop.tools(), hooks=[HumanApproval({"delete"})], checkpointer=MemorySaver())
    paused = await clerk.run("Go.", THREAD)
    given = msgspec.to_builtins(decision) if as_json else decision
    result = await clerk.run(Command(resume={paused.interrupts[0].id: given}), THREAD)
    assert (result.status, result.text, shop.done, answers(result)) == ("done", "Done.", done, [answer])
    check_request(model.requests[1])


async def test_the_history_says_what_ran_after_an_edit_and_keeps_the_original_aside() -> None:
    clerk = agent(Shop(), [[call("c1", "a")], "Done."], checkpointer=MemorySaver())
    paused = await clerk.run("Go.", THREAD)
    result = await clerk.run(Command(resume={paused.interrupts[0].id: Edit({"path": "b"}, "look")}), THREAD)
    asked = result.messages[1]
    assert isinstance(asked, AssistantMessage)
    assert asked.id == paused.messages[1].id
    assert asked.tool_calls == [ToolCall("c1", "look", '{"path":"b"}')]
    assert asked.metadata["edited"] == {"c1": {"name": "delete", "arguments": '{"path": "a"}'}}


async def test_of_several_calls_each_gets_its_own_decision_and_the_others_run_by_themselves() -> None:
    shop = Shop()
    calls = [call("c1", "a"), call("c2", "b"), call("c3", "c", "look"), call("c4", "d"), call("c5", "e")]
    clerk = agent(shop, [calls, "Done."], checkpointer=MemorySaver())
    paused = await clerk.run("Go.", THREAD)
    ids = {q.value["call_id"]: q.id for q in paused.interrupts}
    assert list(ids) == ["c1", "c2", "c4", "c5"]
    resume = {ids["c5"]: Edit({"path": "x"}), ids["c1"]: Reject(), ids["c2"]: Approve(), ids["c4"]: Respond("later")}
    result = await clerk.run(Command(resume=resume), THREAD)
    assert sorted(shop.done) == ["delete b", "delete x", "look c"]
    assert [(r.id, r.content, r.is_error) for r in answers(result)] == [
        ("c1", "This call of 'delete' was rejected by a human, and did not run", True),
        ("c2", "b is gone", False),
        ("c3", "c is there", False),
        ("c4", "later", False),
        ("c5", "x is gone", False),
    ]
    assert len([m for m in result.messages if isinstance(m, ToolResponseMessage)]) == 1


@settings(max_examples=25, deadline=None)
@given(st.permutations(["c1", "c2", "c3"]), st.lists(st.sampled_from(["approve", "reject"]), min_size=3, max_size=3))
async def test_questions_answered_one_by_one_in_any_order_come_to_the_same(
    order: list[str], decisions: list[str]
) -> None:
    shop, said = Shop(), dict(zip(["c1", "c2", "c3"], decisions, strict=True))
    clerk = agent(shop, [[call(c, c) for c in said], "Done."], checkpointer=MemorySaver())
    result = await clerk.run("Go.", THREAD)
    for n, id in enumerate(order):
        assert (len(result.interrupts), shop.done) == (3 - n, [])
        question = next(q for q in result.interrupts if q.value["call_id"] == id)
        result = await clerk.run(Command(resume={question.id: {"decision": said[id]}}), THREAD)
    assert result.status == "done"
    assert sorted(shop.done) == [f"delete {c}" for c in said if said[c] == "approve"]
    assert [(r.id, r.is_error) for r in answers(result)] == [(c, said[c] == "reject") for c in said]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("yes", "Expected `object`, got `str`"),
        ({"decision": "maybe"}, "Invalid value 'maybe'"),
        ({"decision": "respond", "content": "x"}, "Invalid value 'respond'"),
        ({"decision": "reject", "reasn": "no"}, "unknown field `reasn`"),
        ({"decision": "edit"}, "missing required field `arguments`"),
        ({"decision": "edit", "arguments": {"paht": "b"}}, "path"),
        ({"decision": "edit", "arguments": {"path": "b"}, "name": "delte"}, "did you mean 'delete'"),
    ],
)
async def test_a_decision_that_does_not_do_is_asked_for_again_with_the_error(wrong: Any, error: str) -> None:
    shop = Shop()
    hook = HumanApproval({"delete"}, decisions=["approve", "edit", "reject"])
    clerk = agent(shop, [[call("c1", "a"), call("c2", "b")], "Done."], hook, checkpointer=MemorySaver())
    first, other = (await clerk.run("Go.", THREAD)).interrupts
    again = await clerk.run(Command(resume={first.id: wrong}), THREAD)
    question = next(q for q in again.interrupts if q.value["call_id"] == "c1")
    assert (again.status, question.value, shop.done) == ("interrupted", first.value, [])
    assert error in question.error
    later = await clerk.run(Command(resume={other.id: Approve()}), THREAD)
    assert [(q.value["call_id"], q.error) for q in later.interrupts] == [("c1", question.error)]
    result = await clerk.run(Command(resume={later.interrupts[0].id: Edit({"path": "z"})}), THREAD)
    assert (result.status, sorted(shop.done)) == ("done", ["delete b", "delete z"])


async def test_an_edit_is_asked_for_again_as_often_as_it_is_wrong() -> None:
    shop = Shop()
    clerk = agent(shop, [[call("c1", "a")], "Done."], checkpointer=MemorySaver())
    result = await clerk.run("Go.", THREAD)
    for n in range(3):
        edit = Edit({"path": "b", "depth": f"no number {n}"})
        result = await clerk.run(Command(resume={result.interrupts[0].id: edit}), THREAD)
        assert "depth" in result.interrupts[0].error
    result = await clerk.run(Command(resume=Edit({"path": "b", "depth": 2})), THREAD)
    assert shop.done == ["delete b"]


async def test_which_calls_are_asked_about_is_said_by_names_rules_or_a_rule_for_all() -> None:
    async def outside(call: ToolCall, state: Any) -> bool:
        assert state["messages"]
        return "/" in call.arguments

    def a_look(call: ToolCall, state: Any) -> bool:
        return call.name == "look"

    calls = [call("c1", "a"), call("c2", "/b"), call("c3", "/c", "look")]
    choices: list[tuple[Any, list[str]]] = [
        ({"delete"}, ["c1", "c2"]),
        (["look", "delete"], ["c1", "c2", "c3"]),
        (None, ["c1", "c2", "c3"]),
        (outside, ["c2", "c3"]),
        (a_look, ["c3"]),
        ({"delete": outside, "look": False}, ["c2"]),
        ({"delete": Review(when=a_look), "look": True}, ["c3"]),
        ((), []),
    ]
    for tools, asked in choices:
        clerk = agent(Shop(), [calls, "Done."], HumanApproval(tools))
        assert [q.value["call_id"] for q in (await clerk.run("Go.")).interrupts] == asked


async def test_a_tool_may_have_decisions_and_a_description_of_its_own() -> None:
    async def told(call: ToolCall, state: Any) -> str:
        return f"{call.name} after {len(state['messages'])} messages"

    hook = HumanApproval(
        {"delete": Review(decisions=("approve", "reject"), description=told), "look": True}, description="May it?"
    )
    paused = await agent(Shop(), [[call("c1", "a"), call("c2", "b", "look")]], hook).run("Go.")
    assert [(q.value["description"], q.value["decisions"]) for q in paused.interrupts] == [
        ("delete after 2 messages", ["approve", "reject"]),
        ("May it?", ["approve", "edit", "reject", "respond"]),
    ]


async def test_what_was_asked_stands_though_rule_and_description_would_say_something_else_later() -> None:
    shop, ticks = Shop(), iter(range(100))
    hook = HumanApproval(lambda c, s: next(ticks) == 0, description=lambda c, s: f"asked at {next(ticks)}")
    clerk = agent(shop, [[call("c1", "a")], "Done."], hook, checkpointer=MemorySaver())
    paused = await clerk.run("Go.", THREAD)
    result = await clerk.run(Command(resume={paused.interrupts[0].id: Reject()}), THREAD)
    assert (result.status, shop.done) == ("done", [])


async def test_an_approval_holds_for_the_arguments_that_were_shown_and_for_no_others() -> None:
    shop, saver = Shop(), MemorySaver()
    clerk = agent(shop, [[call("c1", "a")], "Done."], checkpointer=saver)
    paused = await clerk.run("Go.", THREAD)
    forged = AssistantMessage(tool_calls=[call("c1", "everything")], id=paused.messages[-1].id)
    await clerk.app.update_state(THREAD, {"messages": [forged]})
    again = await clerk.run(Command(resume={paused.interrupts[0].id: Approve()}), THREAD)
    assert (again.status, shop.done) == ("interrupted", [])
    assert again.interrupts[0].value["arguments"] == {"path": "everything"}
    assert again.interrupts[0].id != paused.interrupts[0].id
    assert (await clerk.run(Command(resume=Reject()), THREAD)).status == "done"
    assert shop.done == []


async def test_a_new_message_on_the_paused_thread_leaves_the_calls_as_not_done() -> None:
    shop, model = Shop(), ScriptedModel([[call("c1", "a"), call("c2", "b", "look")], "As you like."])
    clerk = ReactAgent("clerk", model, shop.tools(), hooks=[HumanApproval({"delete"})], checkpointer=MemorySaver())
    paused = await clerk.run("Delete a.", THREAD)
    result = await clerk.run("No, leave it.", THREAD)
    assert (result.status, result.text, shop.done) == ("done", "As you like.", [])
    check_request(model.requests[1])
    replied, user = model.requests[1].messages[-2:]
    assert isinstance(replied, ToolResponseMessage)
    assert user.text == "No, leave it."
    assert [(r.id, r.is_error) for r in replied.responses] == [("c1", True), ("c2", True)]
    with pytest.raises(ResumeError):
        await clerk.run(Command(resume={paused.interrupts[0].id: Approve()}), THREAD)


async def test_a_second_turn_asks_anew_for_the_same_call() -> None:
    shop = Shop()
    clerk = agent(shop, [[call("c1", "a")], "One.", [call("c1", "a")], "Two."], checkpointer=MemorySaver())
    first = await clerk.run("Go.", THREAD)
    await clerk.run(Command(resume={first.interrupts[0].id: Approve()}), THREAD)
    second = await clerk.run("Again.", THREAD)
    assert second.interrupts[0].id != first.interrupts[0].id
    result = await clerk.run(Command(resume={second.interrupts[0].id: Reject()}), THREAD)
    assert (result.text, shop.done) == ("Two.", ["delete a"])


async def test_a_later_round_of_the_same_turn_asks_anew() -> None:
    shop = Shop()
    clerk = agent(shop, [[call("c1", "a")], [call("c2", "a")], "Done."], checkpointer=MemorySaver())
    first = await clerk.run("Go.", THREAD)
    second = await clerk.run(Command(resume=Approve()), THREAD)
    assert second.interrupts[0].id != first.interrupts[0].id
    result = await clerk.run(Command(resume=Approve()), THREAD)
    assert (result.text, shop.done) == ("Done.", ["delete a", "delete a"])


async def test_a_reader_is_told_of_each_question() -> None:
    clerk = agent(Shop(), [[call("c1", "a"), call("c2", "b")], "Done."], checkpointer=MemorySaver())
    async with clerk.stream("Go.", THREAD) as events:
        told = [e async for e in events if isinstance(e, InterruptRaised)]
    assert [(e.id, e.value["call_id"]) for e in told] == [(q.id, q.value["call_id"]) for q in events.result.interrupts]
    async with clerk.stream(Command(resume={e.id: Approve() for e in told}), THREAD) as events:
        assert [e async for e in events if isinstance(e, InterruptRaised)] == []
    assert events.result.text == "Done."


@pytest.mark.parametrize("parallel", [True, False])
async def test_it_works_without_a_checkpointer_as_a_run_that_ends_before_the_calls(parallel: bool) -> None:
    shop = Shop()
    clerk = agent(shop, [[call("c1", "a"), call("c2", "b", "look")], "Done."], parallel=parallel)
    paused = await clerk.run("Go.")
    assert (paused.status, shop.done) == ("interrupted", [])
    assert [q.value["call_id"] for q in paused.interrupts] == ["c1"]
    with pytest.raises(ResumeError, match="checkpointer"):
        await clerk.run(Command(resume={paused.interrupts[0].id: Approve()}))
    result = await clerk.run([*paused.messages, UserMessage("Leave it.")])
    assert (result.text, shop.done) == ("Done.", [])


async def test_an_agent_that_is_a_node_asks_through_its_graph() -> None:
    shop = Shop()
    clerk = agent(shop, [[call("c1", "a"), call("c2", "b")], "Done."])
    graph = StateGraph[Any](strategies={"messages": Messages()})
    graph.add_node("clerk", clerk).add_edge(START, "clerk").add_edge("clerk", END)
    app = graph.compile(checkpointer=MemorySaver())
    paused = await app.invoke({"messages": [UserMessage("Go.")]}, THREAD)
    assert [q.node[0] for q in paused.interrupts] == ["clerk", "clerk"]
    first, second = ({"decision": d} for d in ("approve", "reject"))
    resume = dict(zip([q.id for q in paused.interrupts], [first, second], strict=True))
    result = await app.invoke(Command(resume=resume), THREAD)
    assert (result.status, shop.done) == ("done", ["delete a"])
    assert result.state["messages"][-1].text == "Done."


async def test_a_run_that_goes_on_without_an_answer_asks_the_same_again() -> None:
    shop = Shop()
    clerk = agent(shop, [[call("c1", "a")], "Done."], checkpointer=MemorySaver())
    paused = await clerk.run("Go.", THREAD)
    again = await clerk.run(None, THREAD)
    assert (again.status, again.interrupts, shop.done) == ("interrupted", paused.interrupts, [])


async def test_an_agent_that_is_a_tool_asks_through_the_one_that_calls_it() -> None:
    shop = Shop()
    clerk = agent(shop, [[call("c1", "a"), call("c2", "b")], "Deleted."])
    script: list[Any] = [[ToolCall("t1", "clerk", '{"task": "Delete a."}')], "Done."]
    boss = ReactAgent(
        "boss", ScriptedModel(script), [clerk.as_tool(description="Deletes.")], checkpointer=MemorySaver()
    )
    paused = await boss.run("Go.", THREAD)
    assert (paused.status, [q.value["call_id"] for q in paused.interrupts]) == ("interrupted", ["c1", "c2"])
    first, second = (q.id for q in paused.interrupts)
    await boss.run(Command(resume={second: Reject()}), THREAD)
    result = await boss.run(Command(resume={first: Approve()}), THREAD)
    assert (result.text, shop.done, answers(result)[0].content) == ("Done.", ["delete a"], "Deleted.")


async def test_a_hook_that_jumps_to_the_tools_runs_no_call_that_was_rejected() -> None:
    @after_model
    async def eager(state: Any) -> Jump | None:
        return Jump("tools") if isinstance(state["messages"][-1], ToolResponseMessage) else None

    shop = Shop()
    calls = [call("c1", "a"), call("c2", "b", "look")]
    clerk = agent(shop, [calls, "Done."], eager, HumanApproval({"delete"}), checkpointer=MemorySaver())
    paused = await clerk.run("Go.", THREAD)
    result = await clerk.run(Command(resume={paused.interrupts[0].id: Reject()}), THREAD)
    assert shop.done == ["look b"]
    assert [r.is_error for r in answers(result)] == [True, False]


async def test_calls_that_another_hook_has_answered_are_not_asked_about() -> None:
    @after_model
    async def refuse(state: Any) -> Any:
        asked = state["messages"][-1]
        if not isinstance(asked, AssistantMessage) or not asked.tool_calls:
            return None
        refused = ToolResponse("c2", "delete", "too many", is_error=True)
        return {"messages": [ToolResponseMessage([refused], id=f"{asked.id}-answers")]}

    shop = Shop()
    calls = [call("c1", "a"), call("c2", "b"), call("c3", "c")]
    clerk = agent(shop, [calls, "Done."], HumanApproval({"delete"}), refuse, checkpointer=MemorySaver())
    paused = await clerk.run("Go.", THREAD)
    assert [q.value["call_id"] for q in paused.interrupts] == ["c1", "c3"]
    one, three = (q.id for q in paused.interrupts)
    result = await clerk.run(Command(resume={one: Respond("yes"), three: Approve()}), THREAD)
    assert [r.content for r in answers(result)] == ["yes", "too many", "c is gone"]
    assert shop.done == ["delete c"]


async def test_a_call_whose_arguments_are_no_json_is_shown_as_it_is_and_can_be_edited() -> None:
    shop = Shop()
    clerk = agent(shop, [[ToolCall("c1", "delete", '{"path": ')], "Done."], checkpointer=MemorySaver())
    paused = await clerk.run("Go.", THREAD)
    assert paused.interrupts[0].value["arguments"] == '{"path": '
    await clerk.run(Command(resume={paused.interrupts[0].id: Edit({"path": "a"})}), THREAD)
    assert shop.done == ["delete a"]


async def test_a_tool_that_asks_itself_asks_after_its_call_was_approved() -> None:
    @tool
    async def pay(context: ToolContext) -> str:
        """Pay."""
        return f"paid {context.interrupt('how much?')}"

    model = ScriptedModel([[ToolCall("c1", "pay")], "Done."])
    clerk = ReactAgent("clerk", model, [pay], hooks=[HumanApproval({"pay"})], checkpointer=MemorySaver())
    await clerk.run("Go.", THREAD)
    asked = await clerk.run(Command(resume=Approve()), THREAD)
    assert [q.value for q in asked.interrupts] == ["how much?"]
    assert [r.content for r in answers(await clerk.run(Command(resume=42), THREAD))] == ["paid 42"]


async def test_one_hook_serves_agents_with_different_tools() -> None:
    @tool
    async def send(to: str) -> str:
        """Send."""
        return to

    hook = HumanApproval()
    clerk = agent(Shop(), [[call("c1", "a")], "Done."], hook, checkpointer=MemorySaver())
    script = [[ToolCall("c1", "send", '{"to": "a"}')], "Sent."]
    other = ReactAgent("other", ScriptedModel(script), [send], hooks=[hook], checkpointer=MemorySaver())
    for one, right, wrong in ((clerk, "path", "to"), (other, "to", "path")):
        await one.run("Go.", THREAD)
        again = await one.run(Command(resume=Edit({wrong: "b"})), THREAD)
        assert right in again.interrupts[0].error
        assert (await one.run(Command(resume=Edit({right: "b"})), THREAD)).status == "done"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: HumanApproval("delete"), "takes several names"),
        (lambda: HumanApproval({"a"}, decisions=[]), "one or more of 'approve'"),
        (lambda: HumanApproval({"a"}, decisions=["aprove"]), "did you mean 'approve'"),  # pyright: ignore[reportArgumentType]
        (lambda: HumanApproval({"a": Review(decisions=["no"])}), "unknown decision 'no'"),  # pyright: ignore[reportArgumentType]
        (lambda: HumanApproval({"a": 1}), "found 1"),
    ],
)
def test_a_choice_that_there_is_not_is_an_error(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make()


def test_a_name_that_no_tool_has_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "agentgraph"):
        agent(Shop(), [], HumanApproval({"delte"}))
    assert "did you mean 'delete'" in caplog.text


PROGRAM = """
import asyncio, sys
from agentgraph import Command, RunConfig
from agentgraph.checkpoint import SqliteSaver
from agentgraph.messages import ToolCall
from agentgraph.nodes import ReactAgent, tool
from agentgraph.nodes.hooks import Approve, Edit, HumanApproval, Reject
from agentgraph.testing import ScriptedModel, check_request

@tool
async def delete(path: str) -> str:
    "Delete a file."
    print("deleted", path)
    return "gone"

async def main(store, script, resume):
    thread = RunConfig(thread_id="t")
    async with SqliteSaver(store) as saver:
        hooks = [HumanApproval({"delete"})]
        clerk = ReactAgent("clerk", ScriptedModel(script), [delete], hooks=hooks, checkpointer=saver)
        asked = {} if resume is None else (await clerk.app.state(thread)).interrupts
        given = "Go." if resume is None else Command(resume={q.id: resume[q.value["call_id"]] for q in asked})
        result = await clerk.run(given, thread)
        for q in result.interrupts:
            print("asked", q.value["call_id"], q.value["arguments"]["path"])
        for m in result.messages[2:] if result.status == "done" else ():
            print("said", m.text.replace(chr(10), "; "))

asyncio.run(main(*eval(sys.argv[1], {**globals()})))
"""


async def in_a_process(tmp_path: Path, script: str, resume: str) -> list[str]:
    import asyncio

    arguments = f"({str(tmp_path / 'runs.db')!r}, {script}, {resume})"
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await started.communicate()
    assert started.returncode == 0
    return out.decode().splitlines()


async def test_a_run_that_waits_outlives_its_process_and_is_decided_on_in_another_one(tmp_path: Path) -> None:
    calls = ", ".join(f"ToolCall('c{k}', 'delete', '{{\"path\": \"{p}\"}}')" for k, p in enumerate("abc"))
    assert await in_a_process(tmp_path, f"[[{calls}]]", "None") == ["asked c0 a", "asked c1 b", "asked c2 c"]
    decided = "{'c0': Approve(), 'c1': Reject('no'), 'c2': {'decision': 'edit', 'arguments': {'path': 'x'}}}"
    rejected = "This call of 'delete' was rejected by a human, and did not run: no"
    out = await in_a_process(tmp_path, "['Done.']", decided)
    assert sorted(out[:2]) == ["deleted a", "deleted x"]
    assert out[2:] == [f"said gone; {rejected}; gone", "said Done."]
