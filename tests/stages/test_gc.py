from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from lego.config.load import Loaded
from lego.rundb import catalogue, rounds, trials, verdicts
from lego.rundb.store import Store
from stages.gc import _needed_beside
from tests.run_fixture import finish
from tests.rundb.conftest import fill


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

    assert _needed_beside(loaded) == {"localhost/t:1"}, "a trial is to be run"
    trial = trials.claim(store, round_.id)
    assert trial and _needed_beside(loaded)
    finish(store, trial)
    assert _needed_beside(loaded), "it has no verdict"
    assert verdicts.claim(store, round_.id) and _needed_beside(loaded), "it is being verified"
    verified("error")
    assert _needed_beside(loaded), "it will be verified again"
    verified("failed", leased=False)
    assert _needed_beside(loaded) == set()
    store.execute("DELETE FROM verdicts")
    assert _needed_beside(loaded)
    rounds.close_round(store, round_.id, "given up")
    assert _needed_beside(loaded) == set(), "nobody will verify it any more"
