import io
import json

import click
from click.testing import CliRunner

from stages._common import config_options, print_json, progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_off_a_terminal_progress_is_a_line_now_and_then():
    out, clock = io.StringIO(), Clock()
    with progress("trials", 64, heading="round 4", stream=out, clock=clock) as bar:
        bar.update(1)
        clock.now = 11
        bar.advance(40, note="8 running", detail="61.2k sampled")
        bar.advance()
        bar.log("trial 7 lost its container")
        clock.now = 30
        bar.update(64)
    assert out.getvalue().splitlines() == [
        "round 4",
        "trials 41/64   8 running   61.2k sampled",
        "trial 7 lost its container",
        "trials 64/64",
    ]


def test_progress_of_unknown_length_counts():
    out = io.StringIO()
    with progress("images", stream=out, clock=Clock()) as bar:
        bar.advance(2)
    assert out.getvalue() == "images 2\n"


def test_passing_progress_leaves_nothing_behind_off_a_terminal():
    out, clock = io.StringIO(), Clock()
    with progress("images", stream=out, passing=True, clock=clock) as bar:
        bar.advance(2)
    assert out.getvalue() == ""
    with progress("images", stream=out, passing=True, clock=clock) as bar:
        clock.now = 11
        bar.advance(3)
    assert out.getvalue() == "images 3\n", "but a long wait is told of"


def test_a_total_learnt_later_is_shown():
    out = io.StringIO()
    with progress("images", stream=out, clock=Clock()) as bar:
        bar.update(1, total=3)
    assert out.getvalue() == "images 1/3\n"


def test_on_a_terminal_there_is_a_bar_and_lines_stay():
    out = Terminal()
    with progress("trials", 4, heading="round 4", stream=out) as bar:
        bar.advance(note="1 running", detail="12 sampled [not markup]")
        bar.update(4, total=4)
        bar.log("a line [that] stays")
    text = out.getvalue()
    assert "round 4" in text and "a line [that] stays" in text and "4/4" in text


def test_arguments_stand_before_overrides(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("run: {name: a}\npolicy: {model: m}\n")

    @click.command()
    @click.argument("trial", type=int)
    @config_options
    def show(trial, loaded, as_json):
        print_json([trial, loaded.config.run.seed, as_json])

    result = CliRunner().invoke(show, ["212", "run.seed=5", "--json", "-c", str(path), "run.seed=6"])
    assert result.exception is None
    assert json.loads(result.stdout) == [212, 6, True]
