"""What looks wrong in a run: known signatures of trouble, each with what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lego.rundb import training
from lego.rundb.rounds import all_rounds
from lego.rundb.store import Store
from lego.rundb.summary import summarise

_RECENT = 3


def look(store: Store) -> list[str]:
    """One line a finding, the worst first; empty when nothing is recognised."""
    found: list[str] = []
    for image in store.rows("SELECT name, reason, log_path FROM images WHERE status = 'failed' LIMIT 3"):
        found.append(f"image {image['name']} failed: {image['reason']} ({image['log_path']})")
    for round_ in all_rounds(store)[-_RECENT:]:
        summary = summarise(store, round_)
        where = f"{round_.kind} round {round_.ordinal}"
        if summary.infra:
            reason = store.value(
                "SELECT reason FROM trials WHERE round_id = ? AND fault = 'infra' ORDER BY id DESC LIMIT 1",
                (round_.id,),
            )
            found.append(f"{where}: {summary.infra} attempts lost to infrastructure, the last one: {reason}")
        if summary.outcomes.get("error"):
            found.append(
                f"{where}: {summary.outcomes['error']} submissions could not be verified (lego verify tries again)"
            )
        if summary.finished >= 4 and summary.endings.get("timeout", 0) * 2 > summary.finished:
            found.append(f"{where}: more than half of the trials ran out of time (sandbox.timeout)")
    for step in training.steps(store)[-_RECENT:]:
        if step["status"] == "refused":
            found.append(f"step {step['step']} was refused: {step['reason']}")
        groups = step["metrics"].get("group/graded")
        if groups and step["metrics"].get("group/flat") == groups:
            found.append(f"step {step['step']}: in every group all rewards were equal, so nothing could be learnt")
        found += [f"step {step['step']}: {words}" for words in _mismatch(step["metrics"])]
    return found


def _mismatch(metrics: Mapping[str, float]) -> Iterator[str]:
    """Signs, well below refusal, that trainer and engine are not the same policy."""
    advice = "the corrections of docs/objective.md help; the cause is better"
    if metrics.get("proof/ess", 1.0) < 0.3:
        yield f"effective sample size {metrics['proof/ess']:.2f} of the engine's tokens ({advice})"
    if abs(metrics.get("proof/kl", 0.0)) > 0.1:
        yield f"trainer and engine are {metrics['proof/kl']:+.2f} nats a token apart ({advice})"
    if metrics.get("proof/chi2", 0.0) > 1.0:
        yield f"chi-square {metrics['proof/chi2']:.2f} between trainer and engine ({advice})"
    if not 0.5 <= metrics.get("correction/weight", 1.0) <= 2.0:
        yield f"a token's correction is {metrics['correction/weight']:.2f} on the average ({advice})"
