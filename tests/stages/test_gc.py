"""`lego gc`: what recorded experts it takes away, and which images runs beside need; how images and containers go is
tests/images' and tests/sandbox's."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np

from lego.config.load import Loaded
from lego.rundb import catalogue, rounds, routing, trials, verdicts
from lego.rundb.catalogue import TaskEntry
from lego.rundb.store import Store
from stages import cli, gc
from tests.run_fixture import finish
from tests.rundb.conftest import fill


def test_experts_that_no_open_round_waits_for_are_removed(tmp_path, monkeypatch, capsys):
    """Of a round that a kill closed before they were dropped, of an evaluation, and of trials that no row knows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEGO_CONFIG", raising=False)
    monkeypatch.setattr(gc, "_store", lambda *_: {})  # podman's part
    (tmp_path / "lego.yaml").write_text("run: {name: demo, dir: .}\npolicy: {model: tiny}\n")
    (tmp_path / "demo").mkdir()
    store = Store.open(tmp_path / "demo/run.db")
    catalogue.register_tasks(store, [TaskEntry("a", "train", "a", "test", "", "")])
    catalogue.add_policy(store, parent=None, path="tiny", digest="d", made_by="start")
    of = {}
    for name, kind, ordinal in (("closed", "train", 1), ("open", "train", 2), ("eval", "eval", 1)):
        round_ = rounds.open_round(
            store, kind, ordinal=ordinal, policy_version=0, tasks=[("a", "h")], samples=1, settings={}
        )
        trial = trials.claim(store, round_.id)
        assert trial is not None
        of[name] = trial.id
        routing.put(store, trial.id, 1, 0, np.zeros((2, 1, 1), np.int16))
        if name == "closed":
            rounds.close_round(store, round_.id, "done")
    routing.put(store, 99, 1, 0, np.zeros((2, 1, 1), np.int16))
    store.close()
    gone = [f"trial {trial}" for trial in (of["closed"], of["eval"], 99)]
    for arguments in (["--dry-run"], []):
        assert cli.run(["gc", "--json", *arguments]) == 0
        assert json.loads(capsys.readouterr().out)["recorded experts"] == gone
    assert [path.name for path in (tmp_path / "demo/routing").iterdir()] == [str(of["open"])]


def test_images_stay_until_the_last_verdict(tmp_path: Path) -> None:
    loaded = cast(Loaded, SimpleNamespace(config=SimpleNamespace(run=SimpleNamespace(dir=str(tmp_path)))))
    store = Store.open(tmp_path / "beside" / "run.db")
    round_ = fill(store, tasks=1, samples=1)
    catalogue.record_image(
        store, key="k", kind="task", name="task-0", tag="localhost/t:1", status="built", log_path="", seconds=0.0,
        size=0, reason="",
    )  # fmt: skip

    def verified(outcome: str, leased: bool = True) -> None:
        verdicts.record(
            store, 1, reward=None, outcome=outcome, detail={}, tamper=[], trust="", log=b"", seconds=0.0, leased=leased
        )

    assert gc._needed_beside(loaded) == {"localhost/t:1"}, "a trial is to be run"
    trial = trials.claim(store, round_.id)
    assert trial and gc._needed_beside(loaded)
    finish(store, trial)
    assert gc._needed_beside(loaded), "it has no verdict"
    assert verdicts.claim(store, round_.id) and gc._needed_beside(loaded), "it is being verified"
    verified("error")
    assert gc._needed_beside(loaded), "it will be verified again"
    verified("failed", leased=False)
    assert gc._needed_beside(loaded) == set()
    store.execute("DELETE FROM verdicts")
    assert gc._needed_beside(loaded)
    rounds.close_round(store, round_.id, "given up")
    assert gc._needed_beside(loaded) == set(), "nobody will verify it any more"
