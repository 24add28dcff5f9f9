"""How many tokens messages take: an approximation, and what counts with a real tokenizer.

Whatever needs a count takes a `TokenCounter`. `approximate_tokens` is its default: it knows no model and costs a few
microseconds a message. `counter_of` makes one of any tokenizer, and `openai_tokens` (an extra:
`pip install "agentgraph-engine[tokens]"`) one of OpenAI's.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence, Sized
from functools import lru_cache
from typing import Any, Final

from agentgraph.errors import ConfigError, unknown
from agentgraph.messages import AssistantMessage, ImagePart, Message, Part, TextPart, ToolResponseMessage, UserMessage

__all__ = ["TokenCounter", "approximate_tokens", "counter_of", "openai_tokens"]

TokenCounter = Callable[[Sequence[Message]], int]
"""`(messages) -> tokens`, sync; called with the whole conversation once a round, so it should be quick."""

PER_MESSAGE: Final = 4
"""Tokens that a message, or a call in it, takes besides its text."""
PER_IMAGE: Final = 1_000
PER_FILE: Final = 2_000

_DENSE: Final = bytes(c for c in range(33, 127) if not chr(c).islower())
"""Digits, signs and capitals: in figures and JSON a token has two of them; in prose there are few."""
_ASCII: Final = bytes(range(128))

_CACHED_TEXTS: Final = 2048
_CACHED_LENGTH: Final = 20_000


def approximate_tokens(messages: Sequence[Message]) -> int:
    """About how many tokens the messages take, without a tokenizer.

    From 20 percent below to 25 above what OpenAI's tokenizers count for English, source code and JSON; for other
    languages and scripts from half to twice, for their tokenizers themselves differ by as much. An image counts 1,000
    and a file 2,000, whatever is in it.
    """
    return _sum(messages, _approximate)


def _approximate(text: str) -> float:
    data = text.encode("utf-8", "surrogatepass")
    rest = data.translate(None, _DENSE)
    beyond = 0 if text.isascii() else len(rest.translate(None, _ASCII))
    return (len(rest) - beyond) / 4.6 + (len(data) - len(rest)) / 2 + beyond / 4.5


def counter_of(encode: Callable[[str], Sized]) -> TokenCounter:
    """A counter by a tokenizer's own `encode`, which makes tokens of a text: `counter_of(tokenizer.encode)`.

    What a tokenizer returns must have a length. Counts of texts that were seen lately are kept.
    """

    @lru_cache(_CACHED_TEXTS)
    def kept(text: str) -> int:
        return len(encode(text))

    def tokens(text: str) -> float:
        return kept(text) if len(text) <= _CACHED_LENGTH else len(encode(text))

    def count(messages: Sequence[Message]) -> int:
        return _sum(messages, tokens)

    return count


def openai_tokens(encoding: str = "o200k_base") -> TokenCounter:
    """A counter by one of OpenAI's tokenizers, which come with the extra `tokens`: nothing is fetched.

    "o200k_base" is that of its models since gpt-4o, "cl100k_base" of those before. Raises `ConfigError` for an encoding
    that the library has not, and `ImportError` where the library is not installed.
    """
    try:
        with warnings.catch_warnings():  # it reads its data by a form that Python 3.11 and 3.12 warn of
            warnings.simplefilter("ignore", DeprecationWarning)
            library: Any = importlib.import_module("bpe_openai")
    except ImportError as absent:
        raise ImportError('openai_tokens needs bpe-openai: pip install "agentgraph-engine[tokens]"') from absent
    known = library.list_encoding_names()
    if encoding not in known:
        raise ConfigError(f"openai_tokens: {unknown('encoding', encoding, known)}")
    # a text may hold what looks like a model's own marks: it is text here
    return counter_of(library.get_encoding(encoding).encode_ordinary)


def _sum(messages: Sequence[Message], tokens: Callable[[str], float]) -> int:
    total = 0.0
    for message in messages:
        total += PER_MESSAGE
        if isinstance(message, ToolResponseMessage):
            for response in message.responses:
                total += PER_MESSAGE + _content(response.content, tokens)
        elif isinstance(message, UserMessage):
            total += _content(message.content, tokens)
        else:
            total += tokens(message.text)
            if isinstance(message, AssistantMessage):
                for call in message.tool_calls:
                    total += PER_MESSAGE + tokens(call.name) + tokens(call.arguments)
                for part in message.reasoning:
                    total += tokens(part.text)
    return round(total)


def _content(content: str | list[Part], tokens: Callable[[str], float]) -> float:
    if isinstance(content, str):
        return tokens(content)
    total = 0.0
    for part in content:
        if isinstance(part, TextPart):
            total += tokens(part.text)
        else:
            total += PER_IMAGE if isinstance(part, ImagePart) else PER_FILE
    return total
