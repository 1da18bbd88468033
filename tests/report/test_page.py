"""The report: whole, honest, inert, and for machines too."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from lego.report.curves import Curve, Curves, Point, extent, labels, number
from lego.report.gather import as_data, gather
from lego.report.page import page
from lego.report.svg import chart
from lego.rundb import training, views
from lego.rundb.store import Store
from stages.cli import cli, run
from tests.run_fixture import a_run, begin, evaluate

VOID = {"meta"}


class Reader(HTMLParser):
    """Counts elements, collects text and attributes, and refuses elements that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def close(self) -> None:
        super().close()
        assert self._open == []


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return a_run(tmp_path)


def test_it_holds_everything_and_fetches_and_runs_nothing(store: Store) -> None:
    text = page(gather(store, "demo"))
    found = read(text)
    said = " ".join(found.text)
    for words in (
        "What looks wrong", "Curves", "Held-out evaluations", "Rounds", "Proof", "Task grid", "Config", "policy.model",
        "proof/correlation", "0.999900", "0.301 – 0.954", "no change that is more than chance",
        "off-by-one-0006", "1/3…", "1 attempts lost", "train 4",
    ):  # fmt: skip
        assert words in said, words
    assert not {"script", "link", "img", "iframe", "object", "b"} & found.seen.keys()
    assert not [value for name, value in found.attributes if name in ("src", "href") or name.startswith("on")]
    assert "://" not in text and "url(" not in text
    assert "&lt;script&gt;" in text and not {"\x1b", "\x07", "\u202e"} & set(text)


def test_every_point_is_a_recorded_one(store: Store) -> None:
    report = gather(store, "demo")
    curves = {curve.name: curve for curve in report.curves}
    for step in training.steps(store):
        for name, value in step["metrics"].items():
            ys = [point.y for point in curves[name].points if point.x == step["step"]]
            assert ys == ([] if value != value else [value])
    assert curves["step/loss"].left_out == 1
    assert read(page(report)).seen["circle"] == sum(len(curve.points) for curve in report.curves)


def test_a_line_joins_recorded_neighbours_only() -> None:
    points = tuple(Point(x, 0.5) for x in (1, 2, 4, 5, 9))
    picture = chart(Curve("m", "m", "step", points))
    assert picture.count('class="curve"') == 2 and picture.count("<circle") == 5
    assert picture.count('class="bar"') == 0
    assert "<circle" not in chart(Curve("m", "m", "step", (), left_out=3))


def test_a_single_point_and_a_flat_curve_can_be_drawn() -> None:
    for points in ((Point(3, 0.0),), (Point(1, 5.0), Point(2, 5.0))):
        low, high = extent(Curve("m", "m", "step", points))
        assert low <= points[0].y < high
        assert "nan" not in chart(Curve("m", "m", "step", points))


def test_values_that_differ_by_rounding_alone_are_drawn_flat() -> None:
    low, high = extent(Curve("m", "m", "step", (Point(1, 0.99999999994), Point(2, 0.99999999999))))
    assert high - low > 0.01
    assert extent(Curve("m", "m", "step", (Point(1, 0.9999), Point(2, 0.99999)))) == (0.9999, 0.99999)


def test_numbers_along_an_axis_differ_in_writing() -> None:
    assert labels([0.0, 0.25, 0.5]) == ["0", "0.25", "0.5"]
    assert labels([1000.01, 1000.02, 1000.03]) == ["1000.01", "1000.02", "1000.03"]
    assert labels([1.0, 1.0]) == ["1", "1"]
    assert labels([1.0e-4, 1.075e-4, 1.15e-4, 1.225e-4]) == ["1.00e-04", "1.07e-04", "1.15e-04", "1.22e-04"]
    assert "1000.01<" in chart(Curve("m", "m", "step", (Point(1, 1000.01), Point(2, 1000.03))))


def test_evaluations_done_otherwise_are_another_curve(tmp_path: Path) -> None:
    store = begin(tmp_path)
    evaluate(store, 1, 0, 1)
    evaluate(store, 2, 0, 2, {"temperature": 1.0, "history": "raw"})
    curves = Curves(store).all([views.counted(store, head) for head in views.round_heads(store)])
    assert [(curve.title, [point.y for point in curve.points]) for curve in curves] == [
        ("held out, greedy, template, 4 tasks", [0.25]),
        ("held out, T 1, raw, 4 tasks", [0.5]),
    ]


def test_numbers_are_short_and_keep_their_size() -> None:
    assert [number(value) for value in (0.0, 0.25, 1234.5, 12345.6, 3e-6, 2.5e7, -0.5)] == [
        "0", "0.25", "1234", "12,346", "3.0e-06", "2.5e+07", "-0.5",
    ]  # fmt: skip
    assert [number(value) for value in (0.999986, 0.9999999999, 1.0, 0.995)] == ["0.999986", "1", "1", "0.995"]


def test_an_empty_run_has_a_report(tmp_path: Path) -> None:
    found = read(page(gather(Store.open(tmp_path / "run.db"), "new")))
    assert "no round was opened yet" in " ".join(found.text)


def test_for_machines(store: Store) -> None:
    data = json.loads(json.dumps(as_data(gather(store, "demo"))))
    assert [round_["solved"] for round_ in data["rounds"]] == [1, 2, 4, 4, 3, 1]
    assert data["config"]["policy.model"] == "tiny"


@pytest.fixture
def config(tmp_path: Path) -> str:
    a_run(tmp_path).close()
    path = tmp_path / "run.yaml"
    path.write_text(f"run: {{name: demo, dir: {tmp_path}}}\npolicy: {{model: tiny}}\n", encoding="utf-8")
    return str(path)


def test_the_command_writes_the_file_and_says_where(config: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["report", "-c", config])
    assert result.exit_code == 0 and result.output.strip() == str(tmp_path / "demo" / "report.html")
    assert (tmp_path / "demo" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    result = CliRunner().invoke(cli, ["report", "-c", config, "--json"])
    assert json.loads(result.output)["name"] == "demo"


def test_a_place_that_cannot_be_written_is_said(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", "-c", config, "-o", str(tmp_path / "none" / "r.html")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_monitor_needs_a_terminal_and_a_run(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["monitor", "-c", config]) == 2
    assert "needs a terminal" in capsys.readouterr().err
    assert run(["monitor", "-c", config, "run.name=other"]) == 2
    assert "there is no run" in capsys.readouterr().err
