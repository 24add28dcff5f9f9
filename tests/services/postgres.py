"""A Postgres server of the tests' own: made in a temporary folder at its first use, and ended with this process.

    from tests.services.postgres import postgres, postgres_dsn  # fixtures

Tests that need it are skipped where there is no server to start (on Debian: apt install postgresql).
"""

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

__all__ = ["PASSWORD", "Postgres", "postgres", "postgres_dsn"]

PASSWORD = "not-for-your-eyes"  # noqa: S105  (tests look for it where it must not be)
SECONDS = 30
ABSENT = "there is no Postgres server to start here (on Debian: apt install postgresql)"

_numbers = itertools.count(1)


def find_binaries() -> Path | None:
    """The folder of the newest server that is installed."""
    on_path = shutil.which("postgres")
    found = [p.parent for p in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    found.sort(key=lambda path: float(path.parent.name))
    return found[-1] if found else Path(on_path).parent if on_path else None


class Postgres:
    """One server, with its files in a temporary folder, on a free port of loopback."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._home = Path(tempfile.mkdtemp(prefix="agentgraph-postgres-"))
        # Postgres refuses to run as root
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self._home, account.pw_uid, account.pw_gid)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._watcher: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self.dsn = f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.port}/postgres"
        self._make()

    def _make(self) -> None:
        secret = self._home / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        newest = float(self._binaries.parent.name) >= 15 if self._binaries.parent.name.isdigit() else False
        # an order of texts that is a language's, so that a query which forgets to ask for another one is found out
        language = ["--locale-provider=icu", "--icu-locale=en"] if newest else []
        made = subprocess.run(
            [
                self._binaries / "initdb",
                *("-D", self._home / "data", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"),
                *("-A", "scram-sha-256", f"--pwfile={secret}", *language),
            ],
            user=self._user,
            cwd=self._home,
            capture_output=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stderr.decode()}")

    def start(self) -> None:
        """Start it, and return when it takes connections."""
        with (self._home / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [
                    self._binaries / "postgres",
                    *("-D", self._home / "data", "-p", str(self.port), "-k", self._home),
                    *("-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"),
                    *("-c", "authentication_timeout=5s"),  # so long does its end wait for one who says nothing
                ],
                user=self._user,
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # a pipe is closed whatever this process dies of, kill -9 included
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", f"read _; kill -s QUIT {self._server.pid}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        give_up = time.monotonic() + SECONDS
        while True:
            try:
                psycopg.connect(self.dsn).close()
                return
            except psycopg.OperationalError:
                if self._server.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError("Postgres does not start:\n" + (self._home / "log").read_text()) from None
                time.sleep(0.02)

    def kill(self) -> None:
        """End it as a crash does, with recovery at the next start. From an event loop that has clients: in a thread."""
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait(SECONDS)
            self._server = None
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None

    def remove(self) -> None:
        """End it, and remove its files."""
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)


@functools.cache
def _the_server(binaries: Path) -> Postgres:
    server = Postgres(binaries)
    atexit.register(server.remove)
    server.start()
    return server


@pytest.fixture(scope="session")
def postgres() -> Postgres:
    """A server for all tests. One that kills it starts it again."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip(ABSENT)
    return _the_server(binaries)


@pytest.fixture
def postgres_dsn(postgres: Postgres) -> Iterator[str]:
    """Where a test has the server for itself: a schema of its own comes first on its search path."""
    schema = f"test_{next(_numbers)}_{os.getpid()}"
    with psycopg.connect(postgres.dsn, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {schema}")  # pyright: ignore[reportArgumentType, reportCallIssue]
    yield f"{postgres.dsn}?options=-csearch_path%3D{schema}"
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(postgres.dsn, autocommit=True) as db:
        db.execute(f"DROP SCHEMA {schema} CASCADE")  # pyright: ignore[reportArgumentType, reportCallIssue]
