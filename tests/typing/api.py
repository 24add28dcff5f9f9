"""Every public call as a user writes it. Never run: `make check` reads it with the type checker."""

# pyright: reportUnusedVariable=false
# ruff: noqa: F841, T201

import operator
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict, assert_type

import msgspec

from agentgraph import (
    END,
    START,
    CancellationToken,
    Checkpoint,
    Command,
    CompiledGraph,
    Interrupt,
    Node,
    Resumed,
    Retry,
    RunConfig,
    RunContext,
    RunResult,
    RunStream,
    Send,
    StateGraph,
    ThreadState,
)
from agentgraph.checkpoint import Encrypted, MemorySaver, PostgresSaver, SqliteSaver, StoredType
from agentgraph.events import Event, ModelDelta, RunFinished
from agentgraph.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    Usage,
    UserMessage,
)
from agentgraph.models import (
    AnthropicMessages,
    ChatModel,
    Delta,
    FallbackModel,
    Gemini,
    Limited,
    ModelRequest,
    ModelResponse,
    OpenAIChat,
    OpenAIResponses,
    RateLimit,
    model,
)
from agentgraph.nodes import (
    AgentResult,
    Answer,
    Limiter,
    LlmNode,
    LlmRequest,
    ModelCall,
    ReactAgent,
    Tool,
    ToolContext,
    ToolError,
    ToolHandler,
    ToolNode,
    ToolRequest,
    ToolTimeoutError,
    tool,
)
from agentgraph.nodes.a2a import A2aAgent, a2a_app, agent_card
from agentgraph.nodes.flows import (
    HandoffAgent,
    LoopAgent,
    ParallelAgent,
    RoutingAgent,
    SequentialAgent,
    SupervisorAgent,
    handoff,
)
from agentgraph.nodes.hooks import (
    AgentParts,
    Approve,
    Decision,
    Edit,
    HumanApproval,
    Jump,
    LargeResults,
    ModelCallLimit,
    PiiRedaction,
    Reject,
    Respond,
    Review,
    Skill,
    Skills,
    SubAgents,
    Summarization,
    Todo,
    TodoList,
    ToolCallLimit,
    after_agent,
    before_model,
)
from agentgraph.nodes.interceptors import (
    ContextEditing,
    ModelFallback,
    ModelRetry,
    ToolEmulation,
    ToolRetry,
    ToolSelection,
)
from agentgraph.nodes.jinja import jinja
from agentgraph.nodes.mcp import McpTools
from agentgraph.nodes.openapi import OpenApiTools
from agentgraph.nodes.tokens import TokenCounter, approximate_tokens, counter_of, openai_tokens
from agentgraph.store import Item, SqliteStore
from agentgraph.strategies import Append, Merge, Messages, Reduce, Replace, Strategy
from agentgraph.testing import FunctionModel, ScriptedModel, check_request, serve_transcript


class State(TypedDict, total=False):
    question: str
    notes: Annotated[list[str], Append()]
    scores: Annotated[dict[str, float], Merge(deep=True)]
    cost: Annotated[float, Reduce(operator.add)]
    messages: Annotated[list[Message], Messages()]


@dataclass
class Data:
    question: str
    notes: Annotated[list[str], Append()] = field(default_factory=list[str])


class Struct(msgspec.Struct):
    question: str


async def plan(state: State) -> dict[str, Any]:
    return {"notes": ["a"]}


async def search(state: State, run: RunContext[int]) -> Command[Literal["plan", "__end__"]] | None:
    assert_type(run.context, int)
    assert_type(run.config, RunConfig)
    assert_type(run.cancellation, CancellationToken)
    await run.emit({"share": 0.5})
    run.heartbeat()
    kept = await run.once("key", lambda: 3)
    assert_type(kept, int)
    return Command(update={"cost": 1.0}, goto="plan")


def blocking(state: State) -> None: ...


class Own:
    async def __call__(self, state: Any, run: RunContext[Any]) -> dict[str, Any]:
        return {}


def route(state: State) -> Literal["search", "__end__"]:
    return "search"


def spread(state: State) -> list[Send]:
    return [Send("plan", {"question": n}) for n in state.get("notes", [])]


async def recover(state: State, error: Exception) -> dict[str, Any]:
    return {"notes": [str(error)]}


class Longest:
    def merge(self, current: Any, update: Any) -> Any:
        return update

    def empty(self) -> Any:
        return ""


def build() -> CompiledGraph[State]:
    graph = StateGraph(State, validate=True)
    graph.add_node("plan", plan).add_node("search", search, timeout=10, idle_timeout=1.5, retry=Retry(attempts=3))
    graph.add_node("blocking", blocking, on_error=recover, wait=True)
    graph.add_node("own", Own(), ends=["plan", END])
    graph.add_edge(START, "plan").add_edge(["plan", "search"], "blocking").add_edge("blocking", END)
    graph.add_conditional_edges("plan", route)
    graph.add_conditional_edges("search", spread, ["plan"])
    graph.add_conditional_edges("own", lambda state: "done", {"done": END})
    app = graph.compile(name="g", debug=True)
    assert_type(app, CompiledGraph[State])
    node: Node = Own()
    strategy: Strategy = Longest()
    other: StateGraph[dict[str, Any]] = StateGraph(strategies={"text": strategy})
    other.add_node("sub", app, input={"text": "question"}, output={"notes": "text"})
    return app


@before_model(jumps=["end"])
async def brief(state: Any, run: RunContext[Any]) -> Jump | None:
    return Jump("end", {"notes": ["too long"]}) if len(state["messages"]) > 100 else None


async def keep(graph: StateGraph[State]) -> None:
    async with SqliteSaver("runs.db") as saver, PostgresSaver("postgresql://...") as other, MemorySaver() as third:
        graph.compile(checkpointer=saver, types=[Data, StoredType(complex, "complex", str, complex)], lease=10.0)
        graph.compile(checkpointer=Encrypted(other, Encrypted.new_key()), interrupt_before=["plan"])
        agent = ReactAgent("clerk", model("openai:gpt-4.1-mini"), hooks=[brief], checkpointer=third)
    async with SqliteStore("memories.db") as store:
        assert_type(await store.get(("users", "ada"), "tea"), Item | None)
    async with McpTools(command="server") as mcp, OpenApiTools("api.yaml", base_url="http://...") as api:
        ReactAgent("clerk", model("openai:gpt-4.1-mini"), [*mcp, *api])


async def run(app: CompiledGraph[State]) -> None:
    result = await app.invoke({"question": "?"}, RunConfig(thread_id="1", max_concurrency=4, timeout=5.0), context=3)
    assert_type(result, RunResult[State])
    assert_type(result.state, State)
    assert_type(result.usage, Usage | None)
    assert_type(result.interrupts, tuple[Interrupt, ...])
    assert_type(await app.state(RunConfig(thread_id="1")), ThreadState[State] | None)
    assert_type(await app.history(RunConfig(thread_id="1"), limit=3), list[Checkpoint])
    assert_type(await app.update_state(RunConfig(thread_id="1"), {"cost": 1.0}, as_node="plan"), RunConfig)
    assert_type(await app.resume_pending(context=3), list[Resumed[State]])
    await app.invoke(Command(resume={"id": True}), RunConfig(thread_id="1", durability="sync", if_busy="refuse"))
    await app.invoke(None, RunConfig(thread_id="1", checkpoint_id="0.1"))
    stream = app.stream({"question": "?"}, buffer=10)
    assert_type(stream, RunStream[RunResult[State]])
    async with stream as events:
        async for event in events:
            assert_type(event, Event)
            match event:
                case ModelDelta(text=text):
                    assert_type(text, str)
                case RunFinished():
                    assert_type(event.usage, Usage | None)
                case _:
                    pass
    assert_type(events.result, RunResult[State])
    print(app.mermaid(), app)
    assert_type((await StateGraph(Data).compile().invoke(Data("?"))).state, Data)
    assert_type((await StateGraph(Struct).compile().invoke({"question": "?"})).state, Struct)
    assert_type((await StateGraph().compile().invoke({})).state, dict[str, Any])
    assert_type(app.invoke_sync({"question": "?"}).state, State)


@tool
async def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


@tool(name="look", timeout=3, return_direct=True)
def look(place: Annotated[str, "where"], context: ToolContext) -> Answer:
    context.update(notes=[place])
    if context.cancellation.cancelled:
        raise ToolError("stopped", always_raise=True)
    return Answer([TextPart("seen"), ImagePart(url="x")], update={"cost": 1.0}, metadata={"place": place})


def advise(request: LlmRequest) -> LlmRequest:
    return request


async def advise_later(request: LlmRequest) -> LlmRequest:
    return request


async def through(deltas: AsyncIterator[Delta], request: ModelRequest) -> AsyncIterator[Delta]:
    async for delta in deltas:
        yield delta


async def around_model(request: LlmRequest, call: ModelCall) -> ModelResponse:
    return await call(msgspec.structs.replace(request, options={"temperature": 0}, dynamic_tools=[add]))


async def around_tool(request: ToolRequest, call: ToolHandler) -> ToolResponse:
    answer = await call(request)
    if isinstance(request.last.error, ToolTimeoutError):
        print(request.last.error.thread_runs)
    return answer


async def agents() -> None:
    assert_type(add, Tool)
    async with OpenAIChat("m", base_url="http://127.0.0.1/v1", api_key="k", tool_mode="json") as model:
        protocol: ChatModel = model
        agent = ReactAgent(
            "a", model, [add, look], system_prompt="be brief", interceptors=[around_model], output_type=Struct
        )
    answer = await agent.run("hi", RunConfig(), context=1)
    assert_type(answer, AgentResult)
    assert_type(answer.text, str)
    assert_type(answer.messages, list[Message])
    async with agent.stream([UserMessage("hi")]) as events:
        async for event in events:
            assert_type(event, Event)
    assert_type(events.result, AgentResult)
    assert_type(agent.run_sync("hi"), AgentResult)
    graph: StateGraph[dict[str, Any]] = agent.graph
    graph.add_node("llm2", LlmNode(model, agent_name="b", tools=[add], chunk_interceptors=[through]))
    llm = LlmNode(model, advisors=[advise, advise_later], instruction="{{ a }}", template_renderer=jinja)
    graph.add_node("tools2", ToolNode([add], max_parallel=2, interceptors=[around_tool], resolver=lambda name: None))
    graph.add_node("agent", agent)


@after_agent
def tidy(state: Any) -> None: ...


class Notes:
    """A hook of one's own: no base class, and as many of the members as it needs."""

    name = "notes"

    def __init__(self, agent: str = "") -> None:
        self.agent = agent
        self.strategies: dict[str, Strategy] = {"notes": Replace()}
        self.tools = [add]

    def bind(self, agent: AgentParts) -> "Notes":
        return Notes(agent.name)

    async def before_agent(self, state: Any, run: RunContext[Any]) -> dict[str, Any]:
        return {"notes": self.agent}

    async def wrap_model(self, request: LlmRequest, call: ModelCall) -> ModelResponse:
        return await call(request)

    async def wrap_tool(self, request: ToolRequest, call: ToolHandler) -> ToolResponse:
        return await call(request)


def is_large(call: ToolCall, state: Any) -> bool:
    return len(call.arguments) > 100


async def hooks() -> None:
    count: TokenCounter = counter_of(str.split)
    assert_type(approximate_tokens([UserMessage("hi")]), int)
    worker = ReactAgent("worker", "openai:gpt", [add], description="Adds.")
    agent = ReactAgent(
        "clerk",
        "openai:gpt",
        [add, look],
        hooks=[
            ModelCallLimit(per_run=10, per_thread=100),
            ToolCallLimit(add, per_run=3, at_limit="end"),
            HumanApproval({"look": True, "add": Review(when=is_large, decisions=["approve", "reject"])}),
            TodoList(),
            PiiRedaction({"email": "hash"}, on=["input", "output"], patterns={"staff": r"E-\d+"}, hash_key="secret"),
            Summarization("openai:gpt-mini", when=[("tokens", 50_000), ("share", 0.8)], keep=("messages", 10)),
            LargeResults("results", over=10_000),
            Skills("skills", include=["invoices"], on_fault="warn"),
            SubAgents([worker], tool="task", max_parallel=Limiter(2)),
            Notes(),
            tidy,
        ],
        interceptors=[
            ModelFallback("anthropic:claude", on=TimeoutError),
            ModelRetry(Retry(attempts=3)),
            ToolRetry([add], at_end="error"),
            ToolSelection("openai:gpt-mini", most=5, always=[look]),
            ToolEmulation(["look"]),
            ContextEditing(over=50_000, count=openai_tokens()),
            around_model,
        ],
    )
    thread = RunConfig(thread_id="1")
    result = await agent.run("hi", thread)
    decisions: list[Decision] = [Approve(), Edit({"a": 1}), Reject("no"), Respond("3")]
    await agent.run(Command(resume={question.id: decisions[0] for question in result.interrupts}), thread)
    todos: list[Todo] = result.state["todos"]
    skills: list[Skill] = list(Skills("skills").found())
    LlmNode("openai:gpt", interceptors=[ModelRetry().wrap_model])
    ToolNode([add], interceptors=[ToolRetry().wrap_tool])


async def flows() -> None:
    one = ReactAgent("one", "openai:gpt", description="Adds.", output_key="sum")
    two = ReactAgent("two", "openai:gpt", [handoff(one), handoff("three", description="Divides.")])
    line = SequentialAgent("line", [one, two], conversation="separate")
    fan = ParallelAgent("fan", {"left": one, "right": two}, merge="dict", max_parallel=2, on_error="keep")
    loop = LoopAgent("loop", line, times=3, until=lambda state: bool(state["sum"]), on_limit="raise")
    desk = RoutingAgent("desk", "openai:gpt-mini", [one, fan], default="one", several=True)
    team = SupervisorAgent("team", "openai:gpt", [one, two], tools=[add], hooks=[TodoList()])
    assert_type(await team.run("hi", RunConfig(thread_id="1")), AgentResult)
    over = HandoffAgent("over", {"one": one, "two": two, "three": desk}, start="two", stay=False)
    async with over.stream("hi") as events:
        async for event in events:
            assert_type(event, Event)
    assert_type(loop.as_tool(name="do", timeout=10), Tool)
    assert_type(one.as_tool(return_direct=True), Tool)


async def remote(agent: ReactAgent) -> None:
    app = a2a_app(agent, agent_card(agent, "https://clerk.example", skills=agent.tools), config=RunConfig(timeout=60))
    async with A2aAgent("https://weather.example", headers={"Authorization": "Bearer ..."}) as weather:
        assert_type(await weather.run("Bern?"), AgentResult)
        ReactAgent("clerk", "openai:gpt", [weather.as_tool()])


async def models() -> None:
    limit = RateLimit(requests_per_minute=60, tokens_per_minute=10_000, max_concurrent=4)
    first: ChatModel = Limited(AnthropicMessages("claude", cache="5m"), limit)
    async with FallbackModel(first, Gemini("gemini"), OpenAIResponses("gpt"), "openai:gpt") as several:
        response = await several.generate(ModelRequest(messages=[UserMessage("hi")]))
        assert_type(response, ModelResponse)
        assert_type(response.message, AssistantMessage)
    named = model("anthropic:claude", options={"temperature": 0})
    ReactAgent("a", "openai:gpt")
    LlmNode(named)


async def testing() -> None:
    async with ScriptedModel(["text", [ToolCall("1", "add", "{}")], AssistantMessage("x"), ValueError()]) as scripted:
        assert_type(scripted.requests, list[ModelRequest])
        delta = await anext(scripted.stream(ModelRequest(messages=[])))
        assert_type(delta, Delta)
    FunctionModel(lambda request: request.messages[-1].text)
    check_request(ModelRequest(messages=[UserMessage("hi")]))
    async with serve_transcript("answer.sse", chunk_size=7, end="reset") as server:
        assert_type(server.base_url, str)
    ToolResponseMessage([ToolResponse("1", "add", "3")])
