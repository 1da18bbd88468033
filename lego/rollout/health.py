"""Stops a run that infrastructure faults are eating, and says what is likely behind them.

One fault is an accident and is retried. Many in a row are a state of the machine, and going on burns the night.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from lego.errors import SandboxError, TaskError, VerifierError
from lego.rundb import trials, verdicts
from lego.rundb.store import Store

INFRA_STREAK = 6
"""Infrastructure faults in a row after which going on would only burn time."""

_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"no space left|disk quota|GiB free|disk is full", re.I),
        "the disk is full: lego gc frees what no run needs; sandbox.store may name another disk",
    ),
    (
        re.compile(r"allocating lock|no free locks|num_locks|locks? .*exhaust", re.I),
        "podman has no lock left for another container: remove containers nobody needs, or raise num_locks"
        " (podman system renumber)",
    ),
    (
        re.compile(r"is not in the store|image not known|no such image", re.I),
        "an image is gone, by somebody's prune perhaps: lego build-images makes it again",
    ),
    (
        re.compile(r"cannot allocate memory|out of memory|\boom\b", re.I),
        "the machine is out of memory: fewer at once (rollout.concurrency, verify.concurrency), or less for each"
        " (sandbox.memory)",
    ),
    (
        re.compile(r"too many open files|resource temporarily unavailable|cannot fork", re.I),
        "the machine is out of processes or open files: fewer at once (rollout.concurrency), or higher ulimits",
    ),
    (
        re.compile(r"replies were lost|^engine\b|log-prob", re.I),
        "the engine fails: lego check --only engine probes it; its own log says more",
    ),
    (
        re.compile(r"socket of the proxy", re.I),
        "something removes the sockets under XDG_RUNTIME_DIR while trials run (a clean-up of old files?)",
    ),
    (
        re.compile(r"health check of the environment", re.I),
        "a task's own service does not come up in its sandbox: lego verify --oracle runs it without an agent",
    ),
    (
        re.compile(r"container vanished", re.I),
        "something else on this machine removes containers or kills them (a prune, another user's clean-up)",
    ),
    (
        re.compile(r"no (?:call|reply) reached", re.I),
        "the harness does not start, or does not find the proxy: lego check --harness NAME runs it by itself",
    ),
    (
        re.compile(r"service does not (?:answer|start)|did not answer|podman refused|cannot start a container", re.I),
        "podman itself fails: lego check --only sandbox probes it",
    ),
    (re.compile(r"\(traceback in .*\)$"), "a bug of lego's own: logs/errors.log in the run's folder has the traceback"),
)
_ADVICE = "lego try TASK --output shows one attempt whole; lego check probes what trials stand on"


def likely_cause(reasons: Sequence[str]) -> str:
    """What most of the reasons speak of, in words, with what to do; general advice where none is recognised."""
    known = Counter(next((words for pattern, words in _CAUSES if pattern.search(reason)), "") for reason in reasons)
    known.pop("", None)
    return f"likely cause: {known.most_common(1)[0][0]}" if known else _ADVICE


def refuse_hopeless_trials(store: Store, round_id: int) -> None:
    """Raises SandboxError when one trial after another fails on infrastructure, and it or TaskError when none is left
    and not one could be run."""
    streak = trials.infra_streak(store, round_id)
    if len(streak) >= INFRA_STREAK:
        raise SandboxError(
            f"{len(streak)} trials in a row failed on infrastructure, the last one: {streak[0]}",
            hint=likely_cause(streak),
        )
    if trials.counts(store, round_id).keys() == {"failed"}:
        kind = SandboxError if streak else TaskError
        reason = streak[0] if streak else trials.last_reason(store, round_id)
        raise kind(
            f"not one trial of the round could be run, the last one: {reason}",
            hint=likely_cause(streak) if streak else _ADVICE,
        )


def refuse_hopeless_verifications(store: Store, round_id: int) -> None:
    """Raises VerifierError when one verification after another fails on infrastructure."""
    refuse_streak(verdicts.infra_streak(store, round_id))


def refuse_streak(streak: Sequence[str]) -> None:
    """`streak`: the reasons of the infrastructure faults of verifications in a row, the last one first. Raises
    VerifierError when they are too many."""
    if len(streak) >= INFRA_STREAK:
        raise VerifierError(
            f"{len(streak)} verifications in a row failed on infrastructure, the last one: {streak[0]}",
            hint=likely_cause(streak),
        )
