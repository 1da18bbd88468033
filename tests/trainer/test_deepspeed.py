"""DeepSpeed against plain torch: five steps on the same recorded segments, what each says of itself, then what is on
disk. ZeRO 2 in two processes by default; every mode with `make test-deepspeed`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lego.config.schema import DeepSpeedSection, GateSection, OptimizerSection, TrainSection
from lego.errors import ConfigError
from lego.trainer.launch import put_segments
from lego.trainer.optimizer import pace
from lego.trainer.step import Trainer
from tests.conftest import missing
from tests.trainer._sampled import sample, section
from tests.trainer.test_routing import CONFIGS

ALL = "deepspeed" in os.environ.get("LEGO_REQUIRE", "").split(",")
MODES = [(2, 2, "none")] + ALL * [
    (0, 1, "none"), (0, 2, "none"), (1, 1, "none"), (1, 2, "none"), (2, 1, "none"), (3, 1, "none"), (3, 2, "none"),
    (1, 1, "optimizer"), (1, 2, "optimizer"), (2, 1, "optimizer"), (2, 2, "optimizer"),
    (3, 1, "optimizer"), (3, 2, "optimizer"), (3, 1, "all"), (3, 2, "all"),
]  # fmt: skip


def require(offload: str = "none") -> None:
    """Skip, or fail where it is required, without DeepSpeed or what it builds its optimizer for offloading with."""
    if find_spec("deepspeed") is None:
        missing("deepspeed", "it is not installed")
    if offload != "none" and which("g++") is None:
        missing("g++", "DeepSpeed builds its optimizer for offloading with it")


def wide(**changes) -> TrainSection:
    # 40 tokens a micro-batch: several, and not as many for each process.
    return section(gate=GateSection(99.0, 1e9, -1.0), micro_batch_tokens=40, **changes)


def other(**changes) -> TrainSection:
    """What `wide` leaves alone: several mini-batches a step, weight decay that shows, and no clipping."""
    made = wide(minibatches=2, **changes)
    made.micro_batch_tokens = 20  # a segment each
    made.optimizer.weight_decay, made.optimizer.max_grad_norm = 0.3, 0.0
    return made


@pytest.fixture(scope="module")
def plain(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five and ten steps by torch alone, as folders `5` and `10`."""
    folder = tmp_path_factory.mktemp("plain")
    take_plain_steps(folder, tiny_policy, wide(), ("5", "10"))
    return folder


def take_plain_steps(folder: Path, policy: Path, how: TrainSection, kept: tuple[str, ...]) -> None:
    """Leave `segments.pt` and, after every five steps, the policy by the next name of `kept` in `folder`, with what the
    steps said of themselves in `reports.json` beside it."""
    trainer = Trainer(policy, how, seed=3)
    segments = sample(policy)
    put_segments(folder / "segments.pt", segments)
    for name in kept:
        reports = [asdict(trainer.step(segments)) for _ in range(5)]
        trainer.save(folder / name)
        (folder / name / "reports.json").write_text(json.dumps(reports))


def same_steps(one: Path, gang: Path) -> None:
    """Whether each of five steps had the loss and the gradient of plain torch's: AdamW and clipping would hide a wrong
    scale of it."""
    want, got = (json.loads((folder / "reports.json").read_text()) for folder in (one, gang))
    assert len(want) == len(got) == 5
    for a, b in zip(want, got, strict=True):
        assert a["refused"] is b["refused"] is None
        assert set(a["metrics"]) == set(b["metrics"])
        for name in ("step/loss", "step/grad_norm", "step/lr"):
            assert b["metrics"][name] == pytest.approx(a["metrics"][name], rel=1e-4, abs=1e-6), name


def furthest(one: Path, other: Path) -> float:
    """The largest difference of a parameter of two folders, which must have the same names."""
    want, got = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert set(got) == set(want)
    return max(float((got[name] - value).abs().max()) for name, value in want.items())


def run_gang(
    folder: Path, policy: Path, segments: Path, zero: int, processes: int, offload: str, how: Any = wide
) -> Path:
    folder.mkdir()
    (folder / "segments.pt").write_bytes(segments.read_bytes())
    changed = how(backend="deepspeed", deepspeed=DeepSpeedSection(zero, offload, processes))
    plan = {"policy": str(policy), "section": asdict(changed), "reference": None, "dtype": "float32", "steps": 5}
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [*command, "-m", "tests.trainer._gang", str(folder)],
        cwd=Path(__file__).parents[2], env={**os.environ, "DS_ACCELERATOR": "cpu"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    if zero == 3:
        for rank in range(processes):
            assert json.loads((folder / f"whole-{rank}.json").read_text()) == []
    return folder / "policy"


@pytest.mark.parametrize(("zero", "processes", "offload"), MODES)
def test_five_steps_are_plain_torch_s_and_so_are_five_more(tiny_policy, plain, tmp_path, zero, processes, offload):
    """The second five start from what the first five left on disk: moments and step count go on."""
    require(offload)
    policy = tiny_policy
    for steps in ("5", "10"):
        policy = run_gang(tmp_path / steps, policy, plain / "segments.pt", zero, processes, offload)
        worst = furthest(plain / steps, policy)
        print(f"ZeRO {zero}, {processes} processes, offload {offload}, {steps} steps: {worst:.1e}")
        assert worst <= 1e-5
        same_steps(plain / steps, policy.parent)
        kept = torch.load(policy / "optimizer.pt", weights_only=True)
        assert kept["steps"] == int(steps) and float(kept["adam"][0]["step"]) == int(steps)
    resumed = Trainer(policy, wide(), seed=3)  # plain torch goes on from there
    assert resumed.optimizer.steps == 10


@pytest.mark.parametrize(
    ("zero", "processes"), [(2, 2)] + ALL * [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (3, 1), (3, 2)]
)
def test_mini_batches_weight_decay_and_no_clipping_are_plain_torch_s_too(tiny_policy, tmp_path, zero, processes):
    require()
    take_plain_steps(tmp_path, tiny_policy, other(), ("5",))
    policy = run_gang(tmp_path / "gang", tiny_policy, tmp_path / "segments.pt", zero, processes, "none", other)
    worst = furthest(tmp_path / "5", policy)
    print(f"ZeRO {zero}, {processes} processes, two mini-batches, decay, no clipping, 5 steps: {worst:.1e}")
    # ZeRO 3 rounds in another order: six elements of a matrix of 49,152, of next to no gradient, part within ten steps.
    assert worst <= (1e-4 if zero == 3 else 1e-5)
    same_steps(tmp_path / "5", policy.parent)


@pytest.mark.skipif(not ALL, reason="takes a minute: make test-deepspeed runs it")
@pytest.mark.parametrize("name", CONFIGS)
def test_mixtures_and_linear_attention_divided_take_plain_torch_s_steps_and_keep_their_names(tmp_path, name):
    """Their weights are used in ways of their own: experts as one tensor, a convolution's from outside of it."""
    require()
    policy = tmp_path / "tiny"
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(CONFIGS[name]).save_pretrained(policy)
    take_plain_steps(tmp_path, policy, wide(), ("5",))
    worst = furthest(tmp_path / "5", run_gang(tmp_path / "gang", policy, tmp_path / "segments.pt", 3, 2, "none"))
    print(f"{name}, ZeRO 3, 2 processes, 5 steps: {worst:.1e}")
    assert worst <= 1e-5
    same_steps(tmp_path / "5", tmp_path / "gang")


def test_another_learning_rate_takes_effect_on_resume(plain, tiny_policy):
    changed = wide()
    changed.optimizer.lr = 7e-4
    report = Trainer(plain / "5", changed, seed=3).step(sample(tiny_policy))
    assert report.metrics["step/lr"] == 7e-4


def test_the_schedule_falls_from_the_warm_up_to_its_floor_and_stays():
    linear = OptimizerSection(warmup=4, schedule="linear", horizon=12, floor=0.25)
    shares = [pace(linear, steps) for steps in range(20)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[7] == pytest.approx(1 - 0.75 * 4 / 8)
    assert shares[11:] == [0.25] * 9
    assert pace(linear, 1, before=8) == pytest.approx(0.5 * shares[9])  # a second optimizer's warm-up on the way down
    assert pace(linear, 9, before=8) == 0.25
    cosine = OptimizerSection(schedule="cosine", horizon=10, floor=0.0)
    assert pace(cosine, 4) == pytest.approx(0.5)
    assert pace(cosine, 10**6) == 0.0


def test_a_schedule_without_its_end_is_refused(tmp_path):
    from lego.config.load import load

    config = tmp_path / "run.yaml"
    config.write_text("run: {name: x}\npolicy: {model: tiny}\n")
    with pytest.raises(ConfigError, match="horizon"):
        load(config, ["train.optimizer.schedule=cosine"])


def test_the_config_for_35b_takes_a_step_on_a_tiny_policy_of_its_class(tmp_path):
    """configs/qwen3.5-35b.yaml as it stands, but for the size of the policy, the number of processes, and offloading:
    ZeRO 3, a divided reference, GSPO with its corrections, layers computed again, bfloat16, its own gate."""
    from lego.config.load import load
    from lego.trainer.launch import GangTrainer, Setting

    require()
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(CONFIGS["qwen3.5-moe"]).save_pretrained(tmp_path / "tiny")
    overrides = ["train.deepspeed.processes=2", "train.deepspeed.offload=none", "engine.device=cpu"]
    config = load(Path(__file__).parents[2] / "configs" / "qwen3.5-35b.yaml", overrides).config
    assert config.train.objective.name == "gspo" and config.train.optimizer.lr == 1e-6
    tiny = str(tmp_path / "tiny")
    longest = config.rollout.max_total_tokens
    setting = Setting(tiny, config.rollout.temperature, 0, config.engine.dtype, 1, longest, tiny)
    trainer = GangTrainer(setting, config.train, tmp_path / "job")
    report = trainer.step(sample(tmp_path / "tiny"))
    assert report.refused is None, report
    assert report.metrics["moe/coverage"] == 0.0
    assert report.metrics["step/grad_norm"] > 0
    assert "kl/reference" in report.metrics
    trainer.save(tmp_path / "1", notes={"step": 1})
    assert 0 < furthest(tmp_path / "tiny", tmp_path / "1") < 2e-6
