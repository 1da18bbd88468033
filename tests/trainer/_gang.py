"""A process of a gang that takes several steps: python -m torch.distributed.run … -m tests.trainer._gang FOLDER.

Under ZeRO 3 every weight is divided, small ones as well.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from lego.config.schema import TrainSection
from lego.trainer import deepspeed
from lego.trainer.deepspeed import open_backend, prepare
from lego.trainer.launch import get_segments
from lego.trainer.step import Trainer


def main(folder: Path) -> None:
    """FOLDER/plan.json: policy, section, reference, steps; FOLDER/segments.pt. Writes FOLDER/policy, reports.json and,
    of each process, whole-RANK.json: between steps, the names of the weights of which it holds all."""
    deepspeed.WHOLE = 0
    plan = json.loads((folder / "plan.json").read_text())
    section: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainSection), plan["section"]))
    device = prepare("auto")
    trainer = Trainer(
        plan["policy"], section, reference_dir=plan["reference"], dtype=plan["dtype"], device=device, seed=3,
        backend=open_backend,
    )  # fmt: skip
    segments = get_segments(folder / "segments.pt")
    reports = [asdict(trainer.step(segments)) for _ in range(plan["steps"])]
    whole = [name for name, p in trainer.policy.model.named_parameters() if p.numel()]
    (folder / f"whole-{trainer.policy.ranks.rank}.json").write_text(json.dumps(whole))
    trainer.save(folder / "policy")
    if trainer.policy.ranks.first:
        (folder / "reports.json").write_text(json.dumps(reports))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
