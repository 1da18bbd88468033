"""Stored calls as the pure packages take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lego.rundb.store import Row
from lego.trajectory.arrays import Fate
from lego.trajectory.tree import CallRow


def call_rows(recorded: Iterable[Row]) -> Iterator[CallRow]:
    """Rows of `calls.of_trial`, without rejected ones and with their token data, for `tree.rebuild`."""
    for row in recorded:
        yield CallRow(
            seq=row["seq"], parent_seq=row["parent_seq"], shared=row["shared"],
            added_prompt_ids=row["added_prompt_ids"], completion_ids=row["completion_ids"], logprobs=row["logprobs"],
            finish=row["finish"], fate=Fate(row["fate"]), kind=row["kind"], sampler=row["sampler"],
            policy_version=row["policy_version"],
        )  # fmt: skip
