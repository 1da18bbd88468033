"""One of the processes that take a step together: started by the launcher, told what to do by lego.trainer.launch."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lego.errors import LegoError, TrainerError

JOB_FILE = "job.json"
"""What is to be done, as lego.trainer.launch leaves it."""


def main(folder: Path) -> int:
    """Do the job that lies in `folder`; the exit code. What fails is told in error-RANK.json."""
    if os.environ.get("LEGO_WORKERS_END_WITH_STDIN"):
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        _work(folder)
    except Exception as error:
        traceback.print_exc()
        told = error if isinstance(error, LegoError) else TrainerError(f"a training worker failed: {error!r}")
        said = {"message": told.message, "hint": told.hint, "fault": told.fault}
        rank = os.environ.get("RANK", "0")
        aside = folder / f".error-{rank}"
        aside.write_text(json.dumps(said), encoding="utf-8")
        aside.rename(folder / f"error-{rank}.json")
        return 1
    return 0


def _work(folder: Path) -> None:
    # What the command says in its environment does not reach other machines.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    job = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    if job["setting"]["device"] == "cpu" or not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read where DeepSpeed is first imported
    from omegaconf import OmegaConf

    from lego.config.schema import TrainSection
    from lego.trainer import launch
    from lego.trainer.deepspeed import open_backend, prepare
    from lego.trainer.hosts import end_when_alone
    from lego.trainer.step import Trainer

    if job["section"]["deepspeed"]["hostfile"]:
        end_when_alone(folder, job["token"])
    setting = launch.Setting(**job["setting"])
    setting = replace(setting, device=prepare(setting.device))
    section: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainSection), job["section"]))
    trainer = Trainer(**asdict(setting), section=section, backend=open_backend)
    first = trainer.policy.ranks.first
    segments = launch.get_segments(folder / launch.SEGMENTS_FILE)

    def tell(done: int, total: int) -> None:
        if first:
            _put(folder / launch.PROGRESS_FILE, [done, total])

    work = trainer.step if job["work"] == "step" else trainer.prove
    report = work(segments, tell)
    if job["work"] == "step" and not report.refused:
        trainer.save(folder / launch.POLICY_FOLDER)
    if first:
        _put(folder / launch.REPORT_FILE, asdict(report))
    # Nobody leaves while another still exchanges something with it.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _put(path: Path, value: Any) -> None:
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(value), encoding="utf-8")
    aside.rename(path)


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    # Libraries that hold threads or sockets must not keep a worker that is done from ending.
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
