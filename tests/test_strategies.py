"""How a key's updates merge: each strategy by itself, and in a run where the engine has a say in it."""

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph import END, START, ConflictError, StateGraph, StrategyError, UpdateError
from agentgraph.messages import AssistantMessage, UserMessage
from agentgraph.strategies import (
    REMOVE_ALL,
    UNSET,
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

ALL = [Replace(), LastWrite(), Append(), Merge(), Merge(deep=True), Reduce(operator.add), Messages()]


def says(text: str, id: str) -> UserMessage:
    return UserMessage(content=text, id=id)


def ids(messages: list[Any]) -> list[str]:
    return [m.id for m in messages]


async def merged(strategy: Strategy, start: Any, *updates: Any) -> Any:
    """The key's value after nodes that run beside each other have written these updates."""
    graph = StateGraph(strategies={"key": strategy})
    for i, update in enumerate(updates):
        graph.add_node(f"n{i}", writer(update)).add_edge(START, f"n{i}").add_edge(f"n{i}", END)
    result = await graph.compile().invoke({} if start is UNSET else {"key": start})
    return result.state["key"]


def writer(update: Any) -> Any:
    async def write(state: dict[str, Any]) -> dict[str, Any]:
        return {"key": update}

    return write


@pytest.mark.parametrize("strategy", ALL, ids=repr)
def test_each_of_ours_keeps_to_the_protocol(strategy: Any) -> None:
    assert isinstance(strategy, Strategy)


@pytest.mark.parametrize(
    ("strategy", "start"),
    [
        (Replace(), UNSET),
        (LastWrite(), UNSET),
        (Append(), []),
        (Merge(), {}),
        (Reduce(operator.add), UNSET),
        (Reduce(operator.add, initial=7), 7),
        (Messages(), []),
    ],
    ids=repr,
)
def test_a_key_starts_as_its_strategy_says(strategy: Strategy, start: Any) -> None:
    assert strategy.empty() == start


# Replace, LastWrite


@pytest.mark.parametrize("strategy", [Replace(), LastWrite()], ids=repr)
async def test_a_new_value_takes_the_old_ones_place(strategy: Strategy) -> None:
    assert await merged(strategy, "old", "new") == "new"


async def test_two_writers_of_one_step_are_an_error_that_names_both_and_the_remedies() -> None:
    with pytest.raises(ConflictError) as caught:
        await merged(Replace(), "old", 1, 2)
    assert (caught.value.nodes, caught.value.key) == (("n0", "n1"), "key")
    assert all(word in str(caught.value) for word in ("Append", "Merge", "Reduce", "LastWrite"))


async def test_with_last_write_the_later_in_node_order_wins() -> None:
    assert await merged(LastWrite(), "old", 1, 2) == 2


# Append


async def test_a_lists_items_are_appended_one_by_one() -> None:
    assert await merged(Append(), ["a"], ["b", "c"]) == ["a", "b", "c"]


@pytest.mark.parametrize("item", ["text", 7, None, ("a", "b"), {"k": 1}], ids=repr)
async def test_what_is_no_list_is_appended_as_one_item(item: Any) -> None:
    assert await merged(Append(), ["a"], item) == ["a", item]


async def test_parallel_writers_append_in_node_order() -> None:
    assert await merged(Append(), UNSET, "first", ["second", "third"], "fourth") == [
        "first",
        "second",
        "third",
        "fourth",
    ]


def test_appending_leaves_the_old_list_and_the_update_as_they_were() -> None:
    old, update = ["a"], ["b"]
    new = Append().merge(old, update)
    new.append("c")
    assert (old, update) == (["a"], ["b"])


def test_appending_to_what_is_no_list_is_an_error() -> None:
    with pytest.raises(StrategyError, match="Append needs a list to add to, found str"):
        Append().merge("text", ["b"])


@pytest.mark.case("D6")
@pytest.mark.parametrize("strategy", [Append(), Messages()], ids=repr)
async def test_saying_the_same_twice_in_a_row_drops_nothing(strategy: Strategy) -> None:
    first = [says("yes", "m1"), says("yes", "m2")]
    answers = [AssistantMessage(text="same", id="a1"), AssistantMessage(text="same", id="a2")]
    assert await merged(strategy, first, answers[0], answers[1]) == first + answers


# Merge


async def test_a_merge_adds_and_replaces_keys_and_keeps_the_others() -> None:
    assert await merged(Merge(), {"a": 1, "b": 1}, {"b": 2, "c": 2}) == {"a": 1, "b": 2, "c": 2}


async def test_a_shallow_merge_replaces_what_is_nested() -> None:
    assert await merged(Merge(), {"a": {"x": 1}}, {"a": {"y": 2}}) == {"a": {"y": 2}}


async def test_a_deep_merge_merges_what_is_nested() -> None:
    start = {"a": {"x": {"p": 1}, "y": 1}, "b": 1}
    new = await merged(Merge(deep=True), start, {"a": {"x": {"q": 2}}}, {"a": {"y": {"z": 3}}, "b": {"w": 4}})
    assert new == {"a": {"x": {"p": 1, "q": 2}, "y": {"z": 3}}, "b": {"w": 4}}


@given(st.data())
def test_merging_changes_neither_side(data: st.DataObject) -> None:
    nested = st.recursive(st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8)
    dicts = st.dictionaries(st.sampled_from("abc"), nested)
    old, update = data.draw(dicts), data.draw(dicts)
    before = repr((old, update))
    new = Merge(deep=True).merge(old, update)
    assert repr((old, update)) == before
    assert new == Merge(deep=True).merge(new, update)


@pytest.mark.parametrize("update", [None, ["a"], "text", 7], ids=repr)
async def test_merging_what_is_no_dict_is_an_error_that_names_node_and_key(update: Any) -> None:
    with pytest.raises(UpdateError, match=r"node 'n0', key 'key': Merge takes a dict, found") as caught:
        await merged(Merge(), {}, update)
    assert (caught.value.node, caught.value.key) == ("n0", "key")


def test_merging_into_what_is_no_dict_is_an_error() -> None:
    with pytest.raises(StrategyError, match="Merge needs a dict to merge into, found list"):
        Merge().merge([], {"a": 1})


# Reduce


async def test_reducing_calls_the_function_with_current_and_update_in_node_order() -> None:
    assert await merged(Reduce(lambda current, update: f"({current}{update})"), "a", "b", "c") == "((ab)c)"


async def test_the_first_write_of_an_unset_key_is_taken_as_it_is() -> None:
    assert await merged(Reduce(operator.add), UNSET, 5, 6) == 11


async def test_reducing_starts_at_the_initial_value_where_there_is_one() -> None:
    assert await merged(Reduce(max, initial=10), UNSET, 5) == 10


def test_reduce_refuses_what_is_no_function() -> None:
    with pytest.raises(TypeError, match="Reduce takes a function"):
        Reduce("add")  # pyright: ignore[reportArgumentType]


async def test_an_error_of_the_function_comes_out_as_itself_with_a_note_that_says_where() -> None:
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        await merged(Reduce(operator.sub), "text", 1)
    assert any("Reduce(sub) merged the update of node 'n0' into key 'key'" in n for n in caught.value.__notes__)


# Messages


async def test_a_message_with_a_new_id_is_appended_and_with_a_known_one_takes_the_old_ones_place() -> None:
    start = [says("a", "m1"), says("b", "m2")]
    new = await merged(Messages(), start, [says("A", "m1"), says("c", "m3")])
    assert [(m.id, m.text) for m in new] == [("m1", "A"), ("m2", "b"), ("m3", "c")]


async def test_one_message_need_not_stand_in_a_list() -> None:
    assert ids(await merged(Messages(), UNSET, says("a", "m1"), says("b", "m2"))) == ["m1", "m2"]


@pytest.mark.parametrize("item", ["hello", {"role": "user", "content": "hello"}, None, 7], ids=repr)
async def test_what_is_no_message_is_an_error_that_says_what_to_write(item: Any) -> None:
    with pytest.raises(UpdateError, match=r"node 'n0', key 'key': Messages takes messages, found .*UserMessage"):
        await merged(Messages(), [], [item])


@pytest.mark.parametrize("current", ["text", {"a": 1}, 7], ids=repr)
def test_messages_need_a_list_to_add_to(current: Any) -> None:
    with pytest.raises(StrategyError, match="needs a list to add to, found"):
        Messages().merge(current, says("a", "m1"))


# the remove markers

LISTS = pytest.mark.parametrize("strategy", [Append(), Messages()], ids=repr)


@LISTS
@pytest.mark.case("D7")
async def test_of_two_equal_messages_only_the_one_whose_id_is_named_goes(strategy: Strategy) -> None:
    start = [says("yes", "m1"), says("yes", "m2"), says("no", "m3")]
    assert ids(await merged(strategy, start, RemoveMessage("m2"))) == ["m1", "m3"]


@LISTS
async def test_removing_by_hash_takes_all_that_say_the_same_whatever_their_ids(strategy: Strategy) -> None:
    start = [says("yes", "m1"), says("no", "m2"), says("yes", "m3")]
    assert ids(await merged(strategy, start, RemoveByHash(says("yes", "other")))) == ["m2"]


@LISTS
async def test_a_message_of_another_role_or_with_other_metadata_does_not_say_the_same(strategy: Strategy) -> None:
    start = [AssistantMessage(text="yes", id="m1"), UserMessage(content="yes", metadata={"k": 1}, id="m2")]
    with pytest.raises(UpdateError, match="RemoveByHash names nothing that is there"):
        await merged(strategy, start, RemoveByHash(says("yes", "m1")))


@LISTS
async def test_remove_all_leaves_what_comes_after_it(strategy: Strategy) -> None:
    start = [says("a", "m1"), says("b", "m2")]
    assert ids(await merged(strategy, start, [says("c", "m3"), REMOVE_ALL, says("d", "m4")])) == ["m4"]


@LISTS
async def test_a_marker_finds_what_the_same_update_has_added(strategy: Strategy) -> None:
    assert ids(await merged(strategy, [], [says("a", "m1"), says("b", "m2"), RemoveMessage("m1")])) == ["m2"]


@LISTS
async def test_removing_what_is_not_there_is_an_error_that_names_it_and_what_is_there(strategy: Strategy) -> None:
    with pytest.raises(UpdateError, match=r"RemoveMessage\('m9'\) names nothing that is there; ids: 'm1'") as caught:
        await merged(strategy, [says("a", "m1")], RemoveMessage("m9"))
    assert (caught.value.node, caught.value.key) == ("n0", "key")


@LISTS
async def test_removing_all_of_nothing_is_no_error(strategy: Strategy) -> None:
    assert await merged(strategy, [], REMOVE_ALL) == []


async def test_a_rewrite_takes_away_what_its_writer_has_seen_and_nothing_else() -> None:
    start = [says("a", "m1"), says("b", "m2")]
    rewrite = RewriteMessages(["m1", "m2"], [says("short", "m3"), says("B", "m2")])
    result = await merged(Messages(), start, says("from a sibling", "m4"), [rewrite, says("then", "m5")])
    assert [(m.id, m.text) for m in result] == [
        ("m3", "short"),
        ("m2", "B"),
        ("m4", "from a sibling"),
        ("m5", "then"),
    ]


async def test_the_same_rewrite_twice_is_as_good_as_once() -> None:
    rewrite = RewriteMessages(["m1"], [says("A", "m1"), says("new", "m1-new")])
    result = await merged(Messages(), [says("a", "m1")], [rewrite, says("x", "m2")], [rewrite, says("y", "m3")])
    assert ids(result) == ["m1", "m1-new", "m2", "m3"]


async def test_append_takes_no_rewrite() -> None:
    with pytest.raises(UpdateError, match="RewriteMessages is for keys with the strategy Messages"):
        await merged(Append(), [], RewriteMessages([], []))


def test_append_removes_items_that_are_no_messages_by_their_value() -> None:
    assert Append().merge(["a", "b", "a"], RemoveByHash("a")) == ["b"]


ITEMS = st.one_of(
    st.builds(says, st.sampled_from(["yes", "no"]), st.sampled_from(["m1", "m2", "m3"])),
    st.builds(RemoveMessage, st.sampled_from(["m1", "m2", "m3"])),
    st.builds(RemoveByHash, st.builds(says, st.sampled_from(["yes", "no"]), st.just("any"))),
    st.just(REMOVE_ALL),
    st.builds(RewriteMessages, st.just(["m1"]), st.just([says("new", "m3"), says("yes", "m2")])),
)


@LISTS
@given(
    start=st.lists(st.builds(says, st.just("yes"), st.sampled_from("abc")), unique_by=lambda m: m.id), data=st.data()
)
def test_one_update_and_the_same_items_one_by_one_give_the_same_list(
    strategy: Strategy, start: list[Any], data: st.DataObject
) -> None:
    items = data.draw(st.lists(ITEMS, max_size=12))

    def outcome(updates: list[Any]) -> Any:
        value: Any = start
        try:
            for update in updates:
                value = strategy.merge(value, update)
        except StrategyError as error:
            return str(error)
        return value

    before = list(start)
    assert outcome([items]) == outcome([[i] for i in items]) == outcome(items)
    assert start == before


@LISTS
@given(parts=st.lists(st.lists(st.builds(says, st.text(max_size=2), st.sampled_from("abcde"))), max_size=5))
def test_how_items_are_parted_into_updates_does_not_matter(strategy: Strategy, parts: list[list[Any]]) -> None:
    value: Any = UNSET
    for part in parts:
        value = strategy.merge(value, part)
    whole = strategy.merge(UNSET, [m for part in parts for m in part])
    assert (value if parts else []) == whole


# a strategy of one's own


async def test_a_strategy_of_ones_own_is_told_whether_the_key_is_unset() -> None:
    class Seen:
        def merge(self, current: Any, update: Any) -> Any:
            return [("unset" if current is UNSET else current), update]

        def empty(self) -> Any:
            return UNSET

    assert await merged(Seen(), UNSET, 1, 2) == [["unset", 1], 2]


async def test_a_strategys_own_error_gets_the_node_and_the_key() -> None:
    class Refuses:
        def merge(self, current: Any, update: Any) -> Any:
            raise StrategyError(f"cannot bring {update} to {current}")

        def empty(self) -> Any:
            return UNSET

    with pytest.raises(UpdateError, match="node 'n0', key 'key': cannot bring 1 to UNSET"):
        await merged(Refuses(), UNSET, 1)


@pytest.mark.parametrize(
    ("strategy", "shown"),
    [
        (Replace(), "Replace()"),
        (LastWrite(), "LastWrite()"),
        (Append(), "Append()"),
        (Merge(), "Merge()"),
        (Merge(deep=True), "Merge(deep=True)"),
        (Reduce(max), "Reduce(max)"),
        (Messages(), "Messages()"),
    ],
)
def test_a_strategys_repr_says_how_it_was_made(strategy: Strategy, shown: str) -> None:
    assert repr(strategy) == shown


async def test_a_conversation_that_its_owner_has_changed_is_taken_as_it_is() -> None:
    @dataclass
    class Chat:
        messages: Annotated[list[Any], Messages()] = field(default_factory=list[Any])

    graph = StateGraph(Chat)
    graph.add_node("render", lambda s: {"messages": says(f"{s.messages[-1].text}!", s.messages[-1].id)})
    graph.add_edge(START, "render")
    graph.add_edge("render", END)
    app = graph.compile()
    state = (await app.invoke({"messages": [says("one", "1"), says("two", "2")]})).state
    state.messages[-1] = says("three", "3")
    assert [m.text for m in (await app.invoke(state)).state.messages] == ["one", "three!"]
