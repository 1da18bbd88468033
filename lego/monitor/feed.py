"""What the monitor knows of a run, kept up to date from its database; counts of closed rounds are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lego.report.curves import Curves
from lego.rundb import training, views
from lego.rundb.owner import is_dead
from lego.rundb.store import Row, Store, now
from lego.rundb.views import RoundView


@dataclass(frozen=True)
class Snapshot:
    """The run at one moment. rounds: in order, counted. step: the newest one. evals: as `training.evals`.
    holders: (what, owner, until) of everything leased now."""

    rounds: tuple[RoundView, ...] = ()
    step: Row | None = None
    evals: tuple[Row, ...] = ()
    policy: int | None = None
    images: dict[str, int] = field(default_factory=dict)
    holders: tuple[tuple[str, str, float], ...] = ()
    at: float = 0.0

    @property
    def current(self) -> RoundView | None:
        """The open round, else the newest."""
        return next((round_ for round_ in reversed(self.rounds) if round_.open), next(reversed(self.rounds), None))

    def running(self, at: float) -> list[str]:
        """The stages that a living process is at, in the order of the circle."""
        alive = {what for what, owner, until in self.holders if until >= at and not is_dead(owner)}
        names = {"rollout", "verify", "train", "sft"} & alive
        return [name for name in ("rollout", "verify", "sft", "train") if name in names]


class Feed:
    """Reads the run for the monitor."""

    def __init__(self, store: Store, clock: Callable[[], float] = now) -> None:
        self.store = store
        self.clock = clock
        self.curves = Curves(store)
        self._version = -1
        self._counted: dict[int, RoundView] = {}
        self._verdict = 0

    def changed(self) -> bool:
        """Whether anything was written since the last refresh."""
        return views.data_version(self.store) != self._version

    def refresh(self) -> Snapshot:
        # Before reading: what is written meanwhile is then seen as a change next time.
        self._version = views.data_version(self.store)
        with views.snapshot(self.store):
            return self._read()

    def _read(self) -> Snapshot:
        store = self.store
        touched = views.rounds_with_verdicts_after(store, self._verdict) if self._verdict else set()
        self._verdict = views.newest_verdict(store)
        rounds = []
        for head in views.round_heads(store):
            known = self._counted.get(head.id)
            if known is None or known.open or head.open or head.id in touched:
                known = self._counted[head.id] = views.counted(store, head)
            rounds.append(known)
        holders = [holder for round_ in rounds for holder in round_.owners]
        for step in views.open_steps(store):
            if step["owner"] is not None:
                holders.append(("sft" if step["kind"] == "sft" else "train", step["owner"], step["until"]))
        return Snapshot(
            tuple(rounds),
            views.last_step(store),
            tuple(training.evals(store)),
            views.newest_policy(store),
            views.images_by_status(store),
            tuple(holders),
            self.clock(),
        )
