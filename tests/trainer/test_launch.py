"""Workers as files and processes: what is handed over arrives, and what dies is told in one line."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from lego.config.schema import Config, DeepSpeedSection
from lego.errors import ConfigError, TrainerError
from lego.objective.losses import Mean
from lego.policy import PolicyRef
from lego.trainer import advance, launch
from lego.trainer.launch import GangTrainer, Setting, get_segments, put_segments
from lego.trainer.ranks import Alone, Gang
from tests.conftest import missing
from tests.trainer._sampled import sample, section


def test_segments_arrive_as_they_were(tiny_policy, tmp_path):
    given = sample(tiny_policy, trials=2)
    given[0] = replace(given[0], routing=np.zeros((len(given[0].ids), 2, 3), np.int16))
    put_segments(tmp_path / "segments.pt", given)
    for before, after in zip(given, get_segments(tmp_path / "segments.pt"), strict=True):
        for name, value in vars(before).items():
            other = getattr(after, name)
            if isinstance(value, np.ndarray):
                assert other.dtype == value.dtype and np.array_equal(other, value)
            else:
                assert other == value


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
@pytest.mark.parametrize("items", [0, 1, 4, 7])
def test_work_is_dealt_out_once_and_evenly(processes, items):
    hands = []
    for rank in range(processes):
        gang = object.__new__(Gang)
        gang.rank, gang.size, gang.first = rank, processes, rank == 0
        hands.append(gang.share(list(range(items))))
    assert len({len(hand) for hand in hands}) == 1
    assert sorted(item for hand in hands for item, counts in hand if counts) == list(range(items))


def test_one_process_keeps_everything():
    alone = Alone()
    assert alone.share("ab") == [("a", True), ("b", True)]
    assert alone.total({"x": Mean(1, 2)}) == {"x": Mean(1, 2)}


def _gang(tiny_policy, tmp_path, **changes) -> GangTrainer:
    if find_spec("deepspeed") is None:
        missing("deepspeed", "it is not installed")
    setting = Setting(str(tiny_policy), 1.0, 0, "float32", 1, 0, None)
    return GangTrainer(setting, section(deepspeed=DeepSpeedSection(processes=2, **changes)), tmp_path / "job")


def test_a_worker_that_is_killed_is_told_in_one_line(tiny_policy, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "WORKER", "tests.trainer._dies")
    with pytest.raises(TrainerError, match="training worker 1 was killed by signal 9") as caught:
        _gang(tiny_policy, tmp_path).step(sample(tiny_policy, trials=1))
    assert "memory" in caught.value.hint and "\n" not in str(caught.value)


def test_a_hostfile_that_is_not_there(tiny_policy, tmp_path):
    gang = _gang(tiny_policy, tmp_path)
    gang.section.deepspeed.hostfile = str(tmp_path / "hosts")
    with pytest.raises(ConfigError, match="hosts is not a file"):
        gang.step(sample(tiny_policy, trials=1))


def test_deepspeed_is_asked_for_where_it_lacks(tiny_policy, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="deepspeed is not installed"):
        GangTrainer(Setting(str(tiny_policy), 1.0, 0, "float32", 1, 0, None), section(), tmp_path / "job")


@pytest.mark.parametrize(
    ("wanted", "device", "processes"), [("auto", "cuda:1", 4), ("cuda", "cuda:1", 4), ("cpu", "cpu", 1)]
)
def test_workers_are_on_the_device_that_the_engine_is_told(tmp_path, monkeypatch, wanted, device, processes):
    """On a machine with four GPUs: the command's setting, how many processes, DeepSpeed's own choice, and theirs."""
    if find_spec("deepspeed") is None:
        missing("deepspeed", "it is not installed")
    from lego.trainer import deepspeed

    config = Config()
    config.engine.device = wanted
    assert advance._setting(PolicyRef(0, "p", "d"), config, 1, 1.0, None).device == wanted
    joined: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(deepspeed.deepspeed, "init_distributed", lambda backend, timeout: joined.append(backend))
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    words = launch.command(section(), tmp_path, wanted)
    assert words[words.index("--nproc-per-node") + 1] == str(processes)
    assert launch.environment(wanted).get("DS_ACCELERATOR") == ("cpu" if device == "cpu" else None)
    assert deepspeed.prepare(wanted, {"LOCAL_RANK": "1"}) == device
    assert joined == ["gloo" if device == "cpu" else "nccl"]


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    if find_spec("deepspeed") is None:
        missing("deepspeed", "it is not installed")
    from lego.trainer.deepspeed import prepare

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="engine.device: cuda, and torch finds none"):
        prepare("cuda")
