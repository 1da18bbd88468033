"""One round's update: recompute, prove, then (and only then) step."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lego.config.schema import TrainSection
from lego.engine.base import FloatArray
from lego.errors import ConfigError, TrainerError
from lego.objective.losses import Mean
from lego.objective.proof import Proof, proof
from lego.trainer.batch import TrainSegment, check, check_weights, coverage, split_trials
from lego.trainer.checkpoint import NOTES_FILE, OPTIMIZER_FILE, copy_companions, write_whole
from lego.trainer.gate import refusal
from lego.trainer.gradient import Gradient, Progress, add_up, pulls_alone, score
from lego.trainer.lora import new_optimizer
from lego.trainer.optimizer import Optimizer
from lego.trainer.policy import Policy, memory_advice

WORST_TOKENS = 20


@dataclass(frozen=True)
class TokenGap:
    """A sampled token that trainer and engine disagree on; position counts in the segment's ids, log-probs are nats
    (None: not a finite number)."""

    trial_id: int
    segment: int
    position: int
    token: int
    logp_train: float | None
    logp_engine: float


@dataclass(frozen=True)
class StepReport:
    """What a step did. metrics: by name (lego.metrics). refused: why the weights were left alone, or None.

    worst: the tokens with the largest gap, as `TokenGap` fields, largest first; `segment` counts in the list given.
    """

    metrics: dict[str, float]
    refused: str | None = None
    worst: list[dict[str, Any]] = field(default_factory=list)


Backend = Callable[[Path, Path | None, TrainSection, str, str, int], tuple[Policy, Policy | None, Any]]
"""From the policy's folder, the reference's, the section, dtype, device and seed to policy, reference and optimizer.
The reference is the policy itself where it is what the policy's adapter stands on."""


def plain(
    folder: Path, reference: Path | None, section: TrainSection, dtype: str, device: str, seed: int
) -> tuple[Policy, Policy | None, Optimizer]:
    """All of it in this process, by torch alone."""
    how: Any = {"dtype": dtype, "device": device, "attention": section.attention}
    policy = Policy(folder, checkpoint_layers=section.checkpoint_layers, lora=section.lora, seed=seed, **how)
    optimizer = Optimizer(policy.model, section.optimizer)
    if reference is None or (policy.adapter and policy.adapter.is_base(reference)):
        return policy, policy if reference else None, optimizer
    return policy, Policy(reference, **how), optimizer


def learns(section: TrainSection, segments: Sequence[TrainSegment]) -> bool:
    """Whether a step on these segments has a gradient."""
    return bool(segments) and (pulls_alone(section.objective) or any(segment.advantage for segment in segments))


class Trainer:
    """A policy being trained: float32 weights, AdamW, the run's objective.

    policy_dir: a Hugging Face folder; a checkpoint of ours brings its optimizer state along, unless that is of another
    train.lora.
    temperature: what the segments were sampled at (> 0); every log-prob is of softmax(logits / temperature).
    threads: torch's, for the whole process; 0 leaves its default. seed: of the order of mini-batches.
    longest: the most a trial may sample, where train.objective.weighting divides by it.
    reference_dir: the folder of the reference policy, where train.objective.kl holds the policy near one.
    The model is scored with dropout off, so pi_old is pi at ratio 1 to the last bit.
    """

    def __init__(
        self,
        policy_dir: Path | str,
        section: TrainSection,
        *,
        temperature: float = 1.0,
        seed: int = 0,
        dtype: str = "float32",
        device: str = "auto",
        threads: int = 0,
        longest: int = 0,
        reference_dir: Path | str | None = None,
        backend: Backend = plain,
    ) -> None:
        if not (math.isfinite(temperature) and temperature > 0):
            raise ConfigError(
                f"rollout.temperature: {temperature} cannot be trained on: a greedy choice has no probability",
                hint="sample training rounds at a temperature above 0",
            )
        if section.objective.kl and reference_dir is None:
            raise ConfigError("train.objective.kl holds the policy near a reference, and there is none")
        if threads:
            torch.set_num_threads(threads)
        self.folder = Path(policy_dir)
        self.section = section
        self.temperature = temperature
        self.seed = seed
        self.dtype = dtype
        reference = Path(reference_dir) if reference_dir else None
        self.policy, self._reference, self.optimizer = backend(self.folder, reference, section, dtype, device, seed)
        if section.moe.balance and self.policy.routers.strange:
            raise ConfigError(
                f"train.moe.balance: {self.policy.routers.strange} is no router of softmax, which is what is balanced",
                hint="train.moe.balance=0",
            )
        self.gradient = Gradient(self.policy, section, temperature, longest)
        if (self.folder / OPTIMIZER_FILE).is_file() and not new_optimizer(self.folder, section.lora):
            self.optimizer.load(self.folder / OPTIMIZER_FILE)
        else:
            self.optimizer.before = _steps_taken(self.folder)

    def score(self, segments: Sequence[TrainSegment], on_progress: Progress | None = None) -> list[FloatArray]:
        """Log-probs of each segment's owned ids under the weights as they are: one [n] float32 a segment, else 0."""
        check(segments, self.policy.vocabulary)
        return score(self.policy, segments, self.temperature, self.section, on_progress)

    def learns(self, segments: Sequence[TrainSegment]) -> bool:
        """Whether a step on these segments has a gradient."""
        return learns(self.section, segments)

    def prove(self, segments: Sequence[TrainSegment], on_progress: Progress | None = None) -> StepReport:
        """The proof numbers of `segments` and the gate's word on them, without a step."""
        followed = self._followed(segments)
        return self._prove(followed, self.score(followed, on_progress))

    def step(self, segments: Sequence[TrainSegment], on_progress: Progress | None = None) -> StepReport:
        """Train on one round's segments: `train.minibatches` optimizer steps, or none at all.

        Before the first of them the recomputed log-probs are held against the engine's (train.gate). Refused, with
        weights and optimizer untouched: a gap over the gate, a log-prob or gradient that is not finite, nothing with an
        advantage, or nothing left of that by train.correction. Raises TrainerError on segments that break an invariant
        or were not sampled from a policy.
        """
        started = time.perf_counter()
        check(segments, self.policy.vocabulary)
        check_weights(segments)
        scripted = sorted({segment.trial_id for segment in segments if segment.sampler != "policy"})
        if scripted:
            raise TrainerError(f"trial {scripted[0]} was scripted: its tokens were not sampled from a policy")
        with memory_advice():
            report = self._step(self._followed(segments), on_progress)
        seconds = time.perf_counter() - started
        tokens = sum(int(segment.mask.sum()) for segment in segments)
        counts = {
            "step/segments": float(len(segments)),
            "step/trials": float(len({segment.trial_id for segment in segments})),
            "step/tokens": float(tokens),
            "step/seconds": seconds,
            "step/tokens_per_second": tokens / seconds,
        }
        return StepReport(report.metrics | counts, report.refused, report.worst)

    def _followed(self, segments: Sequence[TrainSegment]) -> list[TrainSegment]:
        """Without what was recorded of their experts, where that is not to be replayed. Raises TrainerError where it is
        and cannot be."""
        if self.section.moe.replay and self.policy.routers:
            if self.policy.routers.strange and any(segment.routing is not None for segment in segments):
                raise TrainerError(
                    f"the choices of {self.policy.routers.strange} cannot be replayed: it is no router of softmax",
                    hint="train.moe.replay=false trains without, and engine.routing=false records none",
                    fault="user",
                )
            return list(segments)
        return [replace(segment, routing=None) for segment in segments]

    def _step(self, segments: Sequence[TrainSegment], on_progress: Progress | None) -> StepReport:
        if not self.learns(segments):
            return StepReport({}, "no segment has an advantage: there is no gradient")
        parts = split_trials(segments, self.section.minibatches, hash_seed(self.seed, self.optimizer.steps))
        reference = [self._score_reference(part) for part in parts]
        old: Sequence[list[FloatArray] | None] = [None] * len(parts)
        if len(parts) > 1:
            # Later mini-batches meet moved weights, so pi_old of all of them is taken, and proven, now.
            scores = [self.score(part, on_progress) for part in parts]
            rows: dict[int, FloatArray] = {}
            for part, own in zip(parts, scores, strict=True):
                rows |= zip(map(id, part), own, strict=True)
            verdict = self._prove(segments, [rows[id(segment)] for segment in segments])
            if verdict.refused:
                return verdict
            old = scores
        gathered: dict[str, Mean] = defaultdict(Mean)
        updates = 0
        for which, (part, recorded, held) in enumerate(zip(parts, old, reference, strict=True)):
            if not self.learns(part):  # AdamW would move the weights by its momentum alone
                assert recorded is not None, "of one part only, the step was refused"
                add_up(gathered, self.gradient.corrections(part, recorded, recorded))
                continue
            self.optimizer.forget()
            scored, metrics = self.gradient.accumulate(part, recorded, held, on_progress)
            if recorded is None:
                verdict = self._prove(segments, scored)
                if verdict.refused:
                    self.optimizer.forget()
                    return verdict
            add_up(gathered, self.gradient.corrections(part, scored, recorded))
            if not self.gradient.pulls(part, scored, recorded):
                self.optimizer.forget()
                continue
            lr, norm = self.optimizer.lr, self.optimizer.clip()
            if not math.isfinite(norm):
                self.optimizer.forget()
                if updates:
                    raise TrainerError(
                        f"the gradient of mini-batch {which + 1} is not finite and earlier ones were stepped on",
                        hint="lower train.optimizer.lr; the checkpoint on disk is untouched",
                    )
                return StepReport(verdict.metrics, "the gradient is not finite", verdict.worst)
            self.optimizer.step()
            updates += 1
            add_up(gathered, metrics | {"step/grad_norm": Mean(norm, 1), "step/lr": Mean(lr, 1)})
        values = {name: mean.value for name, mean in gathered.items() if mean.n} | {"step/updates": float(updates)}
        if not updates:
            reason = "train.correction leaves out every token that has an advantage"
            return StepReport(verdict.metrics | values, reason, verdict.worst)
        return StepReport(verdict.metrics | values, None, verdict.worst)

    def _score_reference(self, segments: Sequence[TrainSegment]) -> list[FloatArray] | None:
        if self._reference is None:
            return None
        alone = self.policy.adapter.off() if self.policy.adapter and self._reference is self.policy else nullcontext()
        with alone:
            return score(self._reference, segments, self.temperature, self.section)

    def _prove(self, segments: Sequence[TrainSegment], scored: Sequence[FloatArray]) -> StepReport:
        """The proof numbers of these log-probs, and the gate's refusal if there is one."""
        train = np.concatenate([row[segment.mask] for row, segment in zip(scored, segments, strict=True)])
        engine = np.concatenate([segment.logprobs[segment.mask] for segment in segments])
        worst = _worst(segments, scored)
        if not np.isfinite(train).all():
            return StepReport({}, f"{int((~np.isfinite(train)).sum())} log-probs of the trainer are not finite", worst)
        numbers: Proof = proof(train, engine, [int(segment.mask.sum()) for segment in segments])
        metrics = numbers.metrics() | {"step/surprise": -float(train.mean(dtype=np.float64))}
        if self.section.moe.replay and self.policy.routers and not self.policy.routers.strange:
            metrics["moe/coverage"] = coverage(segments)
        return StepReport(metrics, refusal(numbers, self.section.gate, self.dtype) or None, worst)

    def save(self, target: Path | str, *, notes: Mapping[str, Any] | None = None, optimizer: bool = True) -> None:
        """Write the policy as a Hugging Face folder, tokenizer included, whole or not at all (fsync, rename).

        optimizer: keep the optimizer's state for the next step. notes: put into trainer.json.
        Raises TrainerError when the disk refuses.
        """

        def write(folder: Path) -> None:
            self.policy.save(folder)
            copy_companions(self.folder, folder)
            if optimizer:
                self.optimizer.save(folder / OPTIMIZER_FILE)
            taken = self.optimizer.before + self.optimizer.steps
            about = {"optimizer_steps": taken, "train": asdict(self.section), **(notes or {})}
            (folder / NOTES_FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")

        if self.policy.ranks.first:
            write_whole(Path(target), write)
        else:
            self.policy.save(None)
            if optimizer:
                self.optimizer.save(None)


def hash_seed(seed: int, step: int) -> int:
    """A seed of its own for each step, the same whenever that step is taken again."""
    return int(np.random.SeedSequence([seed & 0xFFFFFFFF, step]).generate_state(1)[0])


def _steps_taken(folder: Path) -> int:
    """Optimizer steps, of reinforcement learning, that led to the policy in `folder`."""
    notes = folder / NOTES_FILE
    try:
        return int(json.loads(notes.read_text(encoding="utf-8"))["optimizer_steps"]) if notes.is_file() else 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainerError(f"{notes} cannot be read: {error!r}", hint="is the checkpoint complete?") from error


def _worst(segments: Sequence[TrainSegment], scored: Sequence[FloatArray]) -> list[dict[str, Any]]:
    return [asdict(gap) for gap in sorted(_gaps(segments, scored), key=_size, reverse=True)[:WORST_TOKENS]]


def _gaps(segments: Sequence[TrainSegment], scored: Sequence[FloatArray]) -> Iterable[TokenGap]:
    """Each segment's largest gaps; no more of one segment than could be shown."""
    for number, (segment, row) in enumerate(zip(segments, scored, strict=True)):
        distance = np.where(segment.mask, np.nan_to_num(np.abs(row - segment.logprobs), nan=np.inf), -1.0)
        for position in np.argsort(-distance, kind="stable")[:WORST_TOKENS]:
            if segment.mask[position]:
                yield TokenGap(
                    trial_id=segment.trial_id,
                    segment=number,
                    position=int(position),
                    token=int(segment.ids[position]),
                    logp_train=float(row[position]) if np.isfinite(row[position]) else None,
                    logp_engine=float(segment.logprobs[position]),
                )


def _size(gap: TokenGap) -> float:
    return math.inf if gap.logp_train is None else abs(gap.logp_train - gap.logp_engine)
