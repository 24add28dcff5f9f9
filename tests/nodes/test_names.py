"""Names that providers take, out of any."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.nodes.names import clean_name, unique_name


@settings(max_examples=60)
@given(st.text(max_size=200))
def test_any_text_becomes_a_name_that_providers_take(text: str) -> None:
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", clean_name(text))


def test_a_name_that_providers_take_stays_and_long_ones_of_one_head_stay_two() -> None:
    assert clean_name("_fs-read_") == "_fs-read_"
    assert clean_name("fs.read?") == "fs_read"
    assert clean_name("x" * 64) == "x" * 64
    assert clean_name("x" * 65) != clean_name("x" * 66)


def test_a_name_that_is_taken_gets_a_number_within_the_length() -> None:
    taken: set[str] = set()
    assert [unique_name("a", taken) for _ in range(3)] == ["a", "a_2", "a_3"]
    assert [len(unique_name("x" * 64, taken)) for _ in range(2)] == [64, 64]
    assert len(taken) == 5
