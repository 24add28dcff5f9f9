"""How the code reaches users: the root's links, what an import loads, what a wheel holds, what no file may say."""

import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def python(*arguments: str, cwd: Path = ROOT) -> str:
    """Run this interpreter, and return what it printed."""
    run = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def tracked() -> list[Path]:
    """The files that git tracks or would track, without links."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if run.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in run.stdout.split("\0") if name]
    return [file for file in files if file.is_file() and not file.is_symlink()]


@pytest.mark.parametrize("name", ["nodes", "strategies"])
def test_each_link_of_the_root_is_relative_and_leads_to_its_folder(name: str) -> None:
    link = ROOT / name
    if not link.is_symlink():  # a checkout without links: git then writes a file that holds the target
        assert not link.exists() or link.read_text() == f"agentgraph/{name}"
        return
    assert link.readlink() == Path("agentgraph", name)
    assert link.resolve() == ROOT / "agentgraph" / name


@pytest.mark.parametrize(
    "absent",
    [
        "httpx",
        "httpcore",
        "aiolimiter",
        "pydantic",
        "opentelemetry.sdk",
        "sqlite3",
        "agentgraph.nodes",
        "agentgraph.models",
        "agentgraph.testing",
    ],
)
def test_importing_the_engine_does_not_load(absent: str) -> None:
    told = python("-c", f"import agentgraph, sys; print([name for name in sys.modules if name.startswith({absent!r})])")
    assert told.strip() == "[]"


def test_every_public_name_of_a_package_exists() -> None:
    names = ["agentgraph", "agentgraph.messages", "agentgraph.events", "agentgraph.strategies"]
    names += ["agentgraph.models", "agentgraph.nodes", "agentgraph.testing"]
    code = f"""
from importlib import import_module
for module in map(import_module, {names}):
    for name in module.__all__:
        getattr(module, name)
"""
    python("-W", "error", "-c", code)


def test_the_entry_points_lead_to_nodes() -> None:
    found = {point.name: point.load() for point in entry_points(group="agentgraph.nodes")}
    assert {"llm", "tool"} <= set(found)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the files in a wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return archive.namelist()


def test_a_wheel_holds_nothing_at_its_top_but_the_package(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"agentgraph"}


def test_a_wheel_holds_all_the_code_and_its_types(wheel: list[str]) -> None:
    source = {str(file.relative_to(ROOT)) for file in (ROOT / "agentgraph").rglob("*.py")}
    assert source <= set(wheel)
    assert {"agentgraph/py.typed", "agentgraph/nodes/__init__.py", "agentgraph/strategies/__init__.py"} <= set(wheel)


def test_a_source_archive_builds_the_same_wheel(tmp_path: Path, wheel: list[str]) -> None:
    python("-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path))
    python("-m", "tarfile", "-e", str(next(tmp_path.glob("*.tar.gz"))), str(tmp_path))
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=folder)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        assert sorted(archive.namelist()) == sorted(wheel)


def test_no_file_names_an_index_or_a_folder_of_this_machine() -> None:
    forbidden = ["files." + "pythonhosted", "pypi" + ".org", "registry.npm" + "js", "/wo" + "rk/", "index-" + "url ="]
    found = [
        f"{file.relative_to(ROOT)}: {word}"
        for file in tracked()
        for word in forbidden
        if word in file.read_text(encoding="utf-8", errors="ignore")
    ]
    assert found == []


def test_what_is_installed_by_hash_names_no_place() -> None:
    for file in (ROOT / "requirements").glob("*.txt"):
        lines = file.read_text().splitlines()
        assert lines, file
        assert not [line for line in lines if "://" in line or line.startswith("-")], file
