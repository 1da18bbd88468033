"""`lego show` and `lego status` over a run that is there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lego.rundb import verdicts
from lego.rundb.store import Store
from lego.sandbox.layers import Entry
from lego.sandbox.submission import Submission
from stages import cli
from tests.run_fixture import a_run

Lego = Callable[..., tuple[int, str, str]]
TAMPERED, HOSTILE, SOLVED, LOST, UNVERIFIED = 33, 34, 35, 36, 37


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    (tmp_path / "lego.yaml").write_text("run: {name: demo, dir: .}\npolicy: {model: tiny}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEGO_CONFIG", raising=False)
    return a_run(tmp_path)


@pytest.fixture
def lego(run: Store, capsys: pytest.CaptureFixture[str]) -> Lego:
    def call(*args: str) -> tuple[int, str, str]:
        code = cli.run(args)
        return code, *capsys.readouterr()

    return call


def test_the_patch_alone_is_what_git_applies(run: Store, lego: Lego, tmp_path: Path) -> None:
    left = Submission(
        ("/app",),
        (
            Entry("/app/window.py", "file", data=b"def ok(n):\n    return n <= 3\n", existed=True),
            Entry("/app/odd\udcff.bin", "file", data=b"\0\xff"),
        ),
        (),
        (Entry("/app/window.py", "file", data=b"def ok(n):\n    return n < 3\n"),),
    )
    run.execute("UPDATE trials SET submission = ? WHERE id = ?", (left.to_bytes(), SOLVED))
    code, out, err = lego("show", str(SOLVED), "--patch")
    assert (code, err) == (0, "") and "-    return n < 3\n+    return n <= 3\n" in out
    (tmp_path / "app").mkdir()
    (tmp_path / "app/window.py").write_text("def ok(n):\n    return n < 3\n")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=out.encode(), check=True)
    assert (tmp_path / "app/window.py").read_text() == "def ok(n):\n    return n <= 3\n"
    assert (tmp_path / "app/odd\udcff.bin").read_bytes() == b"\0\xff"


def test_a_trial_without_a_submission_has_no_patch(lego: Lego) -> None:
    code, _, err = lego("show", str(LOST), "--patch")
    assert code == 2 and f"trial {LOST} left no submission" in err
    assert lego("show", str(SOLVED), "--patch", "--full")[0] == 2


def test_every_verdict_is_shown_with_its_evidence(run: Store, lego: Lego) -> None:
    verdicts.record(
        run, TAMPERED, reward=0.0, outcome="broken",
        detail={"reason": "the tests gave 1, but early exit", "rc": 0, "seen": {"rc": 0, "sessions": 1, "left": []},
                "noted": [{"kind": "looked for other history", "path": "", "detail": "turn 2: git log --all"}]},
        tamper=[{"kind": "early exit", "path": "", "detail": "1 of 1 runs of pytest never came to their end"}],
        trust="named", log=b"", seconds=1.0, leased=False,
    )  # fmt: skip
    code, out, _ = lego("show", str(TAMPERED), "--verdict")
    assert code == 0 and out.count("\nverdict ") + out.startswith("verdict ") == 2
    assert "⚠ protected path: tests/test_window.py edited" in out
    assert "⚠ early exit: 1 of 1 runs of pytest never came to their end" in out
    assert "noted       looked for other history: turn 2: git log --all" in out and "sessions 1" in out
    shown = json.loads(lego("show", str(TAMPERED), "--verdict", "--json")[1])
    assert [row["outcome"] for row in shown] == ["passed", "broken"]
    assert "early exit" in lego("show", str(TAMPERED))[1]
    assert "not verified yet" in lego("show", str(UNVERIFIED), "--verdict")[1]


def test_the_log_is_shown_whole(lego: Lego) -> None:
    code, out, _ = lego("show", str(SOLVED), "--log")
    assert code == 0 and "── test log ──\ntest log\n" in out and "harness says" in out


def test_a_task_is_shown_through_the_rounds(run: Store, lego: Lego) -> None:
    task = run.value("SELECT task_id FROM trials WHERE id = ?", (TAMPERED,))
    code, out, _ = lego("show", task)
    assert code == 0 and out.startswith(f"task {task} · ")
    last = out.strip().splitlines()[-1]
    assert "train 4" in last and "tampered 1" in last and "infra 1" in last and str(TAMPERED) in last
    history = json.loads(lego("show", task, "--json")[1])
    assert history[-1]["solved"] == 1 and history[-1]["trials"][:2] == [TAMPERED, HOSTILE]
    code, _, err = lego("show", "no-such-task")
    assert code == 2 and "nor a task of this run" in err


def test_a_file_name_that_is_no_text_can_be_stored_and_shown(run: Store, lego: Lego) -> None:
    verdicts.record(
        run, SOLVED, reward=1.0, outcome="passed", detail={}, trust="", log=b"", seconds=1.0, leased=False,
        tamper=[{"kind": "test hook", "path": "/app/\udcff/conftest.py", "detail": "added"}],
    )  # fmt: skip
    assert "test hook: /app/\N{REPLACEMENT CHARACTER}/conftest.py added" in lego("show", str(SOLVED))[1]
    shown = json.loads(lego("show", str(SOLVED), "--json")[1])
    assert shown["verdict"]["tamper"][0]["path"] == "/app/\udcff/conftest.py"


@pytest.mark.parametrize(("policy", "word"), [("exclude", "excluded"), ("penalise", "reward 0"), ("flag", "flagged")])
def test_status_names_what_was_tampered_with_and_what_becomes_of_it(lego: Lego, policy: str, word: str) -> None:
    code, out, _ = lego("status", f"verify.tamper={policy}")
    assert code == 0 and f"{word}: protected path (trial {TAMPERED})" in out
    assert json.loads(lego("status", "--json")[1])["rounds"][-1]["tampering"] == {"protected path": [TAMPERED]}
