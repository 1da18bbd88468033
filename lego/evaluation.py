"""What a number of solved trials says about a policy: rates, intervals, pass@k, paired comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist


def wilson(solved: float, trials: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion, (low, high) within [0, 1]; (0, 1) when there are no trials.

    `trials` may be an effective number (see `solve_rate`), so both counts may be fractions.
    Source: Wilson 1927, JASA 22:209-212.
    """
    if not 0 <= solved <= trials:
        raise ValueError(f"{solved} solved of {trials} trials")
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = solved / trials
    centre = rate + z * z / (2 * trials)
    margin = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    low = 0.0 if solved == 0 else max(0.0, (centre - margin) / scale)
    high = 1.0 if solved == trials else min(1.0, (centre + margin) / scale)
    return low, high


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k trials solves a task, c of n trials having solved it.

    Source: Chen et al. 2021, arXiv:2107.03374, eq. 1: 1 - C(n - c, k) / C(n, k). Needs 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {c} solved in {n} trials")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


@dataclass(frozen=True)
class Rate:
    """A solve rate: `mean` over tasks of each task's own rate, and its interval [low, high]."""

    mean: float
    low: float
    high: float
    tasks: int
    trials: int


def solve_rate(outcomes: Mapping[str, Sequence[bool]], confidence: float = 0.95) -> Rate:
    """pass@1 over tasks with a Wilson interval.

    outcomes: task id -> one bool a graded trial; tasks without a graded trial are left out.
    Trials of one task are alike, so the interval is that of an effective number of trials: p(1-p) over the variance
    of the mean of task rates, kept within [tasks, trials] (Kish 1965, the design effect). With one trial a task this
    is the plain Wilson interval.
    """
    rates = [sum(trials) / len(trials) for trials in outcomes.values() if trials]
    tasks, total = len(rates), sum(len(trials) for trials in outcomes.values())
    if not tasks:
        return Rate(0.0, 0.0, 1.0, 0, 0)
    mean = sum(rates) / tasks
    effective = float(tasks)
    if total > tasks > 1:
        variance = sum((rate - mean) ** 2 for rate in rates) / (tasks - 1) / tasks
        effective = mean * (1 - mean) / variance if variance > 0 else float(total)
        effective = min(max(effective, float(tasks)), float(total))
    low, high = wilson(mean * effective, effective, confidence)
    return Rate(mean, low, high, tasks, total)


def mean_pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> float | None:
    """pass@k averaged over tasks, each (trials, solved); None when no task has k trials."""
    values = [pass_at_k(n, c, k) for n, c in counts if n >= k]
    return sum(values) / len(values) if values else None


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact p-value that `better` and `worse` are equally likely; ties are left out before.

    Comparing two policies on the same tasks this is McNemar's exact test: `better` = tasks that only the new one
    solves, `worse` = tasks that only the old one solves. 1.0 when they never differ.
    Source: McNemar 1947, Psychometrika 12:153-157, in its exact binomial form.
    """
    if better < 0 or worse < 0:
        raise ValueError(f"{better} better, {worse} worse")
    n = better + worse
    tail = sum(math.comb(n, i) for i in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / 2**n)
