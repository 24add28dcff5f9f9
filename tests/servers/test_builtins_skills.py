"""Skills, with a small real model behind llama.cpp's server. What the model says is not looked at."""

from pathlib import Path
from typing import Any

import msgspec

from agentgraph.messages import ToolResponseMessage
from agentgraph.models import OpenAIChat
from agentgraph.nodes import LlmRequest, ModelCall, ReactAgent
from agentgraph.nodes.hooks import Skills


async def test_a_server_is_told_of_the_skills_and_a_model_loads_one(llm: str, tmp_path: Path) -> None:
    (tmp_path / "capitals").mkdir()
    (tmp_path / "capitals" / "SKILL.md").write_text(
        "---\nname: capitals\ndescription: Use it for questions about capitals.\n---\nThe capital of Norway is Oslo.\n"
    )

    async def first_the_skill(request: LlmRequest, call: ModelCall):
        asked: dict[str, Any] = {"max_tokens": 60, "temperature": 0}
        if len(request.messages) == 1:
            asked["tool_choice"] = "required"
        else:
            asked["tools"] = []
        return await call(msgspec.structs.replace(request, options=asked))

    async with OpenAIChat("smollm2-135m", base_url=llm, api_key="none") as model:
        agent = ReactAgent("clerk", model, hooks=[Skills(tmp_path)], interceptors=[first_the_skill])
        result = await agent.run("Load the skill capitals, and say what the capital of Norway is.")
        bare = await ReactAgent("clerk", model, options={"max_tokens": 5}).run("Hi.")
    answers = [m for m in result.messages if isinstance(m, ToolResponseMessage)]
    assert len(answers) == 1
    assert {r.name for r in answers[0].responses} <= {"load_skill", "read_skill_file"}
    assert result.usage is not None
    assert bare.usage is not None
    assert (result.usage.input_tokens or 0) > (bare.usage.input_tokens or 0) + 100
