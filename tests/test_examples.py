"""The examples run as their READMEs say, each process by itself."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def approval(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "examples.approval.main", "--folder", str(folder), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(
    ("decision", "paid"),
    [
        (["approve"], ["500 to Ann", "20 to Bob"]),
        (["reject", "too", "much"], ["20 to Bob"]),
        (["edit", "Ann", "50"], ["50 to Ann", "20 to Bob"]),
    ],
)
def test_a_second_process_answers_what_the_first_one_asked(
    tmp_path: Path, decision: list[str], paid: list[str]
) -> None:
    asked = approval(tmp_path, "ask")
    payments = tmp_path / "payments.txt"
    assert "The run is interrupted.\nMay I pay {'to': 'Ann', 'amount': 500}?" in asked
    assert not payments.exists()
    assert "The run is done." in approval(tmp_path, "answer", *decision)
    assert sorted(payments.read_text().splitlines()) == sorted(paid)


def test_where_nothing_waits_the_second_process_says_so(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        approval(tmp_path, "answer", "approve")
    assert "Nothing waits for an answer" in caught.value.stdout
