"""What `compile()` refuses, and what a run refuses of its input and of what nodes return."""

import functools
import operator
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import msgspec
import pytest
from typing_extensions import TypeAliasType

from agentgraph import (
    END,
    START,
    Command,
    ConfigError,
    GraphError,
    InputError,
    Retry,
    RunConfig,
    RunContext,
    RunNote,
    Send,
    StateGraph,
    UpdateError,
)
from agentgraph.strategies import (
    REMOVE_ALL,
    Append,
    LastWrite,
    Merge,
    Messages,
    Reduce,
    RemoveByHash,
    RemoveMessage,
    Replace,
    RewriteMessages,
    Strategy,
)


class State(TypedDict, total=False):
    text: str
    notes: Annotated[list[str], Append()]


async def idle(state: State) -> None:
    return None


def line(*names: str) -> StateGraph[State]:
    """START, the names one after the other, END."""
    graph = StateGraph(State)
    for name in names:
        graph.add_node(name, idle)
    for one, other in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(one, other)
    return graph


def faults(graph: StateGraph[Any]) -> tuple[str, ...]:
    with pytest.raises(GraphError) as caught:
        graph.compile()
    return caught.value.faults


def only(graph: StateGraph[Any]) -> str:
    found = faults(graph)
    assert len(found) == 1, found
    return found[0]


# --- names ---


def test_a_sound_graph_compiles() -> None:
    assert repr(line("a", "b").compile(name="two")) == "<CompiledGraph two: ['a', 'b']>"


@pytest.mark.parametrize("edge", [(START, "serach"), ("serach", "report"), ("search", "reprot")])
def test_an_edge_with_an_unknown_name_is_refused_with_the_nearest_one(edge: tuple[str, str]) -> None:
    fault = only(line("search", "report").add_edge(*edge))
    wrong = "reprot" if "reprot" in edge else "serach"
    meant = "report" if wrong == "reprot" else "search"
    assert f"unknown node {wrong!r}; did you mean {meant!r}?" in fault


def test_a_name_like_no_other_is_refused_with_the_known_ones() -> None:
    found = faults(line("a", "b").add_edge("a", "zzzzz"))
    assert "unknown node 'zzzzz'; known: 'a', 'b'" in found[0]


def test_a_join_with_an_unknown_name_is_refused() -> None:
    graph = line("search", "report").add_edge(["search", "reserch"], "report")
    assert "unknown node 'reserch'; did you mean 'search'?" in only(graph)


def test_a_routing_map_that_names_no_node_is_refused() -> None:
    graph = line("search", "report").add_conditional_edges("search", lambda _: "x", {"x": "serach", "y": END})
    assert only(graph).startswith("the router of 'search' names an unknown node 'serach'; did you mean 'search'?")


def test_an_empty_routing_map_is_refused() -> None:
    nowhere: dict[str, str] = {}
    graph = line("a").add_conditional_edges("a", lambda _: "x", nowhere)
    assert only(graph).startswith("the router of 'a' has a mapping that names no node")


def test_a_list_of_targets_that_names_no_node_is_refused() -> None:
    graph = line("search").add_conditional_edges(START, lambda _: "x", ["serach"])
    assert "the router of START names an unknown node 'serach'; did you mean 'search'?" in only(graph)


def test_a_literal_annotation_that_names_no_node_is_refused() -> None:
    def route(state: State) -> Literal["serach"]:
        return "serach"

    assert "unknown node 'serach'; did you mean 'search'?" in only(
        line("search").add_conditional_edges("search", route)
    )


def test_the_router_of_an_unknown_node_is_refused() -> None:
    graph = line("search").add_conditional_edges("serach", lambda _: END, [END])
    assert "unknown node 'serach'; did you mean 'search'?" in only(graph)


def test_ends_that_name_no_node_are_refused() -> None:
    graph = line("search").add_node("go", idle, ends=["serach"]).add_edge(START, "go").add_edge("go", END)
    assert "node 'go': ends has an unknown node 'serach'; did you mean 'search'?" in only(graph)


def test_a_command_annotation_that_names_no_node_is_refused() -> None:
    async def go(state: State) -> Command[Literal["serach"]]:
        return Command(goto="serach")

    graph = line("search").add_node("go", go).add_edge(START, "go").add_edge("go", END)
    assert "node 'go': its return annotation names an unknown node 'serach'; did you mean 'search'?" in only(graph)


def test_one_target_may_stand_without_a_list() -> None:
    graph = StateGraph(State).add_node("go", idle, ends="stop").add_node("stop", idle).add_edge("stop", END)
    graph.add_conditional_edges(START, lambda _: "go", "go")
    graph.compile()


def test_two_nodes_of_one_name_are_refused() -> None:
    assert only(line("a").add_node("a", idle)) == "2 nodes are named 'a'; names must differ"


@pytest.mark.parametrize("name", ["", "two\nlines", "\x00", 7, None, ["a"]])
def test_a_name_that_cannot_be_shown_is_refused(name: Any) -> None:
    graph = line("a").add_node(name, idle)
    assert f"a node's name must be a printable text that is not empty; found {name!r}" in faults(graph)


@pytest.mark.parametrize("name", [START, END])
def test_the_names_of_start_and_end_are_reserved(name: str) -> None:
    assert "reserved" in only(line("a").add_node(name, idle))


async def test_any_printable_text_may_be_a_name() -> None:
    names = ["Ünïcode 名前", "a/b", "with space", "{braces}", "🙂"]
    result = await line(*names).compile().invoke({})
    assert result.steps == len(names)


def test_something_else_than_a_name_in_an_edge_is_refused_with_the_others() -> None:
    wrong: Any = idle
    found = faults(line("a").add_edge(wrong, "a").add_edge("a", wrong).add_edge("a", "b"))
    assert [f.partition(" <")[0] for f in found] == [
        "an edge starts at an unknown node",
        "an edge leads to an unknown node",
        "an edge leads to an unknown node 'b'; known: 'a'",
    ]


# --- ways ---


def test_a_graph_without_nodes_is_refused() -> None:
    assert "no nodes" in only(StateGraph(State))


def test_a_graph_without_a_way_from_start_is_refused() -> None:
    graph = StateGraph(State).add_node("a", idle).add_edge("a", END)
    assert only(graph) == "there is no way from START: add_edge(START, 'a')"


def test_a_node_that_nothing_leads_to_is_refused() -> None:
    graph = line("a").add_node("island", idle).add_edge("island", END)
    assert only(graph).startswith("nothing leads to node 'island'")


def test_nodes_that_only_lead_to_each_other_are_refused() -> None:
    graph = line("a").add_node("x", idle).add_node("y", idle)
    graph.add_edge("x", "y").add_edge("y", "x").add_edge("y", END)
    assert only(graph).startswith("nothing leads to nodes 'x', 'y'")


def test_a_node_without_a_way_on_cannot_reach_end() -> None:
    graph = line("a").add_node("dead", idle).add_edge("a", "dead")
    assert only(graph).startswith("node 'dead' cannot reach END; add_edge('dead', END)")


def test_a_loop_without_a_way_out_cannot_reach_end() -> None:
    graph = line("a").add_node("x", idle).add_node("y", idle)
    graph.add_edge("a", "x").add_edge("x", "y").add_edge("y", "x")
    assert only(graph).startswith("nodes 'x', 'y' cannot reach END")


def test_a_router_without_targets_may_reach_everything() -> None:
    graph = StateGraph(State).add_node("a", idle).add_node("b", idle).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda _: "b").add_edge("b", "a")
    graph.compile()


def test_a_node_that_speaks_of_command_may_reach_everything() -> None:
    async def go(state: State) -> Any:
        return Command(goto="b")

    StateGraph(State).add_node("a", go).add_node("b", go).add_edge(START, "a").compile()


def test_a_node_that_speaks_of_command_by_another_name_may_reach_everything() -> None:
    async def go(state: State) -> Any:
        return Jump(goto=END)

    StateGraph(State).add_node("a", go).add_edge(START, "a").compile()


Jump = Command


def test_a_node_annotated_to_return_a_command_may_reach_everything() -> None:
    async def go(state: State) -> Command:
        return make()

    def make() -> Any: ...

    StateGraph(State).add_node("a", go).add_edge(START, "a").compile()


def test_a_declared_command_is_understood_though_the_state_class_is_local() -> None:
    class Local(TypedDict):
        text: str

    async def go(state: "Local") -> "Command[Literal['b']]":
        return Command(goto="b")

    graph = StateGraph(Local).add_node("a", go).add_node("b", idle).add_node("island", idle)
    graph.add_edge(START, "a").add_edge("b", END).add_edge("island", END)
    assert only(graph).startswith("nothing leads to node 'island'")


def test_an_error_handler_that_speaks_of_command_may_reach_everything() -> None:
    async def failed(state: State, error: Exception) -> Any:
        return Command(goto="help")

    graph = line("a").add_node("b", idle, on_error=failed).add_node("help", idle)
    graph.add_edge("a", "b").add_edge("help", END)
    graph.compile()


def test_declared_ends_are_ways() -> None:
    graph = StateGraph(State).add_node("a", idle, ends=["b"]).add_node("b", idle, ends=[END]).add_edge(START, "a")
    graph.compile()


def test_a_node_whose_declared_ends_do_not_lead_to_end_is_refused() -> None:
    graph = line("a").add_node("x", idle, ends=["x"]).add_edge("a", "x")
    assert only(graph).startswith("node 'x' cannot reach END")


@pytest.mark.parametrize(("source", "target"), [(END, "a"), ("a", START)])
def test_no_edge_leaves_end_or_enters_start(source: str, target: str) -> None:
    assert only(line("a").add_edge(source, target)).startswith("an edge ")


# --- joins that can never be complete ---


def test_a_join_on_itself_is_refused() -> None:
    assert only(line("a", "b").add_edge(["a", "b"], "b")) == "a join can never be complete: 'b' would wait for itself"


def test_a_join_on_a_node_behind_itself_is_refused() -> None:
    graph = StateGraph(State).add_node("a", idle).add_node("join", idle).add_node("after", idle)
    graph.add_edge(START, "a").add_edge(["a", "after"], "join").add_edge("join", "after").add_edge("after", END)
    assert "into 'join' can never be complete: 'after' can be reached through 'join' only" in only(graph)


def test_a_join_of_no_nodes_is_refused() -> None:
    assert only(line("a").add_edge([], "a")) == "the join into 'a' lists no nodes to wait for"


def test_a_join_in_a_loop_with_another_way_in_compiles() -> None:
    graph = StateGraph(State).add_node("a", idle).add_node("b", idle).add_node("join", idle)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "join")
    graph.add_conditional_edges("join", lambda _: END, ["a", "b", END])
    graph.compile()


# --- nodes and their policies ---


@pytest.mark.parametrize("policy", ["timeout", "idle_timeout"])
@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "10", True])
def test_a_timeout_that_cannot_be_meant_is_refused(policy: str, seconds: Any) -> None:
    graph = line("a").add_node("b", idle, **{policy: seconds}).add_edge("a", "b").add_edge("b", END)
    assert only(graph).startswith(f"node 'b': {policy} must be a positive number of seconds")


def test_a_retry_that_is_none_is_refused() -> None:
    wrong: Any = 3
    graph = line("a").add_node("b", idle, retry=wrong).add_edge("a", "b").add_edge("b", END)
    assert only(graph) == "node 'b': retry must be a Retry, such as Retry(attempts=3); found 3"


def test_what_cannot_be_called_is_no_node() -> None:
    wrong: Any = "text"
    graph = line("a").add_node("b", wrong).add_edge("a", "b").add_edge("b", END)
    assert only(graph).startswith("node 'b': a node is a function, a compiled graph or an object with __call__")


def test_a_class_in_place_of_its_object_is_no_node() -> None:
    class Echo:
        async def __call__(self, state: State) -> State:
            return state

    wrong: Any = Echo
    graph = line("a").add_node("b", wrong).add_edge("a", "b").add_edge("b", END)
    assert only(graph) == "node 'b': Echo is a class; write Echo()"


def test_a_graph_that_is_not_compiled_is_no_node() -> None:
    wrong: Any = line("x")
    graph = line("a").add_node("b", wrong).add_edge("a", "b").add_edge("b", END)
    assert "call compile() on it first" in only(graph)


def none() -> None: ...
def three(state: Any, run: Any, more: Any) -> None: ...
def keyword(state: Any, *, key: str) -> None: ...


@pytest.mark.parametrize("function", [none, three, keyword])
def test_a_function_that_cannot_take_a_state_is_no_node_and_no_router(function: Any) -> None:
    graph = line("a").add_node("b", function).add_edge("a", "b").add_edge("b", END)
    graph.add_conditional_edges("a", function, [END])
    assert faults(graph) == (
        "node 'b': its function must be callable as (state) or (state, run)",
        "the router of 'a': its function must be callable as (state) or (state, run)",
    )


@pytest.mark.parametrize("handler", ["text", none, idle, keyword])
def test_an_error_handler_that_cannot_take_an_error_is_refused(handler: Any) -> None:
    graph = line("a").add_node("b", idle, on_error=handler).add_edge("a", "b").add_edge("b", END)
    assert only(graph).startswith("node 'b': on_error must be a function of (state, error) or (state, error, run)")


@pytest.mark.parametrize("ends", [5, [5], [["a"]], [None]])
def test_ends_that_are_no_names_are_refused(ends: Any) -> None:
    graph = line("a").add_node("b", idle, ends=ends).add_edge("a", "b").add_edge("b", END)
    assert only(graph).startswith("node 'b': ends has an unknown node ")


@pytest.mark.parametrize("targets", [5, {"x": ["a"]}, [["a"]], [None], {"x": 5}])
def test_targets_that_are_no_names_are_refused(targets: Any) -> None:
    graph = line("a").add_conditional_edges("a", lambda _: END, targets)
    assert only(graph).startswith("the router of 'a' names an unknown node ")


def test_a_join_of_something_else_than_names_is_refused() -> None:
    wrong: Any = [["a"], 5]
    assert faults(line("a", "b").add_edge(wrong, "b")) == (
        "an edge starts at an unknown node ['a']; known: 'a', 'b'",
        "an edge starts at an unknown node 5; known: 'a', 'b'",
    )


def test_misspelt_ends_do_not_make_what_they_mean_unreached() -> None:
    graph = StateGraph(State).add_node("go", idle, ends=["serach"]).add_node("search", idle)
    graph.add_edge(START, "go").add_edge("search", END)
    assert only(graph).startswith("node 'go': ends has an unknown node 'serach'; did you mean 'search'?")


def test_key_mappings_are_for_graphs_only() -> None:
    graph = line("a").add_node("b", idle, input={"text": "text"}).add_edge("a", "b").add_edge("b", END)
    assert only(graph) == "node 'b': input= and output= are for graphs as nodes"


def test_key_mappings_of_unknown_keys_are_refused() -> None:
    graph = line("a").add_edge("a", "sub").add_edge("sub", END)
    graph.add_node("sub", line("x").compile(), input={"txet": "text"}, output={"text": "note", "nots": "notes"})
    assert faults(graph) == (
        "node 'sub': input has an unknown state key 'txet'; did you mean 'text'? known: 'text', 'notes'",
        "node 'sub': output has an unknown state key 'note'; did you mean 'notes'? known: 'text', 'notes'",
        "node 'sub': output has an unknown state key 'nots'; did you mean 'notes'? known: 'text', 'notes'",
    )


@pytest.mark.parametrize(
    ("mapping", "told"), [(5, "must map state keys"), ({"text": ["a"]}, "has an unknown state key")]
)
@pytest.mark.parametrize("way", ["input", "output"])
@pytest.mark.parametrize("state", [State, None])
def test_a_mapping_of_something_else_than_keys_is_refused(way: str, mapping: Any, told: str, state: Any) -> None:
    keys: dict[str, Any] = {"output": {"text": "text"}} | {way: mapping}
    graph: StateGraph[Any] = StateGraph(state).add_node("sub", line("x").compile(), **keys)
    assert only(graph.add_edge(START, "sub").add_edge("sub", END)).startswith(f"node 'sub': {way} {told}")


# --- keys that a graph shares with the one it is a node of ---

ADDS: dict[str, Strategy] = {"log": Append(), "text": LastWrite()}
REPLACES: dict[str, Strategy] = {"log": LastWrite()}


def holding(strategies: Any, node: Any, **mappings: Any) -> StateGraph[Any]:
    """A graph of one node."""
    graph = StateGraph(strategies=strategies).add_node("sub", node, **mappings)
    return graph.add_edge(START, "sub").add_edge("sub", END)


@pytest.mark.parametrize(
    ("child", "parent", "told"),
    [
        (ADDS, REPLACES, "Append() in its graph and LastWrite() in this one"),
        (REPLACES, ADDS, "LastWrite() in its graph and Append() in this one"),
        (ADDS, None, "Append() in its graph and Replace() in this one"),
        (None, ADDS, "Replace() in its graph and Append() in this one"),
    ],
)
def test_a_shared_key_that_one_graph_adds_to_and_the_other_replaces_is_refused(
    child: Any, parent: Any, told: str
) -> None:
    inner = holding(child, idle).compile()
    fault = only(holding(parent, inner))
    assert fault.startswith(f"node 'sub': state key 'log' has {told}, so that what it writes would be lost or doubled;")
    assert "the same strategy in both, or name by input= and output= the keys" in fault
    assert only(holding(parent, inner, input={})) == fault
    holding(parent, inner, output={"log": "log"}).compile()


@pytest.mark.parametrize(("own", "ours"), [(Append(), Messages()), (LastWrite(), Replace()), (Reduce(max), Merge())])
def test_a_shared_key_that_both_graphs_add_to_or_both_replace_is_sound(own: Strategy, ours: Strategy) -> None:
    holding({"key": ours}, holding({"key": own}, idle).compile()).compile()


def test_a_graph_that_has_no_key_in_common_with_its_parent_needs_a_mapping() -> None:
    inner = holding({"own": Append()}, idle).compile()
    assert only(holding(ADDS, inner)) == (
        "node 'sub': its graph has no state key in common with this one; "
        "name a key alike in both, or map them by input= and output="
    )
    for mapping in ({"input": {"text": "own"}}, {"output": {"own": "log"}}):
        holding(ADDS, inner, **mapping).compile()


def test_a_state_that_is_none_hides_no_key_and_makes_no_further_fault() -> None:
    wrong: Any = 7
    graph = StateGraph(wrong).add_node("sub", line("x").compile()).add_edge(START, "sub").add_edge("sub", END)
    assert only(graph).startswith("the state must be ")


# --- keys that a node needs ---


class Needy:
    def __init__(self, **needs: Any) -> None:
        self.needs = needs

    async def __call__(self, state: Any, run: RunContext[None]) -> None: ...


def test_a_key_that_a_node_needs_and_the_state_does_not_have_is_refused() -> None:
    assert only(holding({"mesages": Messages()}, Needy(messages="the conversation"))) == (
        "node 'sub' needs the state key 'messages' with a strategy that adds, such as Messages(); the state has an "
        "unknown state key 'messages'; did you mean 'mesages'? known: 'mesages' (the key is for the conversation)"
    )


@pytest.mark.parametrize("strategies", [None, {"messages": Replace()}, {"messages": LastWrite()}])
def test_a_key_that_a_node_needs_and_the_state_replaces_is_refused(strategies: Any) -> None:
    has = "LastWrite()" if strategies and type(strategies["messages"]) is LastWrite else "Replace()"
    assert only(holding(strategies, Needy(messages="the conversation"))) == (
        "node 'sub' needs the state key 'messages' with a strategy that adds, such as Messages(); "
        f"it has {has} (the key is for the conversation)"
    )


def test_a_key_that_a_node_needs_may_have_any_strategy_that_adds() -> None:
    holding({"log": Append(), "sum": Reduce(max)}, Needy(log="what it did", sum="the cost")).compile()


def test_an_attribute_of_that_name_that_is_no_mapping_is_the_nodes_own() -> None:
    node = Needy()
    node.needs = ["coffee"]  # pyright: ignore[reportAttributeAccessIssue]
    holding(None, node).compile()


# --- the state ---


@pytest.mark.parametrize("state", [int, list, "State", 7, None.__class__])
def test_a_state_that_has_no_keys_is_refused(state: Any) -> None:
    graph = StateGraph(state).add_node("a", lambda _: None).add_edge(START, "a").add_edge("a", END)
    assert only(graph).startswith("the state must be a TypedDict, a dataclass, a msgspec.Struct, or dict; found ")


class AppendToText(TypedDict):
    key: Annotated[str, Append()]


class MergeIntoList(TypedDict):
    key: Annotated[list[str], Merge()]


class StrategyClass(TypedDict):
    key: Annotated[list[str], Append]


class BareFunction(TypedDict):
    key: Annotated[list[str], max]


class TwoStrategies(TypedDict):
    key: Annotated[list[str], Append(), Reduce(max)]


@dataclass
class AppendToNumber:
    key: Annotated[int, Append()] = 0


class MergeIntoText(msgspec.Struct):
    key: Annotated[str, Merge(deep=True)] = ""


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (AppendToText, "Append() keeps a list, and the key's type is str"),
        (MergeIntoList, "Merge() keeps a dict, and the key's type is list[str]"),
        (AppendToNumber, "Append() keeps a list, and the key's type is int"),
        (MergeIntoText, "Merge(deep=True) keeps a dict, and the key's type is str"),
        (StrategyClass, "Append is a class; write Append()"),
        (BareFunction, "max is a function; write Reduce(max)"),
        (TwoStrategies, "2 strategies"),
    ],
)
def test_a_strategy_that_does_not_fit_its_key_is_refused(state: Any, told: str) -> None:
    graph: StateGraph[Any] = StateGraph(state).add_node("a", idle).add_edge(START, "a").add_edge("a", END)
    fault = only(graph)
    assert fault.startswith("state key 'key'")
    assert told in fault


class OptionalOutside(TypedDict):
    key: Annotated[list[str], Append()] | None


class InsideList(TypedDict, total=False):
    key: list[Annotated[dict[str, int], Merge()]]


@dataclass
class OptionalField:
    key: Annotated[list[Any], Append()] | None = None


class OptionalClass(TypedDict):
    key: Annotated[list[str], Append] | None


class OptionalStruct(msgspec.Struct):
    key: Optional[Annotated[list[str], Append()]] = None  # noqa: UP045  # the older way to write it


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        (OptionalOutside, "Annotated[list[str] | None, Append()]"),
        (OptionalField, "Annotated[list[typing.Any] | None, Append()]"),
        (OptionalClass, "Annotated[list[str] | None, Append()]"),
        (OptionalStruct, "Annotated[list[str] | None, Append()]"),
        (InsideList, "Annotated[list[dict[str, int]], Merge()]"),
    ],
)
def test_a_strategy_inside_a_keys_type_is_refused(state: Any, remedy: str) -> None:
    graph: StateGraph[Any] = StateGraph(state).add_node("a", idle).add_edge(START, "a").add_edge("a", END)
    fault = only(graph)
    assert fault.startswith("state key 'key': ")
    assert fault.endswith(f"stands inside the key's type, where it does not count; write {remedy}")


async def test_a_strategy_round_a_whole_optional_type_counts() -> None:
    class Notes(TypedDict):
        key: NotRequired[Annotated[list[str] | None, Append()]]

    graph = StateGraph(Notes).add_node("a", lambda _: {"key": "x"}).add_edge(START, "a").add_edge("a", END)
    assert (await graph.compile().invoke({})).state == {"key": ["x"]}


Notes = TypeAliasType("Notes", Annotated[list[str], Append()])


async def test_a_strategy_in_an_alias_of_the_keys_type_counts() -> None:
    class Aliased(TypedDict):
        key: Notes

    graph = StateGraph(Aliased).add_node("a", lambda _: {"key": "x"}).add_edge(START, "a").add_edge("a", END)
    assert (await graph.compile().invoke({})).state == {"key": ["x"]}


@pytest.mark.parametrize("strategies", [5, [("text", Append())]])
def test_strategies_that_are_no_mapping_are_refused(strategies: Any) -> None:
    graph = StateGraph(State, strategies=strategies).add_node("a", idle).add_edge(START, "a").add_edge("a", END)
    assert only(graph) == f"strategies must map state keys to strategies; found {strategies!r}"


def test_a_strategy_for_what_is_no_key_is_refused() -> None:
    wrong: Any = {5: Append()}
    assert only(holding(wrong, idle)) == "strategies: unknown state key 5; known: none"


def test_a_strategy_for_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    graph = StateGraph(State, strategies={"note": Append()})
    graph.add_node("a", idle).add_edge(START, "a").add_edge("a", END)
    assert only(graph) == "strategies: unknown state key 'note'; did you mean 'notes'? known: 'text', 'notes'"


def test_a_strategy_that_is_none_is_refused() -> None:
    wrong: Any = {"text": Append, "notes": "append"}
    graph = StateGraph(State, strategies=wrong).add_node("a", idle).add_edge(START, "a").add_edge("a", END)
    assert [f.partition(" needs ")[0] for f in faults(graph)] == ["strategies: key 'text'", "strategies: key 'notes'"]


# --- all at once ---


def test_all_faults_come_in_one_error() -> None:
    graph = StateGraph(State, strategies={"txt": Append()})
    graph.add_node("plan", idle).add_node("plan", idle, timeout=0).add_node("search", idle)
    graph.add_node("island", idle).add_node("loop", idle)
    graph.add_edge(START, "plna").add_edge("plan", "search").add_edge("loop", "loop").add_edge("search", END)
    graph.add_edge("island", END).add_edge("plan", "loop").add_edge(["plan", "search"], "search")
    graph.add_conditional_edges("plan", lambda _: "x", {"x": "serach"})
    found = faults(graph)
    told = [
        "unknown state key 'txt'; did you mean 'text'?",
        "2 nodes are named 'plan'",
        "timeout must be a positive number",
        "an edge leads to an unknown node 'plna'; did you mean 'plan'?",
        "the router of 'plan' names an unknown node 'serach'",
        "'search' would wait for itself",
        "nothing leads to node 'island'",
        "node 'loop' cannot reach END",
    ]
    assert all(any(t in fault for fault in found) for t in told), found
    assert len(found) == len(told)


def test_the_error_is_a_value_error_whose_text_lists_the_faults() -> None:
    with pytest.raises(ValueError, match=r"the graph has 2 faults:\n  - .*\n  - .*") as caught:
        line("a").add_node("a", idle).add_edge("a", "b").compile()
    assert isinstance(caught.value, GraphError)
    assert all(f"\n  - {fault}" in str(caught.value) for fault in caught.value.faults)


async def test_a_compiled_graph_does_not_change_with_what_it_was_made_of() -> None:
    async def go(state: State) -> Any:
        return Command(goto="b")

    ends, targets, keys = ["b"], ["a"], {"text": "text"}
    sub = line("x").add_node("copy", lambda state: {"notes": state["text"]}).add_edge("x", "copy").add_edge("copy", END)
    graph = StateGraph(State).add_node("a", go, ends=ends).add_node("b", sub.compile(), input=keys)
    graph.add_conditional_edges(START, lambda _: "a", targets).add_edge("b", END)
    app = graph.compile()
    ends.clear()
    targets.clear()
    keys.clear()
    assert (await app.invoke({"text": "t"})).state == {"text": "t", "notes": ["t"]}


def test_compiling_again_after_mending_works_and_leaves_the_first_graph_alone() -> None:
    graph = line("a")
    first = graph.compile()
    graph.add_edge("a", "b")
    assert faults(graph)
    graph.add_node("b", idle).add_edge("b", END)
    assert (repr(first), repr(graph.compile())) == ("<CompiledGraph graph: ['a']>", "<CompiledGraph graph: ['a', 'b']>")


# --- settings ---


@pytest.mark.parametrize("limit", [-1, 0, 2.5, None, True])
def test_a_recursion_limit_that_cannot_be_meant_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match=r"recursion_limit=...\) must be a positive whole number"):
        RunConfig(recursion_limit=limit)


@pytest.mark.parametrize("setting", ["timeout", "max_concurrency"])
@pytest.mark.parametrize("value", [0, -1, "1"])
def test_a_run_setting_that_cannot_be_meant_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"RunConfig\\({setting}=...\\) must be a positive"):
        RunConfig(**{setting: value})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("thread_id", ""),
        ("thread_id", 5),
        ("run_id", ""),
        ("run_id", 5),
        ("run_id", "\ud800"),
        ("tags", "abc"),
        ("tags", None),
        ("tags", (1,)),
        ("metadata", None),
        ("metadata", ["a"]),
    ],
    ids=ascii,
)
def test_a_run_setting_of_a_wrong_type_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"RunConfig\({setting}=...\) must be .*; found "):
        RunConfig(**{setting: value})


def test_tags_may_be_a_list_and_become_a_tuple() -> None:
    tags: Any = ["a", "b"]
    assert RunConfig(tags=tags).tags == ("a", "b")


@pytest.mark.parametrize(
    "settings",
    [{"attempts": 0}, {"attempts": None}]
    + [{name: value} for name in ("delay", "max_delay") for value in (-1, -0.5, "x", None, True, float("nan"))],
)
def test_a_retry_that_cannot_be_meant_is_refused(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=rf"Retry\({name}=...\) must be "):
        Retry(**settings)


async def rule(error: Exception) -> bool:
    return True


class Rule:
    async def __call__(self, error: Exception) -> bool:
        return True


@pytest.mark.parametrize("on", [rule, Rule(), functools.partial(rule), [ValueError], "ValueError"])
def test_a_rule_of_retry_that_is_no_plain_function_is_refused(on: Any) -> None:
    with pytest.raises(ConfigError, match=r"Retry\(on=...\) must be exception types, or a plain function"):
        Retry(on=on)


@pytest.mark.parametrize("buffer", [0, None, "x"])
def test_a_buffer_that_cannot_be_meant_is_refused(buffer: Any) -> None:
    with pytest.raises(ConfigError, match=r"stream\(buffer=...\) must be a positive whole number; found"):
        line("a").compile().stream({}, buffer=buffer)


def test_what_may_be_none_is_told_so_and_what_may_not_is_not() -> None:
    with pytest.raises(ConfigError, match=r"a positive whole number, or None for no limit; found 0"):
        RunConfig(max_concurrency=0)
    with pytest.raises(ConfigError, match=r"a positive whole number; found 0"):
        RunConfig(recursion_limit=0)


async def test_a_config_that_is_a_dict_is_refused() -> None:
    wrong: Any = {"thread_id": "1"}
    with pytest.raises(ConfigError, match="config must be a RunConfig, found dict"):
        await line("a").compile().invoke({}, wrong)


# --- inputs and updates ---


@pytest.mark.parametrize("input", ["text", 7, [("text", "x")]])
async def test_an_input_that_is_no_mapping_is_refused(input: Any) -> None:
    with pytest.raises(InputError, match="the input must be a dict of state keys; found"):
        await line("a").compile().invoke(input)


async def test_an_input_with_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    wrong: Any = {"txet": "x"}
    with pytest.raises(InputError, match=r"unknown state key 'txet'; did you mean 'text'\?"):
        await line("a").compile().invoke(wrong)


async def test_an_input_that_its_strategy_cannot_take_is_refused() -> None:
    graph = StateGraph(strategies={"scores": Merge()})
    graph.add_node("a", lambda _: None).add_edge(START, "a").add_edge("a", END)
    with pytest.raises(InputError, match="the input's key 'scores' does not fit: Merge takes a dict, found int"):
        await graph.compile().invoke({"scores": 7})


async def test_an_input_that_lacks_a_key_without_a_default_is_refused() -> None:
    @dataclass
    class Question:
        text: str

    graph = StateGraph(Question).add_node("a", lambda _: None).add_edge(START, "a").add_edge("a", END)
    with pytest.raises(InputError, match="the input lacks 'text', which Question has no default for"):
        await graph.compile().invoke({})


async def test_an_input_of_the_states_class_is_the_whole_state() -> None:
    @dataclass
    class Whole:
        notes: Annotated[list[str], Append()] = field(default_factory=lambda: ["default"])
        cost: Annotated[float, Reduce(operator.add)] = 5.0

    class Packed(msgspec.Struct):
        notes: Annotated[list[str], Append()] = msgspec.field(default_factory=lambda: ["default"])
        cost: Annotated[float, Reduce(operator.add)] = 5.0

    for made in (Whole, Packed):
        graph: StateGraph[Any] = StateGraph(made).add_node("a", lambda _: {"notes": "a"})
        app = graph.add_edge(START, "a").add_edge("a", END).compile()
        assert (await app.invoke(made())).state == made(["default", "a"], 5.0)
        assert (await app.invoke(made(["given"], 1.0))).state == made(["given", "a"], 1.0)
        assert (await app.invoke({"notes": ["given"], "cost": 1.0})).state == made(["default", "given", "a"], 6.0)


async def test_values_of_an_input_of_the_states_class_are_validated_where_values_are() -> None:
    @dataclass
    class Whole:
        notes: Annotated[list[str], Append()]

    graph = StateGraph(Whole, validate=True).add_node("a", lambda _: None).add_edge(START, "a").add_edge("a", END)
    wrong: Any = [7]
    with pytest.raises(InputError, match="the input's key 'notes' does not fit: Expected `str`, got `int`"):
        await graph.compile().invoke(Whole(wrong))


async def test_an_input_of_the_states_class_that_lacks_a_field_is_refused() -> None:
    @dataclass
    class Whole:
        text: str
        notes: list[str] = field(init=False)

    graph = StateGraph(Whole).add_node("a", lambda _: None).add_edge(START, "a").add_edge("a", END)
    with pytest.raises(InputError, match="the input lacks 'notes'"):
        await graph.compile().invoke(Whole("t"))


async def test_keys_that_nodes_keep_to_themselves_are_not_offered() -> None:
    async def odd(state: Any) -> Any:
        return {"_onw": 1}

    graph = holding({"text": Replace(), "_own": Replace()}, odd)
    with pytest.raises(UpdateError, match=r"unknown state key '_onw'; known: 'text'\n"):
        await graph.compile().invoke({})
    with pytest.raises(InputError, match=r"unknown state key '_onw'; known: 'text'$"):
        await graph.compile().invoke({"_onw": 1})


MARKERS = [RemoveMessage("m"), RemoveByHash("m"), REMOVE_ALL, RewriteMessages([], [])]


@pytest.mark.parametrize("marker", MARKERS, ids=lambda marker: type(marker).__name__)
@pytest.mark.parametrize("strategy", [Replace(), LastWrite()], ids=repr)
@pytest.mark.parametrize("alone", [True, False])
async def test_a_marker_for_a_key_that_is_replaced_is_refused(strategy: Strategy, marker: Any, alone: bool) -> None:
    value = marker if alone else ["text", marker]
    app = holding({"messages": strategy}, lambda state: {"messages": value} if not state else None).compile()  # pyright: ignore[reportUnknownLambdaType]
    told = f"{strategy!r} does not follow {type(marker).__name__}, it would keep it as a value; give the key a strategy"
    with pytest.raises(UpdateError, match=re.escape(f"node 'sub', key 'messages': {told}")) as caught:
        await app.invoke({})
    assert (caught.value.node, caught.value.key) == ("sub", "messages")
    with pytest.raises(InputError, match=re.escape(f"the input's key 'messages' does not fit: {told}")):
        await app.invoke({"messages": value})


@pytest.mark.parametrize("returned", ["text", 7, ["notes"], ("notes", "x"), True])
async def test_a_node_that_returns_no_update_fails_by_name(returned: Any) -> None:
    graph = StateGraph(State).add_node("odd", lambda _: returned).add_edge(START, "odd").add_edge("odd", END)
    with pytest.raises(UpdateError, match=f"node 'odd' returned {type(returned).__name__}: ") as caught:
        await graph.compile().invoke({})
    assert (caught.value.node, caught.value.key) == ("odd", None)
    assert [note.path for note in caught.value.__notes__ if isinstance(note, RunNote)] == [("odd",)]


async def test_an_update_of_an_unknown_key_names_node_key_and_the_nearest_one() -> None:
    graph = StateGraph(State).add_node("odd", lambda _: {"nots": ["x"]}).add_edge(START, "odd").add_edge("odd", END)
    told = "node 'odd' returned an update with an unknown state key 'nots'; did you mean 'notes'?"
    with pytest.raises(UpdateError, match=told) as caught:
        await graph.compile().invoke({})
    assert (caught.value.node, caught.value.key) == ("odd", "nots")


async def test_a_command_whose_update_is_no_mapping_fails_by_name() -> None:
    async def odd(state: State) -> Any:
        wrong: Any = "text"
        return Command(update=wrong, goto=END)

    graph = StateGraph(State).add_node("odd", odd).add_edge(START, "odd").add_edge("odd", END)
    with pytest.raises(UpdateError, match="node 'odd' returned a Command whose update is str; it must be a dict"):
        await graph.compile().invoke({})


async def test_a_failing_update_leaves_nothing_of_its_step() -> None:
    seen: list[Any] = []

    async def odd(state: State) -> Any:
        return {"notes": ["half"], "nots": 1}

    async def failed(state: State, error: Exception) -> None:
        seen.append(error)

    graph = StateGraph(State).add_node("odd", odd, on_error=failed).add_edge(START, "odd").add_edge("odd", END)
    given: State = {"notes": ["given"]}
    with pytest.raises(UpdateError):
        await graph.compile().invoke(given)
    assert given == {"notes": ["given"]}
    assert not seen


async def test_a_send_to_a_graph_needs_a_mapping() -> None:
    graph = StateGraph(State).add_node("sub", line("x").compile()).add_edge("sub", END)
    graph.add_conditional_edges(START, lambda _: Send("sub", 7), ["sub"])
    with pytest.raises(InputError, match="a graph takes a dict of state keys, found int: 7"):
        await graph.compile().invoke({})


async def test_a_node_may_take_its_run_by_position_or_by_name() -> None:
    def with_default(state: State, run: RunContext[None] | None = None) -> Any:
        assert run is not None
        return {"text": run.node}

    graph = StateGraph(State).add_node("a", with_default).add_edge(START, "a").add_edge("a", END)
    assert (await graph.compile().invoke({})).state == {"text": "a", "notes": []}
