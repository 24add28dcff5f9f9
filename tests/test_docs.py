"""Every Python block of README and docs runs, block after block of a page in one namespace, as its reader would."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from agentgraph.testing import no_real_models, serve_transcript

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SSE = ROOT / "tests" / "sse"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server, in a thread of its own, that answers as a real one did: two tool calls, then text."""
    started = threading.Event()
    addresses: list[str] = []
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        answers = (SSE / "llamacpp-tool-calls-two.sse", SSE / "llamacpp-after-tool.sse")
        async with serve_transcript(*answers) as server:
            addresses.append(server.base_url)
            started.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(10)
    monkeypatch.setenv("OPENAI_BASE_URL", addresses[0])
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    yield
    loop.call_soon_threadsafe(over.set)
    thread.join(10)
    loop.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("provider")
def test_every_block_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    document = Sybil([PythonCodeBlockParser()]).parse(page)
    with no_real_models():
        for example in document.examples():
            example.evaluate()


def test_pages_have_blocks() -> None:
    blocks = sum(page.read_text(encoding="utf-8").count("```python") for page in PAGES)
    assert blocks >= 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    import re

    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [t for t in targets if not (page.parent / t).exists()] == []
