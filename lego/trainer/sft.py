"""The supervised start: cross-entropy on the sampled-token masks of scripted, oracle or successful trials.

Part of the trials may be held out: their loss says when the policy stops learning and starts to memorise. After each
epoch everything is kept in a folder, so that a killed command goes on with the next epoch.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lego.config.schema import SftSection
from lego.engine.digest import folder_digest
from lego.errors import TrainerError
from lego.objective.losses import Mean, cross_entropy
from lego.trainer.batch import Batch, TrainSegment, check, pack
from lego.trainer.checkpoint import write_whole
from lego.trainer.optimizer import Optimizer
from lego.trainer.policy import memory_advice
from lego.trainer.step import Trainer, hash_seed

_SPLIT = 0xFFFFFFFF
"""In the place of an epoch: the seed of the split."""


@dataclass(frozen=True)
class SftProgress:
    """step of steps (from 1), and that step's metrics by name (lego.metrics)."""

    step: int
    steps: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class SftReport:
    """metrics: of the last epoch, plus totals. losses, held_out: mean nats a token, one an epoch; held_out is empty
    where nothing is held out. best: the epoch (from 1) whose weights were kept."""

    metrics: dict[str, float]
    losses: list[float]
    held_out: list[float] = field(default_factory=list)
    best: int = 0


@dataclass
class _Course:
    """How far the teaching has come, as it is kept after each epoch."""

    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> int:
        """The epoch with the lowest held-out loss; without one, the last."""
        return int(np.argmin(self.held_out)) + 1 if self.held_out else len(self.losses)

    def over(self, section: SftSection) -> bool:
        done = len(self.losses)
        return done >= section.epochs or 0 < section.patience <= done - self.best


def run_sft(
    trainer: Trainer,
    segments: Sequence[TrainSegment],
    section: SftSection,
    on_progress: Callable[[SftProgress], None] | None = None,
    keep: Path | None = None,
) -> SftReport:
    """Teach the trainer's policy the segments' masked tokens: `epochs` passes, `batch_trials` whole trials a step.

    section.held_out of the trials is never taught; the weights end as those of the epoch that predicts them best, and
    section.patience epochs without a better one end the teaching. keep: a folder for the state after each epoch; what
    an earlier call with the same policy, segments, section and seed left there is taken up. The caller removes it.
    Uses an optimizer of its own (section.optimizer), so save the result with `optimizer=False`. Order and split by
    the trainer's seed. Advantage, weight and engine log-probs play no part; the loss is at temperature 1.
    Raises TrainerError where there is nothing to learn from, or a gradient is not finite.
    """
    if not segments:
        raise TrainerError("there is nothing to learn from", hint="run the demonstrations first", fault="user")
    check(segments, trainer.policy.vocabulary)
    started = time.perf_counter()
    optimizer = Optimizer(trainer.policy.model, section.optimizer)
    taught, held = split(sorted({segment.trial_id for segment in segments}), section.held_out, trainer.seed)
    held_segments = [segment for segment in segments if segment.trial_id in held]
    shelf = _Shelf(keep, _fingerprint(trainer, segments, section)) if keep else None
    course = (shelf.take_up(trainer, optimizer) if shelf else None) or _Course()
    first_epoch = len(course.losses)
    best = _weights(trainer) if held and first_epoch and course.best == first_epoch else None
    while not course.over(section):
        epoch = len(course.losses)
        course.metrics = _epoch(trainer, optimizer, segments, taught, section, epoch, on_progress)
        course.losses.append(course.metrics["sft/loss"])
        if held:
            course.held_out.append(_loss(trainer, held_segments))
            if course.best == epoch + 1:
                best = _weights(trainer)
        if shelf:
            shelf.put(trainer, optimizer, course)
    if held and course.best != len(course.losses):
        trainer.policy.model.load_state_dict(best if best is not None else _shelved(shelf, course.best))
    return _report(course, segments, taught, held, (len(course.losses) - first_epoch), time.perf_counter() - started)


def split(trials: Sequence[int], share: float, seed: int) -> tuple[list[int], set[int]]:
    """Which trials are taught and which are held out: `share` of them, rounded, but never all."""
    wanted = min(round(share * len(trials)), len(trials) - 1)
    order = np.random.default_rng(hash_seed(seed, _SPLIT)).permutation(len(trials))
    held = {trials[int(i)] for i in order[:wanted]}
    return [trial for trial in trials if trial not in held], held


def _epoch(
    trainer: Trainer,
    optimizer: Optimizer,
    segments: Sequence[TrainSegment],
    trials: Sequence[int],
    section: SftSection,
    epoch: int,
    on_progress: Callable[[SftProgress], None] | None,
) -> dict[str, float]:
    """One pass over `trials`; its metrics."""
    per_epoch = math.ceil(len(trials) / section.batch_trials)
    order = np.random.default_rng(hash_seed(trainer.seed, epoch)).permutation(len(trials))
    gathered: dict[str, Mean] = defaultdict(Mean)
    for number in range(per_epoch):
        first = number * section.batch_trials
        chosen = {trials[int(i)] for i in order[first : first + section.batch_trials]}
        batch = [segment for segment in segments if segment.trial_id in chosen]
        done = (epoch + number / per_epoch) / section.epochs
        optimizer.slow_down = 1.0 - (1.0 - section.final_lr) * done
        with memory_advice():
            metrics = sft_step(trainer, optimizer, batch)
        for name, mean in metrics.items():
            gathered[name] = gathered[name].plus(mean)
        if on_progress:
            values = {name: mean.value for name, mean in metrics.items()}
            on_progress(SftProgress(epoch * per_epoch + number + 1, section.epochs * per_epoch, values))
    return {name: mean.value for name, mean in gathered.items()}


def _loss(trainer: Trainer, segments: Sequence[TrainSegment]) -> float:
    """Mean nats a token under the weights as they are."""
    total = Mean()
    with memory_advice(), torch.no_grad():
        for batch in _batches(trainer, segments):
            scored = trainer.policy.score(batch, 1.0)
            total = total.plus(cross_entropy(scored.logp, batch.mask).metrics["sft/loss"])
    return total.value


def _report(
    course: _Course, segments: Sequence[TrainSegment], taught: Sequence[int], held: set[int], epochs: int, took: float
) -> SftReport:
    tokens = sum(int(segment.mask.sum()) for segment in segments if segment.trial_id not in held)
    totals = {
        "step/segments": float(sum(segment.trial_id not in held for segment in segments)),
        "step/trials": float(len(taught)),
        "step/tokens": float(tokens),
        "step/seconds": took,
        "step/tokens_per_second": tokens * epochs / took,
        "sft/epoch": float(course.best),
    }
    if course.held_out:
        totals["sft/held_out"] = course.held_out[course.best - 1]
    return SftReport(course.metrics | totals, course.losses, course.held_out, course.best)


def sft_step(trainer: Trainer, optimizer: Optimizer, segments: Sequence[TrainSegment]) -> dict[str, Mean]:
    """One optimizer step on the mean cross-entropy over all owned tokens of `segments`."""
    tokens = sum(int(segment.mask.sum()) for segment in segments)
    optimizer.forget()
    total = Mean()
    for batch in _batches(trainer, segments):
        result = cross_entropy(trainer.policy.score(batch, 1.0).logp, batch.mask)
        (result.loss / tokens).backward()  # type: ignore[no-untyped-call]
        total = total.plus(result.metrics["sft/loss"])
    lr, norm = optimizer.lr, optimizer.clip()
    if not math.isfinite(norm):
        optimizer.forget()
        raise TrainerError("the gradient is not finite", hint="lower sft.optimizer.lr")
    optimizer.step()
    return {"sft/loss": total, "step/grad_norm": Mean(norm, 1), "step/lr": Mean(lr, 1)}


def _batches(trainer: Trainer, segments: Sequence[TrainSegment]) -> Iterator[Batch]:
    """Micro-batches on the policy's device."""
    layout = trainer.policy.layout(trainer.section.share_prefixes)
    for batch in pack(segments, trainer.section.micro_batch_tokens, layout):
        yield batch.to(trainer.policy.device)


class _Shelf:
    """The folder that holds the state after the newest epoch, and the weights of the best one: a folder each."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint

    def put(self, trainer: Trainer, optimizer: Optimizer, course: _Course) -> None:
        epoch = len(course.losses)

        def write(folder: Path) -> None:
            torch.save(trainer.policy.model.state_dict(), folder / "weights.pt")
            optimizer.save(folder / "optimizer.pt")
            state = {"fingerprint": self._fingerprint, **asdict(course)}
            (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

        write_whole(self._folder / str(epoch), write)
        for other in self._epochs():
            if other not in (epoch, course.best):
                shutil.rmtree(self._folder / str(other))

    def take_up(self, trainer: Trainer, optimizer: Optimizer) -> _Course | None:
        """Load the newest epoch's state; None, the folder emptied, where there is none of this teaching."""
        epochs = self._epochs()
        if epochs:
            newest = self._folder / str(epochs[-1])
            state = json.loads((newest / "state.json").read_text(encoding="utf-8"))
            if state.pop("fingerprint") == self._fingerprint:
                trainer.policy.model.load_state_dict(self.weights(epochs[-1]))
                optimizer.load(newest / "optimizer.pt")
                return _Course(**state)
        shutil.rmtree(self._folder, ignore_errors=True)
        return None

    def weights(self, epoch: int) -> dict[str, Any]:
        loaded: dict[str, Any] = torch.load(self._folder / str(epoch) / "weights.pt", weights_only=True)
        return loaded

    def _epochs(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdigit())


def _shelved(shelf: _Shelf | None, epoch: int) -> dict[str, Any]:
    assert shelf is not None, "without a folder every epoch was taught in this call"
    return shelf.weights(epoch)


def _weights(trainer: Trainer) -> dict[str, Any]:
    return {name: value.detach().clone() for name, value in trainer.policy.model.state_dict().items()}


def _fingerprint(trainer: Trainer, segments: Sequence[TrainSegment], section: SftSection) -> str:
    """sha256 hex over what decides the state after an epoch."""
    plan = asdict(section) | {"patience": 0, "seed": trainer.seed, "lora": asdict(trainer.section.lora)}
    plan["policy"] = folder_digest(trainer.folder)
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode())
    for segment in segments:
        digest.update(str(segment.trial_id).encode() + segment.ids.tobytes() + segment.mask.tobytes())
    return digest.hexdigest()
