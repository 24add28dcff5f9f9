"""A Postgres server for the time of a measurement, in a temporary folder."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg

SECONDS = 30
# whatever this process dies of, its end of the pipe is closed then
UNTIL_CLOSED = '"$@" & read _; kill -s QUIT $!; wait'


def binaries() -> Path | None:
    """The folder of the newest server that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("postgres")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@contextmanager
def server(programs: Path) -> Generator[str]:
    """Run a server with its default settings; yields its address, which takes a database's name."""
    home = Path(tempfile.mkdtemp(prefix="agentgraph-bench-"))
    user = "postgres" if os.getuid() == 0 else None  # Postgres refuses to run as root
    if user is not None:
        os.chown(home, pwd.getpwnam(user).pw_uid, -1)
    make = [programs / "initdb", "-D", home / "data", "-U", "postgres", "-E", "UTF8", "--locale=C", "-A", "trust"]
    subprocess.run(make, user=user, cwd=home, check=True, capture_output=True)
    run = [
        programs / "postgres",
        "-D",
        home / "data",
        "-k",
        home,
        "-c",
        "listen_addresses=",
        "-c",
        "max_connections=50",
    ]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", UNTIL_CLOSED, "sh", *run],
            user=user,
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    address = f"postgresql:///{{}}?host={quote(str(home))}&user=postgres"
    try:
        _wait_started(address.format("postgres"), home / "log")
        yield address
    finally:
        process.communicate()
        shutil.rmtree(home, ignore_errors=True)


def _wait_started(address: str, log: Path) -> None:
    give_up = time.monotonic() + SECONDS
    while True:
        try:
            psycopg.connect(address).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > give_up:
                raise RuntimeError(f"Postgres does not start:\n{log.read_text()}") from None
            time.sleep(0.05)
