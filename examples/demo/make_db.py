"""Make atlas.db anew from atlas.sql."""

import sqlite3
from contextlib import closing
from pathlib import Path

here = Path(__file__).parent
(here / "atlas.db").unlink(missing_ok=True)
with closing(sqlite3.connect(here / "atlas.db")) as db:
    db.execute("PRAGMA page_size = 1024")
    db.executescript((here / "atlas.sql").read_text())
