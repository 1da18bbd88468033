"""Which trials' recorded experts are kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lego.harness.spec import Calls
from lego.rollout import trial as module
from lego.rundb import routing
from lego.rundb.store import Store


@pytest.mark.parametrize(("kind", "kept"), [("train", [1]), ("eval", [])])
def test_only_what_will_be_trained_on_is_recorded(tmp_path, monkeypatch, kind, kept):
    """Of an evaluation nothing would take it away again."""
    recorded: list[Any] = []
    monkeypatch.setattr(module.calls, "record", lambda store, trial, row: recorded.append(row))
    store = Store.open(tmp_path / "run.db")
    clock: Any = None
    site: Any = SimpleNamespace(
        settings=SimpleNamespace(
            max_turns=1, max_output_tokens=1, context=1, max_total_tokens=1, temperature=1.0, history="raw"
        ),
        run=SimpleNamespace(store=store, config=SimpleNamespace(policy=SimpleNamespace(name="p"))),
        round=SimpleNamespace(kind=kind, policy_version=0), seed_of=lambda trial: 0, on_call=None,
    )  # fmt: skip
    spec: Any = SimpleNamespace(run=SimpleNamespace(argv=["x"]), calls=Calls())
    sealed: Any = SimpleNamespace(folder=tmp_path)
    trial: Any = SimpleNamespace(id=7)
    session = module._session_spec(trial, site, spec, clock, sealed)
    session.on_call(SimpleNamespace(seq=1, routing=np.zeros((2, 1, 1), np.int16), routing_begin=0))
    assert len(recorded) == 1 and list(routing.of_trial(store, 7)) == kept
    store.close()
