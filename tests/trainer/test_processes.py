"""However many processes share a step, their gradients add up to that of one. With real processes: test_deepspeed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lego.objective.losses import Mean
from lego.trainer.policy import Policy
from lego.trainer.ranks import Alone, Gang
from tests.trainer.test_sharing import groups, grown, same, step


class OneOf(Gang):
    """A process by itself: what it does is a Gang's, and nothing is exchanged."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.first = rank, size, rank == 0

    collect = Alone.collect

    def total(self, metrics: Mapping[str, Mean]) -> dict[str, Mean]:
        return {"step/loss": Mean(), **metrics}


@pytest.fixture(scope="module")
def policy(tiny_policy):
    made = Policy(tiny_policy)
    # In one process everything counts; among several an item that is repeated does not.
    made.backward = lambda loss, counts=True: (loss if counts else loss * 0.0).backward()
    return made


@given(groups, st.integers(2, 4), st.sampled_from([20, 60, 100_000]))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_shares_of_all_processes_add_up(policy, shapes, processes, tokens):
    segments = grown(policy, shapes)
    whole = step(policy, segments, tokens=tokens)
    parts = []
    try:
        for rank in range(processes):
            policy.ranks = OneOf(rank, processes)
            parts.append(step(policy, segments, tokens=tokens))
    finally:
        policy.ranks = Alone()
    together = [sum(pulls) for pulls in zip(*(part[1] for part in parts), strict=True)]
    same(whole, (sum(part[0] for part in parts), together))
