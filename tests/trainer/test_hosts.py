"""Training on many machines: the file of hosts, the command made of it, and workers started through it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from lego.config.schema import DeepSpeedSection, GateSection
from lego.errors import ConfigError
from lego.trainer.hosts import SILENCE, Listener, SignOfLife, read_hosts
from lego.trainer.launch import GangTrainer, Setting, command
from lego.trainer.step import Trainer
from tests.conftest import missing
from tests.trainer._hosts import stand_ins
from tests.trainer._sampled import sample, section

ALL = "deepspeed" in os.environ.get("LEGO_REQUIRE", "").split(",")


def gang(policy: Path, folder: Path, hosts: str) -> GangTrainer:
    if find_spec("deepspeed") is None:
        missing("deepspeed", "it is not installed")
    folder.mkdir(exist_ok=True)
    (folder / "hosts").write_text(hosts)
    deepspeed = DeepSpeedSection(zero=2, hostfile=str(folder / "hosts"))
    made = section(deepspeed=deepspeed, gate=GateSection(9.0, 9.0, -1.0), micro_batch_tokens=40)
    return GangTrainer(Setting(str(policy), 1.0, 3, "float32", 1, 0, None), made, folder / "job")


names = st.from_regex(r"[a-z][a-z0-9.-]{0,12}", fullmatch=True)


@given(st.dictionaries(names, st.integers(1, 64), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_hosts_are_read_as_they_were_written(hosts, chance):
    lines = []
    for host, slots in hosts.items():
        lines += ["# a comment", "", "  \t"][: chance.randrange(4)]
        lines.append(f"{host}{' ' * chance.randrange(1, 4)}slots={slots}{chance.choice(['', '  # here', ' '])}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hosts"
        file.write_text("\n".join(lines))
        assert list(read_hosts(file).items()) == list(hosts.items())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a slots=1\nb\n", "line 2: 'b' is not HOST slots=NUMBER"),
        ("a slots=0\n", "line 1: 'a slots=0' is not"),
        ("a slots=1 slots=2\n", "line 1"),
        ("a slots=1\n# b\na slots=2\n", "line 3: a is named twice"),
        ("# nothing\n\n", "names no host"),
        (b"\xff\xfe", "cannot be read"),
        (f"a slots={'9' * 5000}", "is not HOST slots=NUMBER"),
    ],
)
def test_a_line_that_is_none_is_refused_with_its_number(tmp_path, text, words):
    file = tmp_path / "hosts"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        read_hosts(file)
    assert words in str(caught.value) and "train.deepspeed.hostfile" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("hosts", "lacking"), [("a slots=2\n", "ssh"), ("a slots=2\nb slots=2\n", "pdsh")])
def test_what_reaches_the_hosts_must_be_there(tiny_policy, tmp_path, monkeypatch, hosts, lacking):
    stand_ins(tmp_path)
    (tmp_path / lacking).unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=f"through {lacking}, which is not installed"):
        gang(tiny_policy, tmp_path / "run", hosts).step(sample(tiny_policy, trials=1))


def test_the_command_leads_to_the_worker_with_its_folder_alone(tmp_path, monkeypatch):
    """DeepSpeed's own parser reads it; its launcher would put --local_rank before the folder, if it were not told."""
    stand_ins(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "hosts").write_text("a slots=2\nb slots=4\n")
    words = command(section(deepspeed=DeepSpeedSection(hostfile=str(tmp_path / "hosts"))), tmp_path / "job", "auto")
    assert words[:3] == [sys.executable, "-m", "deepspeed.launcher.runner"]
    if find_spec("deepspeed") is None:
        missing("deepspeed", "it is not installed")
    from deepspeed.launcher.runner import fetch_hostfile, parse_args

    read = parse_args(words[3:])
    assert (read.user_script, read.user_args) == ("lego.trainer.worker", [str(tmp_path / "job")])
    assert read.module and read.no_local_rank and 20_000 <= read.master_port < 30_000
    assert fetch_hostfile(read.hostfile) == read_hosts(Path(read.hostfile)) == {"a": 2, "b": 4}


def test_a_worker_is_alone_after_silence_or_where_another_command_has_the_folder(tmp_path):
    now = [0.0]
    sign, listener = SignOfLife(tmp_path, "mine"), Listener(tmp_path, "mine", lambda: now[0])
    now[0] = SILENCE
    assert not listener.alone()  # the command may be slow to begin
    sign.give()
    assert not listener.alone()
    now[0] += SILENCE
    assert not listener.alone()
    now[0] += 1
    assert listener.alone()
    heard = Listener(tmp_path, "mine", lambda: now[0])
    assert not heard.alone()
    SignOfLife(tmp_path, "another's").give()
    assert heard.alone()


def test_such_a_worker_ends_itself(tmp_path):
    SignOfLife(tmp_path, "another's").give()
    code = f"""
import threading
from pathlib import Path
from lego.trainer.hosts import end_when_alone
end_when_alone(Path({str(tmp_path)!r}), "mine")
threading.Event().wait()
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 1


@pytest.mark.skipif(not ALL, reason="make test-deepspeed")
def test_workers_on_two_hosts_take_the_step_of_one_process(tiny_policy, tmp_path, monkeypatch):
    log = stand_ins(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    segments = sample(tiny_policy)
    workers = gang(tiny_policy, tmp_path / "run", "127.0.0.1 slots=1\nlocalhost slots=1  # the same machine\n")
    assert workers.step(segments).refused is None
    workers.save(tmp_path / "1")
    assert "pdsh 127.0.0.1 localhost" in log.read_text()
    plain = Trainer(tiny_policy, workers.section, seed=3)
    plain.step(segments)
    plain.save(tmp_path / "plain")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("1", "plain"))
    for name, value in other.items():
        torch.testing.assert_close(one[name], value, rtol=0, atol=1e-5)
