from __future__ import annotations

from dataclasses import replace

import pytest

from lego.probes.matrix import COLUMNS, Report, cells, markdown, must_hold, words
from lego.probes.proof import Captured

SOUND = Captured(
    calls=5, rejected={}, roots=2, forks=1, drifts=2, sampled=300, in_loss=280, excluded={"auxiliary": 20},
    retokenised=0,
    spliced=3, rerendered=1, superseded=0, longest=4000, finishes={"stop": 5}, gap=3e-6,
)  # fmt: skip
GOOD = Report("tiny-agent", "", "plain", "passed", SOUND)


def test_the_table_has_a_row_a_report_and_is_markdown() -> None:
    unbuilt = Report("codex", "0.171.0", "", failures=("the runtime image codex cannot be built: no disk",))
    head, rule, first, second = markdown([GOOD, unbuilt]).splitlines()
    assert [cell.strip() for cell in head.strip("| ").split(" | ")] == list(COLUMNS)
    assert set(rule) <= set("|-: ")
    assert len({len(line) for line in (head, rule, first, second)}) == 1
    assert dict(zip(COLUMNS, cells(GOOD), strict=True)) == {
        "harness": "tiny-agent", "version": "", "scenario": "plain", "solved": "yes", "calls": "5", "roots": "2",
        "forks": "1", "drift": "2", "sampled": "300", "in loss": "280", "left out": "20 auxiliary",
        "max Δ log p": "3.0e-06", "retokenised": "0", "spliced": "3", "rerendered": "1", "holds": "yes",
    }  # fmt: skip
    assert "codex" in second and "NO" in second and "–" in second


def test_a_report_for_a_reader_says_what_failed_and_where_to_look() -> None:
    bad = replace(GOOD, outcome="failed", failures=("not solved", "another"), log="/tmp/x.log")
    lines = words(bad)
    assert lines[0] == " ✗ tiny-agent · plain"
    assert lines[-3:] == ["     not solved", "     another", "     log: /tmp/x.log"]
    assert words(GOOD)[0] == " ✓ tiny-agent · plain" and not any("log:" in line for line in words(GOOD))


def test_as_json_it_says_whether_it_holds() -> None:
    said = GOOD.as_json()
    assert said["ok"] is True and said["captured"]["in_loss"] == 280
    assert replace(GOOD, failures=("x",)).as_json()["ok"] is False


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gap": float("nan")}, "differ by up to nan"),
        ({"gap": 2e-4}, "differ by up to 0.0002 nats, over 0.0001"),
        ({"retokenised": 1}, "1 tokens under the mask"),
        ({"in_loss": 279}, "300 tokens sampled, 279 in the loss; left out: 20 auxiliary"),
        ({"excluded": {"broken": 20}}, "left out: 20 broken"),
        ({"broken": ("call 3: odd",)}, "call 3: odd"),
    ],
)
def test_what_must_hold(change: dict[str, object], said: str) -> None:
    assert must_hold(SOUND, 1e-4) == []
    wrong = must_hold(replace(SOUND, **change), 1e-4)  # type: ignore[arg-type]
    assert len(wrong) == 1 and said in wrong[0]
