"""What tests of agents need: models that do as told, a real HTTP server, a clock that jumps, the rules of a store."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from agentgraph.models import guard
from agentgraph.models.guard import RealModelRefusedError
from agentgraph.testing.checkpointer_suite import CheckpointerSuite
from agentgraph.testing.clock import JumpingLoop, TasksLeftError, run_with_clock, with_clock
from agentgraph.testing.scripted import FunctionModel, ScriptedModel, ScriptError
from agentgraph.testing.store_suite import StoreSuite
from agentgraph.testing.strict import check_request
from agentgraph.testing.transcript import (
    RecordedRequest,
    Transcript,
    TranscriptServer,
    serve_transcript,
)

__all__ = [
    "CheckpointerSuite",
    "FunctionModel",
    "JumpingLoop",
    "RealModelRefusedError",
    "RecordedRequest",
    "ScriptError",
    "ScriptedModel",
    "StoreSuite",
    "TasksLeftError",
    "Transcript",
    "TranscriptServer",
    "check_request",
    "no_real_models",
    "run_with_clock",
    "serve_transcript",
    "with_clock",
]


@contextmanager
def no_real_models() -> Generator[None]:
    """Inside the block every model request that would leave this machine raises `RealModelRefusedError`.

    Holds for the whole process, threads and running tasks included; blocks may be nested. As a fixture::

        @pytest.fixture(autouse=True, scope="session")
        def no_requests():
            with no_real_models():
                yield
    """
    guard.refuse()
    try:
        yield
    finally:
        guard.allow()
