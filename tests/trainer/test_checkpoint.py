import errno
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from lego.config.schema import GateSection
from lego.errors import TrainerError
from lego.trainer.checkpoint import laid_out, write_whole
from lego.trainer.step import Trainer
from tests.trainer._sampled import sample, section


def test_a_checkpoint_is_a_policy_with_its_tokenizer(tiny_policy, tmp_path):
    from transformers import AutoTokenizer

    trainer = Trainer(tiny_policy, section())
    trainer.step(sample(tiny_policy))
    trainer.save(tmp_path / "policies" / "1", notes={"version": 1, "parent": 0})
    folder = tmp_path / "policies" / "1"
    assert {"config.json", "model.safetensors", "tokenizer.json", "optimizer.pt", "trainer.json"} <= {
        f.name for f in folder.iterdir()
    }
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert json.loads((folder / name).read_text()).keys() == json.loads((tiny_policy / name).read_text()).keys()
    text = "while i <= n:\n"
    assert AutoTokenizer.from_pretrained(folder).encode(text) == AutoTokenizer.from_pretrained(tiny_policy).encode(text)
    notes = json.loads((folder / "trainer.json").read_text())
    assert (notes["version"], notes["optimizer_steps"], notes["train"]["objective"]["name"]) == (1, 1, "gspo")
    assert [f.name for f in folder.parent.iterdir()] == ["1"]
    again = Trainer(folder, section())
    for a, b in zip(trainer.policy.model.parameters(), again.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_without_optimizer_the_next_step_starts_fresh(tiny_policy, tmp_path):
    trainer = Trainer(tiny_policy, section())
    trainer.step(sample(tiny_policy))
    trainer.save(tmp_path / "start", optimizer=False)
    assert not (tmp_path / "start/optimizer.pt").exists()
    assert Trainer(tmp_path / "start", section()).optimizer.steps == 0


def test_a_new_optimizer_within_a_run_is_warmed_up_and_the_schedule_goes_on(tiny_policy, tmp_path):
    """As after `lego sft`, whose policy comes without the moments."""
    falling = section(gate=GateSection(99.0, 1e9, -1.0))
    falling.optimizer.schedule, falling.optimizer.horizon = "linear", 10
    falling.optimizer.warmup, falling.optimizer.floor = 2, 0.0
    segments = sample(tiny_policy)
    trainer = Trainer(tiny_policy, falling)
    rates = [trainer.step(segments).metrics["step/lr"] for _ in range(4)]
    trainer.save(tmp_path / "taught", optimizer=False)
    again = Trainer(tmp_path / "taught", falling)
    rates.append(again.step(segments).metrics["step/lr"])
    again.save(tmp_path / "5")
    resumed = Trainer(tmp_path / "5", falling)
    assert (resumed.optimizer.steps, resumed.optimizer.before) == (1, 4)
    rates.append(resumed.step(segments).metrics["step/lr"])
    assert rates == pytest.approx([1e-3 * share for share in (1 / 2, 1, 7 / 8, 6 / 8, 1 / 2 * 5 / 8, 4 / 8)])
    (tmp_path / "taught/trainer.json").write_text("{")
    with pytest.raises(TrainerError, match="trainer.json cannot be read"):
        Trainer(tmp_path / "taught", falling)


@pytest.mark.parametrize("damage", ["cut", "other", "shape"])
def test_damaged_or_foreign_optimizer_state_is_refused(tiny_policy, tmp_path, damage):
    trainer = Trainer(tiny_policy, section())
    trainer.step(sample(tiny_policy))
    trainer.save(tmp_path / "p")
    state = tmp_path / "p/optimizer.pt"
    if damage == "cut":
        state.write_bytes(state.read_bytes()[:100])
    elif damage == "shape":
        kept = torch.load(state, weights_only=True)
        kept["adam"][1]["exp_avg"] = kept["adam"][1]["exp_avg"][:-1]
        torch.save(kept, state)
    else:
        torch.save({"steps": 1, "parameters": ["x"], "adam": {}}, state)
    with pytest.raises(TrainerError, match="cannot be read" if damage == "cut" else "another model"):
        Trainer(tmp_path / "p", section())


def fill(folder: Path) -> None:
    (folder / "a").write_text("whole")
    (folder / "sub").mkdir()
    (folder / "sub" / "b").write_text("whole")


def test_an_earlier_attempt_and_its_remains_are_replaced(tmp_path):
    target = tmp_path / "7"
    target.mkdir()
    (target / "old").touch()
    (tmp_path / ".7.writing-1").mkdir()
    (tmp_path / ".77.writing-1").mkdir()  # of another target
    write_whole(target, fill)
    assert sorted(f.name for f in target.iterdir()) == ["a", "sub"]
    assert sorted(f.name for f in tmp_path.iterdir()) == [".77.writing-1", "7"]


def test_a_failed_write_leaves_the_target_alone(tmp_path):
    target = tmp_path / "7"
    write_whole(target, fill)

    def full(folder: Path) -> None:
        (folder / "a").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(TrainerError, match="No space left") as caught:
        write_whole(target, full)
    assert caught.value.fault == "infra"
    assert (target / "a").read_text() == "whole"
    assert [f.name for f in tmp_path.iterdir()] == ["7"]


@contextmanager
def files_end_at(size: int):
    """No file of this process may grow past `size` bytes."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def own_memory() -> int:
    """Bytes of this process that belong to no file."""
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024


def test_what_is_laid_out_takes_no_memory_of_its_own_and_leaves_no_file(tmp_path):
    value = torch.arange(1 << 24, dtype=torch.float32).view(4, -1)
    before = own_memory()
    copy = laid_out(value.T, tmp_path)
    assert own_memory() - before < value.nbytes / 4
    assert torch.equal(copy, value.T) and copy.data_ptr() != value.data_ptr()
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_room_it_is_refused_before_it_is_written(tmp_path):
    with files_end_at(1000), pytest.raises(OSError, match="File too large"):
        laid_out(torch.zeros(1000), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", [1_000, 1_000_000, 5_000_000])
def test_a_real_refusal_of_the_disk_is_told_in_one_line(tiny_policy, tmp_path, limit):
    """A file-size limit stops the config, the weights or the optimizer's state in the middle of the write."""
    trainer = Trainer(tiny_policy, section())
    trainer.step(sample(tiny_policy))
    with files_end_at(limit), pytest.raises(TrainerError, match="cannot write checkpoint") as caught:
        trainer.save(tmp_path / "1")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from lego.trainer import checkpoint

at, calls = int(sys.argv[2]), 0
def counted(real):
    def call(*args, **named):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **named)
    return call

os.fsync, Path.rename, Path.mkdir = counted(os.fsync), counted(Path.rename), counted(Path.mkdir)
def fill(folder):
    for name in "abc":
        (folder / name).write_text("whole")
checkpoint.write_whole(Path(sys.argv[1]) / "1", fill)
"""


def test_killed_at_any_moment_it_is_whole_or_absent(tmp_path):
    outcomes = []
    for at in range(1, 12):
        folder = tmp_path / str(at)
        folder.mkdir()
        ended = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(at)], check=False, cwd=Path.cwd())
        target = folder / "1"
        outcomes.append(target.exists())
        if target.exists():
            assert sorted(f.read_text() for f in target.iterdir()) == ["whole"] * 3
        else:
            assert ended.returncode == -signal.SIGKILL
            write_whole(target, fill)
            assert [f.name for f in folder.iterdir()] == ["1"]
    assert outcomes[0] is False and outcomes[-1] is True
