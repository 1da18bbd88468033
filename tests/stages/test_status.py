"""`lego status` of a step that was refused."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from safetensors.torch import load_file, save_file

from lego.errors import GateError
from lego.monitor.run_lines import run_lines
from lego.rundb import catalogue, rounds, training
from lego.rundb.store import Store
from lego.trainer.advance import train_round
from lego.trajectory.tokenizer import load_tokenizer
from stages.status import gather, lines
from tests._tiny import tiny_policy
from tests.trainer.test_killed import config, played

__all__ = ["tiny_policy"]


@pytest.mark.parametrize(("weight", "train"), [(float("nan"), "not finite"), (1.0, "-")], ids=["not finite", "apart"])
def test_a_refused_step_is_told_with_its_worst_tokens_as_text(tiny_policy, tmp_path, weight, train):
    """The weights change behind the engine's back; a token it sampled is then as good as any."""
    folder = tmp_path / "start"
    shutil.copytree(tiny_policy, folder)
    store = played(tmp_path, folder)
    moved = load_file(folder / "model.safetensors")
    moved["model.norm.weight"][:] = weight
    moved["model.norm.weight"][::2] *= -3
    save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
    round_ = rounds.latest(store, "train")
    assert round_
    with pytest.raises(GateError, match="refused"):
        asyncio.run(train_round(store, round_, config(0), tmp_path / "policies", lambda done, total: None))

    worst = training.steps(store)[0]["worst"][0]
    text = load_tokenizer(folder).decode([worst["token"]])
    assert worst["text"] == text != ""
    told = [line.strip() for line in lines("x", gather(store), 1) if "in training" in line]
    assert len(told) == 5 and told[0].startswith(f'trial {worst["trial_id"]} token {worst["token"]} "')
    assert f"log p {train}" in told[0] and f"{worst['logp_engine']:.4f} when sampled" in told[0]
    assert [line.text for line in run_lines(store) if "in training" in line.text] == told
    store.close()


def test_what_a_policy_wrote_cannot_steer_the_terminal_and_old_rows_have_no_text(tmp_path):
    store = Store.open(tmp_path / "run.db")
    policy = catalogue.add_policy(store, parent=None, path="p", digest="d", made_by="start")
    round_ = rounds.open_round(
        store, "train", ordinal=1, policy_version=policy.version, tasks=[], samples=1, settings={}
    )
    step = training.begin_step(store, round_id=round_.id, kind="rl", policy_from=0, samples=[])
    gap = {"trial_id": 1, "segment": 0, "position": 4, "token": 7, "logp_train": None, "logp_engine": -0.5}
    worst = [gap | {"text": "\x1b[2J\n\u202e"}, gap]
    training.end_step(store, step, status="refused", reason="r", policy_to=None, metrics={}, worst=worst)
    for told in (lines("x", gather(store), 1), [line.text for line in run_lines(store)]):
        first, second = (line.strip() for line in told if "in training" in line)
        assert first == 'trial 1 token 7 "\\u001b[2J\\n\ufffd" at 4: log p not finite in training, -0.5000 when sampled'
        assert second.startswith("trial 1 token 7 at 4:")
    store.close()
