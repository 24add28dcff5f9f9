"""Counting tokens: the approximation beside real tokenizers, and counters made of a tokenizer."""

import argparse
import base64
import inspect
import json
import random
import sys

import pytest

from agentgraph import ConfigError
from agentgraph.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.nodes.tokens import TokenCounter, approximate_tokens, counter_of, openai_tokens

ENGLISH = (
    "The history of the agent is kept in one place, and whoever changes it says so. A summary takes the place of old "
    "messages, so that the conversation goes on without growing for ever. People who read it later will find what was "
    "decided, when, and why; what was merely tried is left out. "
)
NEAR = {
    "english": ENGLISH,
    "code": inspect.getsource(argparse)[:8000],
    "json": json.dumps([{"id": i, "name": f"item {i}", "price": i * 1.37, "active": True} for i in range(80)]),
    "compact json": json.dumps([{"id": i * 7919, "sku": f"X{i * 31:05d}"} for i in range(80)], separators=(",", ":")),
}
FAR = {
    "german": "Die Geschichte des Agenten wird an einer Stelle gehalten, und wer sie ändert, sagt es. Größere "
    "Überschriften führen häufig zu Mißverständnissen. ",
    "russian": "История агента хранится в одном месте, и тот, кто её меняет, говорит об этом. ",  # noqa: RUF001
    "chinese": "代理的历史记录保存在一个地方，谁更改它谁就说明。摘要取代旧消息，这样对话就可以继续下去。",  # noqa: RUF001
    "japanese": "エージェントの履歴は一か所に保管され、それを変更する者はそれを伝えます。",
    "hindi": "एजेंट का इतिहास एक ही स्थान पर रखा जाता है, और जो कोई इसे बदलता है वह ऐसा कहता है। ",
    "arabic": "يتم حفظ تاريخ الوكيل في مكان واحد، ومن يغيره يقول ذلك. ",
    "base64": base64.b64encode(random.Random(1).randbytes(4500)).decode(),
}

encodings = pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])


def said(text: str) -> list[Message]:
    return [UserMessage(text * (6000 // len(text) + 1))]


@encodings
@pytest.mark.parametrize("kind", NEAR)
def test_the_approximation_is_near_a_real_tokenizer_for_english_code_and_json(kind: str, encoding: str) -> None:
    asked = said(NEAR[kind])
    assert 0.8 <= approximate_tokens(asked) / openai_tokens(encoding)(asked) <= 1.25


@encodings
@pytest.mark.parametrize("kind", FAR)
def test_the_approximation_is_within_half_and_twice_for_other_texts(kind: str, encoding: str) -> None:
    asked = said(FAR[kind])
    assert 0.5 <= approximate_tokens(asked) / openai_tokens(encoding)(asked) <= 2


@pytest.mark.parametrize("count", [approximate_tokens, openai_tokens()])
def test_all_that_a_model_gets_to_read_counts(count: TokenCounter) -> None:
    text = ENGLISH * 10
    whole = count([UserMessage(text)])
    call = ToolCall("c1", "find", json.dumps({"q": text}))
    for message in (
        SystemMessage(text),
        UserMessage([TextPart(text)]),
        AssistantMessage(text),
        AssistantMessage(tool_calls=[call]),
        AssistantMessage("x", reasoning=[ReasoningPart(text)]),
        ToolResponseMessage([ToolResponse("c1", "find", text)]),
        ToolResponseMessage([ToolResponse("c1", "find", [TextPart(text)])]),
    ):
        assert 0.95 * whole < count([message]) < 1.05 * whole
        assert count([message, message]) == pytest.approx(2 * count([message]), abs=1)
    assert count([]) == 0


def test_images_and_files_count_a_fixed_number() -> None:
    parts = [ImagePart(data=b"x" * 100_000), FilePart(data=b"x" * 1_000_000)]
    assert approximate_tokens([UserMessage([*parts])]) == 3_004


def test_halves_of_surrogate_pairs_are_counted_too() -> None:
    assert approximate_tokens([UserMessage("\ud83d" * 90)]) > 40


def test_a_counter_is_made_of_any_tokenizers_encode() -> None:
    seen: list[str] = []

    def encode(text: str) -> list[str]:
        seen.append(text)
        return text.split()

    count = counter_of(encode)
    assert count([UserMessage("one two three"), UserMessage("four")]) == 4 + 2 * 4
    assert count([UserMessage("one two three"), UserMessage("four five")]) == 5 + 2 * 4
    assert seen == ["one two three", "four", "four five"]  # what was seen lately is not counted anew


def test_a_texts_own_marks_are_text() -> None:
    assert openai_tokens()([UserMessage("<|endoftext|>")]) > 4 + 1


def test_an_encoding_that_is_not_there_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'o200k_bas'.*o200k_base"):
        openai_tokens("o200k_bas")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bpe_openai", None)
    with pytest.raises(ImportError, match=r"agentgraph-engine\[tokens\]"):
        openai_tokens()
