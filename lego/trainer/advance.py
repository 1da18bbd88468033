"""One round becomes one step: samples committed first, then the step, then the next policy, in one transaction."""

from __future__ import annotations

import asyncio
import concurrent.futures
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from lego.config.schema import Config
from lego.engine.digest import folder_digest
from lego.errors import GateError, TrainerError
from lego.policy import PolicyRef
from lego.rundb import calls, catalogue, meta, rounds, routing, training
from lego.rundb.rounds import Round
from lego.rundb.store import Store
from lego.trainer.assemble import Assembly, assemble, assemble_demonstrations, assemble_solved
from lego.trainer.launch import GangTrainer, Setting
from lego.trainer.lora import new_optimizer
from lego.trainer.retention import removable
from lego.trainer.sft import SftProgress, run_sft
from lego.trainer.step import Trainer
from lego.trajectory.tokenizer import load_tokenizer

T = TypeVar("T")

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a round. `status` is done, skipped or refused; `policy` is the new version, if there is one.
    `note`: what else there is to know of it, one line, mostly empty."""

    step: int
    status: str
    reason: str
    policy: PolicyRef | None
    metrics: Mapping[str, float]
    worst: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""


async def train_round(store: Store, round_: Round, config: Config, folder: Path, on_progress: OnProgress) -> Outcome:
    """Train on a finished, verified round and close it. `folder` is where policies are kept.

    A round without an advantage closes as skipped; it is proven all the same, where its trials count. Raises
    GateError when the step is refused (the weights stay, and the round stays open with all its data: the step can be
    taken again), TrainerError when the round is not complete.
    """
    current = catalogue.policy(store)
    assert current is not None, "a round cannot exist before a policy"
    assembly = assemble(store, round_, config)
    step = training.begin_step(store, round_id=round_.id, kind="rl", policy_from=current.version, samples=assembly.rows)
    if not assembly.segments:
        why = "no trainable trial"
        if round_.policy_version != current.version:
            why += f": sampled from policy {round_.policy_version}, and policy {current.version} is the newest"
        elif assembly.rows:
            (reason, count), *_ = Counter(row.dropped for row in assembly.rows).most_common(1)
            why += f": {reason} ({count} of {len(assembly.rows)})"
        return _close(store, round_, config, Outcome(step, "skipped", why, None, assembly.metrics()))
    # The database belongs to this thread; the arithmetic goes to another, so that leases stay renewed meanwhile.
    reference = catalogue.reference(store).path if config.train.objective.kl else None
    temperature = float(round_.settings["temperature"])
    trainer = await _in_thread(_step_trainer, current, config, step, temperature, reference, folder)
    learns = trainer.learns(assembly.segments)
    report = await _in_thread(trainer.step if learns else trainer.prove, assembly.segments, on_progress)
    metrics = {**report.metrics, **assembly.metrics()}
    worst = _spelt(report.worst, current)
    if report.refused:
        _put_down(store, round_, step, report.refused, metrics, worst)
        raise GateError(
            f"step {step} refused: {report.refused}",
            hint="lego status shows the tokens that differ most. Round and weights are as they were: once the cause is"
            " removed or train.gate widened, lego train takes the step again; lego train --give-up closes the round",
        )
    if not learns:
        reason = "no trial has an advantage: nothing to learn from"
        return _close(store, round_, config, Outcome(step, "skipped", reason, None, metrics, worst))
    target = folder / str(current.version + 1)
    await _in_thread(trainer.save, target, notes={"step": step, "parent": current.version})
    note = new_optimizer(Path(current.path), config.train.lora)
    outcome = Outcome(step, "done", "", None, metrics, worst, note)
    return _close(store, round_, config, outcome, current, target, "train")


def give_up(store: Store, round_: Round, config: Config) -> Outcome:
    """Close a round whose step was refused, without a step. Raises TrainerError where none was refused."""
    with store.write():
        row = training.step_of_round(store, round_.id)
        if row is None or row["status"] != "refused":
            raise TrainerError(
                f"no step of round {round_.ordinal} was refused: there is nothing to give up",
                hint="lego train takes its step",
                fault="user",
            )
        _close_round(store, round_, config, f"given up: {row['reason']}")
        meta.event(store, "train", f"round {round_.ordinal} was given up")
    routing.drop(store, round_.id)
    return Outcome(row["step"], "given up", row["reason"], None, {})


async def teach_round(
    store: Store, round_: Round, config: Config, folder: Path, on_progress: Callable[[SftProgress], None]
) -> Outcome:
    """Supervised fine-tuning on a round of demonstrations, or (sft.source solved) on the solved trials so far.

    Killed, it goes on after the last whole epoch. Raises TrainerError while a training round is open, or where there is
    nothing to teach.
    """
    current = catalogue.policy(store)
    assert current is not None, "a round cannot exist before a policy"
    assembly = _taught(store, round_, config)
    if not assembly.segments:
        raise TrainerError(
            "there is no demonstration to learn from", hint="lego status says why its trials failed", fault="user"
        )
    with store.write():
        begun = rounds.latest(store, "train")
        if begun is not None and begun.open:
            raise TrainerError(
                f"training round {begun.ordinal} is open, and its trials are of the policy as it is",
                hint="lego rollout, lego verify and lego train close it, or lego train --give-up",
                fault="user",
            )
        step = training.begin_step(
            store, round_id=round_.id, kind="sft", policy_from=current.version, samples=assembly.rows
        )
    trainer = await _in_thread(_trainer, current, config, step, 1.0)
    keep = folder / f".sft-{step}"
    report = await _in_thread(run_sft, trainer, assembly.segments, config.sft, on_progress, keep)
    metrics = {**report.metrics, **assembly.metrics()}
    target = folder / str(current.version + 1)
    # The next step's objective is another one: its optimizer starts afresh.
    await _in_thread(trainer.save, target, notes={"step": step, "parent": current.version}, optimizer=False)
    outcome = _close(store, round_, config, Outcome(step, "done", "", None, metrics), current, target, "sft")
    shutil.rmtree(keep, ignore_errors=True)
    return outcome


def _spelt(worst: Sequence[Mapping[str, Any]], policy: PolicyRef) -> list[dict[str, Any]]:
    """The step's worst tokens, each with its text: what shows them later may have no policy any more."""
    tokenizer = load_tokenizer(policy.path)
    return [{**gap, "text": tokenizer.decode([gap["token"]], skip_special_tokens=False)} for gap in worst]


async def _in_thread(function: Callable[..., T], *args: Any, **named: Any) -> T:
    """As asyncio.to_thread, but nothing waits for the thread once the caller is cancelled: a step that is given up
    keeps no process from ending."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(function(*args, **named))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="lego-train", daemon=True).start()
    return await asyncio.wrap_future(future)


def _taught(store: Store, round_: Round, config: Config) -> Assembly:
    if config.sft.source == "solved":
        closed = [other for other in rounds.all_rounds(store) if other.kind == "train" and not other.open]
        return assemble_solved(store, closed)
    return assemble_demonstrations(store, round_)


def _step_trainer(
    policy: PolicyRef, config: Config, step: int, temperature: float, reference: str | None, folder: Path
) -> Trainer | GangTrainer:
    if config.train.backend == "torch":
        return _trainer(policy, config, step, temperature, reference)
    return GangTrainer(_setting(policy, config, step, temperature, reference), config.train, folder / f".step-{step}")


def _trainer(policy: PolicyRef, config: Config, step: int, temperature: float, reference: str | None = None) -> Trainer:
    return Trainer(**asdict(_setting(policy, config, step, temperature, reference)), section=config.train)


def _setting(policy: PolicyRef, config: Config, step: int, temperature: float, reference: str | None) -> Setting:
    engine, rollout = config.engine, config.rollout
    return Setting(
        policy_dir=policy.path, temperature=temperature, seed=config.run.seed + step, dtype=engine.dtype,
        threads=engine.threads, reference_dir=reference, device=engine.device,
        longest=rollout.max_total_tokens or rollout.max_turns * rollout.max_output_tokens,
    )  # fmt: skip


def _close(
    store: Store,
    round_: Round,
    config: Config,
    outcome: Outcome,
    parent: PolicyRef | None = None,
    target: Path | None = None,
    made_by: str = "",
) -> Outcome:
    """The new policy, the step's end and the round's end, all or nothing."""
    digest = folder_digest(target) if target else ""
    with store.write():
        policy = None
        if target is not None and parent is not None:
            policy = catalogue.add_policy(
                store, parent=parent.version, path=str(target), digest=digest, made_by=made_by
            )
        training.end_step(
            store, outcome.step, status=outcome.status, reason=outcome.reason,
            policy_to=policy.version if policy else None, metrics=outcome.metrics, worst=outcome.worst,
        )  # fmt: skip
        _close_round(store, round_, config, outcome.reason or outcome.status)
        if outcome.note:
            meta.event(store, "train", f"step {outcome.step}: {outcome.note}")
    routing.drop(store, round_.id)
    if policy:
        _retain(store, config)
    return replace(outcome, policy=policy)


def _close_round(store: Store, round_: Round, config: Config, reason: str) -> None:
    """Call it inside the transaction of what closes it."""
    rounds.close_round(store, round_.id, reason)
    if config.retention.tokens == "drop":
        calls.drop_tokens(store, round_.id)


def _put_down(
    store: Store, round_: Round, step: int, reason: str, metrics: Mapping[str, float], worst: list[dict[str, Any]]
) -> None:
    """A refused step, until it is taken again or given up."""
    with store.write():
        training.end_step(store, step, status="refused", reason=reason, policy_to=None, metrics=metrics, worst=worst)
        meta.event(store, "train", f"step {step}, of round {round_.ordinal}, was refused: {reason}")


def _retain(store: Store, config: Config) -> None:
    """Remove the checkpoints that the retention rule lets go: never the first, the newest, or one still to evaluate."""
    for row in removable(store, config.retention.policies):
        catalogue.mark_removed(store, row["version"])
        shutil.rmtree(row["path"], ignore_errors=True)
