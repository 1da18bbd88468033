from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from lego.monitor.chart import BAR, DOT, bar, chart, spark
from lego.monitor.lines import Line, find, wrap
from lego.monitor.patch import patch_lines
from lego.monitor.trial_lines import trial_lines
from lego.report.curves import Curve, Point
from lego.sandbox.rootfs import Entry
from lego.sandbox.submission import Submission
from tests.run_fixture import HOSTILE, patch


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=300), st.integers(12, 60))
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    out = wrap([Line(text, "bad", "  │ ", mark=True)], width)
    assert all(cell_len(line.margin + line.text) <= width for line in out)
    assert "".join(line.text for line in out).replace(" ", "") == text.replace(" ", "")
    assert [line.mark for line in out] == [True] + [False] * (len(out) - 1)
    assert {line.look for line in out} == {"bad"}


def test_wrapping_breaks_at_a_space_and_hangs_under_its_margin() -> None:
    out = wrap([Line("the quick brown fox", margin="> ")], 14)
    assert [(line.margin, line.text) for line in out] == [("> ", "the quick "), ("  ", "brown fox")]


def test_search_goes_around_both_ways() -> None:
    lines = [Line("a"), Line("Bug"), Line("c"), Line("bug")]
    assert [find(lines, "bug", 0), find(lines, "bug", 1), find(lines, "bug", 3)] == [1, 3, 1]
    assert find(lines, "bug", 1, -1) == 3
    assert find(lines, "zebra", 0) is None and find([], "a", 0) is None


_points = st.lists(
    st.builds(Point, st.integers(0, 500), st.floats(-1e6, 1e6)),
    min_size=1,
    max_size=80,
    unique_by=lambda point: point.x,
)


@settings(deadline=None)
@given(_points, st.integers(24, 80), st.integers(5, 30))
def test_a_chart_has_a_dot_a_point_and_nothing_between(points: list[Point], width: int, height: int) -> None:
    curve = Curve("m", "m", "step", tuple(sorted(points, key=lambda point: point.x)))
    out = chart(curve, width, height)
    assert len(out) <= height and all(len(row) <= width for row in out)
    dots = sum(row.count(DOT) for row in out)
    assert dots <= len(points)
    if dots < len(points) and width >= 50:
        assert f"({len(points) - dots} share a column)" in out[-1]
    assert not any(BAR in row.split("┤", 1)[-1] for row in out)


def test_an_interval_is_drawn_from_its_low_to_its_high() -> None:
    curve = Curve("m", "m", "policy", (Point(0, 0.5, 0.25, 0.75),), rate=True)
    column = [row.split("┤")[1].strip() for row in chart(curve, 40, 11)[:-2]]
    assert column == ["", "", "┬", "│", "●", "│", "┴", "", ""]


def test_a_curve_without_a_finite_value_says_so() -> None:
    assert chart(Curve("m", "m", "step", (), left_out=2), 40, 10) == ["no finite value was recorded"]


def test_sparks_and_bars() -> None:
    assert spark([0.0, None, 1.0, 0.5], 3) == " █▅"
    assert [bar(0, 4, 4), bar(3, 4, 4), bar(4, 4, 4), bar(0, 0, 4)] == ["────", "━━━─", "━━━━", "────"]


def test_a_patch_is_a_diff_where_the_original_is_known() -> None:
    texts = [
        line.text for line in patch_lines(patch().to_bytes(), {"/app/window.py": b"def ok(n):\n    return n < 3\n"})
    ]
    assert "-    return n < 3" in texts and "+    return n <= 3" in texts
    assert "deleted   /app/old.py" in texts
    assert "added     /app/blob.bin (3 bytes, not shown)" in texts
    assert texts[-1] == "left out: /app/tests/test_window.py (modified; protected)"


def test_without_the_original_the_file_is_shown_whole() -> None:
    texts = [line.text for line in patch_lines(patch().to_bytes(), {})]
    assert texts[0].startswith("changed   /app/window.py (whole:") and "    return n <= 3" in texts
    assert "written   /app/blob.bin (3 bytes, not shown)" in texts


def test_a_patch_of_nothing_of_links_and_of_rubbish() -> None:
    assert [line.text for line in patch_lines(Submission(("/app",)).to_bytes(), {})] == ["nothing was changed"]
    link = Submission(("/app",), (Entry("/app/\x1b[2Jlink", "link", data=b"/etc\x07"),))
    assert [line.text for line in patch_lines(link.to_bytes(), {})] == ["written   /app/�[2Jlink (link to /etc�)"]
    assert "cannot be read" in patch_lines(b"rubbish", {})[0].text


def test_everything_a_model_or_a_tool_wrote_is_neutral() -> None:
    turn = {
        "seq": 2, "parent": 1, "kind": "main", "fate": "superseded", "finish": HOSTILE, "status": 200, "reason": "",
        "prompt_tokens": 1, "sampled_tokens": 1, "mean_logprob": None, "drift": {"foreign": HOSTILE},
        "new_messages": [{"role": HOSTILE, "content": HOSTILE}],
        "reply": {"reasoning": HOSTILE, "content": HOSTILE, "tool_calls": [{"name": HOSTILE, "arguments": HOSTILE}]},
    }  # fmt: skip
    refused = {**turn, "kind": "rejected", "reason": HOSTILE}
    report = {
        "status": "finished", "attempt": 1, "harness": HOSTILE, "sample": 0, "fault": None,
        "ending": HOSTILE, "reason": HOSTILE, "exit_code": 1,
        "seconds": None, "waited": None, "turns": [turn, refused], "output": HOSTILE, "log": HOSTILE,
        "verdict": {
            "outcome": "failed", "reward": None, "trust": HOSTILE, "detail": {"reason": HOSTILE},
            "tamper": [{"kind": HOSTILE, "path": HOSTILE, "detail": HOSTILE}],
        },
        "samples": [{"step": 1, "segment": 0, "dropped": HOSTILE}],
    }  # fmt: skip
    text = "".join(line.margin + line.text for line in trial_lines(report, [], full=True, logs=True))
    assert text.count("�[31mred") >= 15
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
