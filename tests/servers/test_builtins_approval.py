"""Human approval, the to-do list and redaction with a small real model. What the model says is not looked at."""

from typing import Any

import httpx
import msgspec

from agentgraph import Command, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import ModelDelta
from agentgraph.messages import AssistantMessage, ToolResponse, ToolResponseMessage, new_id
from agentgraph.models import OpenAIChat
from agentgraph.nodes import AgentResult, LlmRequest, ModelCall, ReactAgent
from agentgraph.nodes.hooks import Edit, HumanApproval, PiiRedaction, Reject, Todo, TodoList

THREAD = RunConfig(thread_id="t")


def chat(url: str, **options: Any) -> OpenAIChat:
    return OpenAIChat(
        "smollm2-135m", base_url=url, api_key="none", options={"max_tokens": 30, "temperature": 0, **options}
    )


async def find_capital(country: str) -> str:
    """Find the capital of a country."""
    return f"The capital of {country} is Oslo."


async def must_call(request: LlmRequest, call: ModelCall) -> Any:
    first = not any(isinstance(m, ToolResponseMessage) for m in request.messages)
    choice = "required" if first else "none"
    return await call(msgspec.structs.replace(request, tool_choice=choice))


def answers(result: AgentResult) -> list[ToolResponse]:
    return [r for m in result.messages if isinstance(m, ToolResponseMessage) for r in m.responses]


async def test_a_models_calls_are_edited_and_rejected_and_the_server_takes_the_history(llm: str) -> None:
    for decision, answer in (
        (Edit({"country": "Norway"}), "The capital of Norway is Oslo."),
        (Reject("not now"), "This call of 'find_capital' was rejected by a human, and did not run: not now"),
    ):
        async with chat(llm) as asked:
            clerk = ReactAgent(
                "clerk",
                asked,
                [find_capital],
                interceptors=[must_call],
                hooks=[HumanApproval({"find_capital"})],
                checkpointer=MemorySaver(),
            )
            paused = await clerk.run("What is the capital of Norway?", THREAD)
            assert {q.value["tool"] for q in paused.interrupts} == {"find_capital"}
            result = await clerk.run(Command(resume={q.id: decision for q in paused.interrupts}), THREAD)
        assert (result.status, bool(result.text)) == ("done", True)
        assert all(r.text.endswith(answer) for r in answers(result))


async def test_a_model_writes_a_list_of_things_to_do(aimock: str) -> None:
    name = f"todo-{new_id()}"
    todos = {"todos": [{"content": "buy bread", "status": "in_progress"}, {"content": "cook soup"}]}
    calls = {"toolCalls": [{"name": "write_todos", "arguments": msgspec.json.encode(todos).decode()}]}
    first = {"match": {"model": name, "sequenceIndex": 0}, "response": calls}
    then = {"match": {"model": name}, "response": {"content": "On it."}}
    async with httpx.AsyncClient(base_url=aimock) as told:
        (await told.post("/__aimock/fixtures", json={"fixtures": [first, then]})).raise_for_status()
    headers = {"x-test-id": name}
    async with OpenAIChat(name, base_url=f"{aimock}/v1", api_key="none", headers=headers) as asked:
        result = await ReactAgent("clerk", asked, hooks=[TodoList()]).run("Plan a dinner.")
    assert result.state["todos"] == [Todo("buy bread", "in_progress"), Todo("cook soup")]
    assert result.text == "On it."


async def test_a_model_is_told_nothing_personal_and_readers_are_told_what_the_state_has(llm: str) -> None:
    async with chat(llm) as asked:
        agent = ReactAgent("clerk", asked, hooks=[PiiRedaction(["email", "word"], patterns={"word": r"[Ee]mail\w*"})])
        async with agent.stream("Repeat this text: Email me at bob@example.com. Email, email, email.") as events:
            told = "".join([e.text for e in [e async for e in events] if isinstance(e, ModelDelta)])
    said = events.result.messages[0].text
    assert said.startswith("Repeat this text: [REDACTED_WORD] me at [REDACTED_EMAIL].")
    assert isinstance(events.result.message, AssistantMessage)
    assert told == events.result.text != ""
    assert "mail" not in told.replace("[REDACTED_EMAIL]", "")
