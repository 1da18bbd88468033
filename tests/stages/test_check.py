from __future__ import annotations

from pathlib import Path

import click
import pytest

from lego.probes.matrix import Report
from stages import _check_harness, cli


@pytest.fixture
def lego(tmp_path, monkeypatch, capsys):
    """Runs a command line in an empty folder, with temporary folders in another, and returns (code, out, err)."""
    here, scratch = tmp_path / "here", tmp_path / "scratch"
    here.mkdir()
    scratch.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("LEGO_CONFIG", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    def run(*args: str) -> tuple[int, str, str]:
        code = cli.run(args)
        return code, *capsys.readouterr()

    run.scratch = scratch
    return run


@pytest.fixture
def came(monkeypatch):
    """What the checks of harnesses come to, in their place; `asked` is what they were asked for."""
    asked: dict[str, object] = {}

    def put(*reports: Report, error: BaseException | None = None) -> dict[str, object]:
        async def check(folder, config, harnesses, scenarios):
            asked.update(folder=folder, config=config, harnesses=harnesses, scenarios=scenarios)
            (folder / "a.log").write_text("what it printed")
            if error:
                raise error
            return list(reports)

        monkeypatch.setattr(_check_harness, "_check", check)
        monkeypatch.setattr("lego.probes.bench.make_policy", lambda folder, context: folder.mkdir())
        return asked

    return put


GOOD, BAD = Report("tiny-agent", "", "plain", "passed"), Report("codex", "1", "plain", failures=("odd",), log="x.log")


def test_without_a_config_a_run_is_made_up(lego, came):
    asked = came(GOOD)
    code, out, err = lego("check", "--harness", "tiny-agent", "policy.context=5000", "--scenario", "plain")
    assert code == 0 and "✓ tiny-agent" in out and "making a policy" in err
    assert (asked["harnesses"], asked["scenarios"]) == (["tiny-agent"], ("plain",))
    config = asked["config"]
    assert (config.policy.context, Path(config.policy.model).name, config.policy.renderer) == (5000, "policy", "qwen3")
    assert list(lego.scratch.iterdir()) == [], "all held: nothing is left"
    assert list(Path.cwd().iterdir()) == []


def test_a_config_lends_its_policy_and_begins_no_run(lego, came):
    asked = came(GOOD)
    assert lego("init")[0] == 0
    assert lego("check", "--harness", "tiny-agent")[0] == 0
    assert asked["config"].policy.renderer == "tiny-chatml"
    assert asked["scenarios"] == ("plain", "overflow", "rough")
    assert [path.name for path in Path.cwd().iterdir()] == ["lego.yaml"] and list(lego.scratch.iterdir()) == []


def test_all_harnesses_are_all_that_are_shipped(lego, came):
    asked = came(GOOD)
    assert lego("check", "--all-harnesses", "--harness", "codex")[0] == 0
    names = asked["harnesses"]
    assert len(names) == len(set(names)) and {"tiny-agent", "claude-code", "codex"} <= set(names)


def test_what_does_not_hold_ends_with_4_and_keeps_its_logs(lego, came):
    asked = came(GOOD, BAD)
    code, out, err = lego("check", "--all-harnesses", "--table")
    assert code == 4 and "1 of 2 checks" in err and str(asked["folder"]) in err
    assert out.splitlines()[0].startswith("| harness") and "odd" in out and "x.log" in out
    assert (asked["folder"] / "a.log").exists()


def test_for_machines(lego, came):
    import json

    came(GOOD, BAD)
    code, out, _ = lego("check", "--all-harnesses", "--json")
    assert code == 4 and [report["ok"] for report in json.loads(out)] == [True, False]


@pytest.mark.parametrize("error", [click.Abort(), KeyboardInterrupt()])
def test_an_interrupted_check_leaves_nothing(lego, came, error):
    came(error=error)
    assert lego("check", "--harness", "tiny-agent")[0] == 130
    assert list(lego.scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--harness", "claud-code"], "did you mean claude-code?"),
        (["--table"], "go with --harness"),
        (["--scenario", "plain"], "go with --harness"),
        ([], "no config given"),
    ],
)
def test_a_mistake_is_told_at_once(lego, args, said):
    code, out, err = lego("check", *args)
    assert code == 2 and out == "" and said in err
