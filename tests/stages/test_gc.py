"""`lego gc`: what recorded experts it takes away; images and containers are tests/images' and tests/sandbox's."""

from __future__ import annotations

import json

import numpy as np

from lego.rundb import catalogue, rounds, routing, trials
from lego.rundb.catalogue import TaskEntry
from lego.rundb.store import Store
from stages import cli, gc


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
