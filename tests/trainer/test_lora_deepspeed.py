"""Adapters in processes of their own, against plain torch: `make test-deepspeed`."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file

from lego.config.schema import DeepSpeedSection, GateSection, LoraSection, ObjectiveSection
from lego.engine.adapter import base_of
from lego.errors import TrainerError
from lego.trainer.launch import GangTrainer, Setting
from lego.trainer.step import Trainer
from tests.conftest import missing
from tests.trainer._sampled import sample, section

pytestmark = pytest.mark.skipif(
    "deepspeed" not in os.environ.get("LEGO_REQUIRE", "").split(","), reason="minutes: make test-deepspeed"
)
MODES = [
    (2, 2, "merged"), (0, 2, "merged"), (1, 2, "merged"), (2, 1, "adapter"), (3, 1, "merged"), (3, 2, "merged"),
    (3, 2, "adapter"),
]  # fmt: skip


def wide(export: str, **changes):
    return section(
        gate=GateSection(9.0, 9.0, -1.0), micro_batch_tokens=40, objective=ObjectiveSection(kl=0.1),
        lora=LoraSection(rank=4, alpha=8.0, export=export), **changes,
    )  # fmt: skip


def gang(policy, reference, export, folder, zero, processes):
    if find_spec("deepspeed") is None:
        missing("deepspeed", "it is not installed")
    setting = Setting(str(policy), 1.0, 3, "float32", 1, 0, str(reference))
    return GangTrainer(setting, wide(export, deepspeed=DeepSpeedSection(zero, "none", processes)), folder)


@pytest.mark.parametrize(("zero", "processes", "export"), MODES)
def test_two_steps_are_plain_torch_s(tiny_policy, tmp_path, zero, processes, export):
    """The second takes up the adapter and its moments; both are held near the base, which is the adapter off."""
    segments = sample(tiny_policy)
    plain = gangs = tiny_policy
    for step in ("1", "2"):
        trainer = Trainer(plain, wide(export), seed=3, reference_dir=tiny_policy)
        wanted = trainer.step(segments)
        plain = tmp_path / "plain" / step
        trainer.save(plain)
        workers = gang(gangs, tiny_policy, export, tmp_path / "job", zero, processes)
        report = workers.step(segments)
        assert report.refused is None, report
        for name in ("kl/reference", "step/loss", "step/grad_norm"):
            assert report.metrics[name] == pytest.approx(wanted.metrics[name], rel=1e-4, abs=1e-7)
        gangs = tmp_path / "gangs" / step
        workers.save(gangs)
        assert {p.relative_to(gangs) for p in gangs.rglob("*")} == {p.relative_to(plain) for p in plain.rglob("*")}
        assert base_of(gangs) == base_of(plain)
        for file in ["adapter/adapter_model.safetensors"] + ["model.safetensors"] * (export == "merged"):
            one, other = load_file(plain / file), load_file(gangs / file)
            assert set(one) == set(other)
            for name, value in one.items():
                torch.testing.assert_close(other[name], value, rtol=0, atol=1e-5)
    kept = torch.load(gangs / "optimizer.pt", weights_only=True)
    assert kept["steps"] == 2 and all(".lora_" in name for name in kept["parameters"])


def test_a_bad_target_is_told_by_the_workers_in_one_line(tiny_policy, tmp_path):
    workers = gang(tiny_policy, tiny_policy, "merged", tmp_path / "job", 2, 1)
    workers.section.lora = replace(workers.section.lora, targets=["q_prj"])
    with pytest.raises(TrainerError, match="train.lora.targets.*did you mean q_proj") as caught:
        workers.step(sample(tiny_policy, trials=1))
    assert "\n" not in str(caught.value) and caught.value.fault == "user"
