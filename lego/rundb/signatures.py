"""What looks wrong in a run: known signatures of trouble, each with what to do."""

from __future__ import annotations

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
    return found
