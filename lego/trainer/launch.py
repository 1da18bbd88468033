"""Training in processes of its own: what they are told and what they tell travels as files in one folder.

The command that trains stays the only writer of the database. Its workers are started by torch's launcher on one
machine, by DeepSpeed's on many (which must share the folder; lego.trainer.hosts); they end with the command that
started them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from lego.config.schema import TrainSection
from lego.errors import ConfigError, TrainerError
from lego.trainer.batch import TrainSegment
from lego.trainer.checkpoint import NOTES_FILE, write_whole
from lego.trainer.gradient import Progress
from lego.trainer.hosts import SignOfLife, read_hosts, require_launcher
from lego.trainer.step import StepReport, learns
from lego.trainer.worker import JOB_FILE

WORKER = "lego.trainer.worker"
SEGMENTS_FILE, REPORT_FILE, PROGRESS_FILE, LOG_FILE = "segments.pt", "report.json", "progress.json", "log"
POLICY_FOLDER = "policy"
WITH_PARENT = "LEGO_WORKERS_END_WITH_STDIN"
"""Set for workers whose standard input closes when the command that started them is gone."""
_POLL = 0.1
_PORTS = 20_000, 30_000
"""Where processes on many machines meet; one drawn a job, since two jobs on one host must not meet each other."""
_DIED = re.compile(r"Root Cause.*?^\s*rank\s*:\s*(\d+).*?^\s*exitcode\s*:\s*(-?\d+)", re.DOTALL | re.MULTILINE)
"""What torch's launcher says of the process that failed first."""


@dataclass(frozen=True)
class Setting:
    """What a Trainer is made of, but for its section: its parameters, as lego.trainer.step.Trainer has them."""

    policy_dir: str
    temperature: float
    seed: int
    dtype: str
    threads: int
    longest: int
    reference_dir: str | None
    device: str = "auto"


class GangTrainer:
    """Trainer's face, with the work done by processes that `train.deepspeed` asks for.

    folder: where the job's files lie while it runs; removed by `save` and by whoever gives up.
    """

    def __init__(self, setting: Setting, section: TrainSection, folder: Path) -> None:
        require_deepspeed()
        self.section = section
        self._setting = setting
        self._folder = folder

    def learns(self, segments: Sequence[TrainSegment]) -> bool:
        """Whether a step on these segments has a gradient."""
        return learns(self.section, segments)

    def prove(self, segments: Sequence[TrainSegment], on_progress: Progress | None = None) -> StepReport:
        """As Trainer.prove."""
        return self._run("prove", segments, on_progress)

    def step(self, segments: Sequence[TrainSegment], on_progress: Progress | None = None) -> StepReport:
        """As Trainer.step. Raises TrainerError, in one line, where a worker failed or died."""
        return self._run("step", segments, on_progress)

    def save(self, target: Path, *, notes: Mapping[str, Any] | None = None) -> None:
        """Put the policy that the workers wrote in its place, whole or not at all."""
        made = self._folder / POLICY_FOLDER

        def write(folder: Path) -> None:
            for file in made.iterdir():
                file.rename(folder / file.name)
            about = json.loads((folder / NOTES_FILE).read_text(encoding="utf-8"))
            (folder / NOTES_FILE).write_text(json.dumps(about | dict(notes or {}), indent=2) + "\n", encoding="utf-8")

        write_whole(target, write)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(
        self, work: Literal["step", "prove"], segments: Sequence[TrainSegment], on_progress: Progress | None
    ) -> StepReport:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        put_segments(self._folder / SEGMENTS_FILE, segments)
        # With a token of its own: workers of a killed command on other machines must not be taken for this one's.
        token = secrets.token_hex(8)
        job = {"work": work, "setting": asdict(self._setting), "section": asdict(self.section), "token": token}
        (self._folder / JOB_FILE).write_text(json.dumps(job), encoding="utf-8")
        sign = SignOfLife(self._folder, token)
        sign.give()
        started = command(self.section, self._folder, self._setting.device), environment(self._setting.device)
        code = _watch(*started, self._folder, on_progress, sign)
        report = self._folder / REPORT_FILE
        if code or not report.is_file():
            raise _failure(self._folder, code)
        told = StepReport(**json.loads(report.read_text(encoding="utf-8")))
        if told.refused or work == "prove":
            shutil.rmtree(self._folder, ignore_errors=True)
        return told


def require_deepspeed() -> None:
    """Raises ConfigError where train.backend=deepspeed cannot be had."""
    from importlib.util import find_spec

    for package in ("deepspeed", "accelerate"):
        if find_spec(package) is None:
            raise ConfigError(
                f"train.backend is deepspeed, and {package} is not installed",
                hint="pip install 'lego[train]', or set train.backend=torch",
            )


def put_segments(path: Path, segments: Sequence[TrainSegment]) -> None:
    """Write segments for `get_segments`."""
    torch.save([{k: _plain(v) for k, v in vars(segment).items()} for segment in segments], path)


def get_segments(path: Path) -> list[TrainSegment]:
    """The segments as they were, dtypes and all."""
    rows: Any = torch.load(path, weights_only=True)
    make: Any = TrainSegment
    return [make(**{name: _array(value) for name, value in row.items()}) for row in rows]


def _plain(value: Any) -> Any:
    return torch.from_numpy(value.copy()) if hasattr(value, "dtype") else value


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def command(section: TrainSection, folder: Path, device: str) -> list[str]:
    """What starts the workers, on `device` (engine.device). Raises ConfigError where the hostfile, or what reaches its
    hosts, is not as needed."""
    file, processes = section.deepspeed.hostfile, section.deepspeed.processes
    if file:
        require_launcher(read_hosts(Path(file)))
        port = str(_PORTS[0] + secrets.randbelow(_PORTS[1] - _PORTS[0]))
        launcher = ["deepspeed.launcher.runner", "--hostfile", file, "--master_port", port]
        # Else it puts an argument of its own before ours.
        launcher += ["--no_local_rank", "--module"]
    else:
        number = processes or (device != "cpu" and torch.cuda.device_count()) or 1
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(number), "-m"]
    return [sys.executable, "-m", *launcher, WORKER, str(folder.resolve())]


def environment(device: str) -> dict[str, str]:
    """The environment of the workers on this machine, and of what starts them."""
    made = {**os.environ, WITH_PARENT: "1"}
    made.setdefault("OMP_NUM_THREADS", "1")
    if device == "cpu" or not torch.cuda.is_available():
        made["DS_ACCELERATOR"] = "cpu"  # the launcher itself loads DeepSpeed
    return made


def _watch(
    command: Sequence[str], surroundings: dict[str, str], folder: Path, on_progress: Progress | None, sign: SignOfLife
) -> int:
    """Run to the end, telling of progress; the exit code."""
    with (folder / LOG_FILE).open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=surroundings, start_new_session=True
        )
    told: Any = None
    try:
        while process.poll() is None:
            time.sleep(_POLL)
            sign.give()
            with contextlib.suppress(OSError, ValueError):
                now = json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8"))
                if on_progress and now != told:
                    told = now
                    on_progress(*now)
        return process.returncode
    finally:
        if process.stdin:
            process.stdin.close()


def _failure(folder: Path, code: int) -> TrainerError:
    """What went wrong, in one line: a worker's own word for it, else how it ended."""
    errors = sorted(folder.glob("error-*.json"), key=lambda path: path.stat().st_mtime_ns)
    if errors:
        said = json.loads(errors[0].read_text(encoding="utf-8"))
        return TrainerError(said["message"], hint=said["hint"], fault=said["fault"])
    log = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    if died := _DIED.search(log):
        rank, status = died.group(1), int(died.group(2))
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
        why = "; signal 9 is mostly the host running out of memory" if status == -9 else ""
        return TrainerError(f"training worker {rank} {how}", hint=f"its log is {folder / LOG_FILE}{why}")
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "without a word")
    return TrainerError(
        f"the training workers ended with exit code {code}: {last[:200]}", hint=f"their log is {folder / LOG_FILE}"
    )
