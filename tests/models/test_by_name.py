"""Models named by a string: which client that is, where keys and addresses come from, and what no name is."""

import subprocess
import sys

import pytest

from agentgraph import ConfigError
from agentgraph.messages import UserMessage
from agentgraph.models import ChatModel, ModelRequest, OpenAIChat, model, provider_of
from agentgraph.nodes import LlmNode, ReactAgent
from agentgraph.testing import FunctionModel, serve_transcript

ANSWER = b'{"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}'


@pytest.mark.parametrize(
    ("name", "client", "provider"),
    [
        ("openai:gpt-x", "OpenAIChat", "openai"),
        ("openai-responses:gpt-x", "OpenAIResponses", "openai"),
        ("anthropic:claude-x", "AnthropicMessages", "anthropic"),
        ("gemini:gemini-x", "Gemini", "gcp.gemini"),
    ],
)
def test_a_providers_name_gives_its_client(name: str, client: str, provider: str) -> None:
    found = model(name)
    assert isinstance(found, ChatModel)
    assert (type(found).__name__, found.name, provider_of(found)) == (client, name.partition(":")[2], provider)


def test_what_follows_the_first_colon_is_the_models_name() -> None:
    assert model("openai:ft:gpt-x:acme::7", base_url="http://127.0.0.1:1/v1").name == "ft:gpt-x:acme::7"


async def test_options_are_the_clients_own_and_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_transcript(ANSWER, headers={"content-type": "application/json"}) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
        async with model("openai:gpt-x", options={"seed": 7}) as client:
            response = await client.generate(ModelRequest(messages=[UserMessage("Hi")]))
    assert response.message.text == "Hello"
    assert server.requests[0].headers["authorization"] == "Bearer from the environment"
    assert (server.requests[0].json["model"], server.requests[0].json["seed"]) == ("gpt-x", 7)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("opnai:gpt-x", "unknown provider 'opnai'; did you mean 'openai'?"),
        ("antropic:claude", "did you mean 'anthropic'?"),
        ("zzz:x", "known: 'openai', 'openai-responses', 'anthropic', 'gemini'"),
        ("gpt-x", 'write "provider:name of the model"'),
        ("", "unknown provider ''"),
        ("openai:", "names a provider and no model; write 'openai:name of the model'"),
        ("openai: ", "names a provider and no model"),
    ],
)
def test_a_name_that_is_none_is_refused_with_what_would_be_one(name: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model(name)
    assert told in str(caught.value)


async def test_a_node_and_an_agent_take_a_name_in_place_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_transcript(ANSWER, headers={"content-type": "application/json"}) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        agent = ReactAgent("clerk", "openai:gpt-x", stream=False)
        assert (await agent.run("Hi")).text == "Hello"
        assert repr(agent) == "<ReactAgent clerk gpt-x tools=[]>"
        assert isinstance(agent.llm.model, OpenAIChat)
        await agent.llm.model.aclose()
    node = LlmNode("openai:gpt-x")
    assert isinstance(node.model, OpenAIChat)


def test_a_wrong_name_is_refused_where_it_is_given() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gemini'"):
        LlmNode("gemni:x")
    with pytest.raises(ConfigError, match="did you mean 'gemini'"):
        ReactAgent("clerk", "gemni:x")


def test_a_model_of_ones_own_may_say_who_provides_it() -> None:
    class Own(FunctionModel):
        provider = "mistral_ai"

    assert provider_of(Own(lambda _: "Hi")) == "mistral_ai"
    assert provider_of(FunctionModel(lambda _: "Hi")) == "functionmodel"


def test_naming_one_provider_loads_no_other() -> None:
    code = """
import sys
from agentgraph.models import model
model("openai:gpt-x")
print([m for m in ("anthropic", "gemini", "openai_responses", "rate_limit") if f"agentgraph.models.{m}" in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"
