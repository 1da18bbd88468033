"""The search for bugs that make good tasks: candidates in an order that the seed alone decides, kept in that order.

Several workers try candidates ahead of their turn; what is kept is decided in order, so that the number of workers
changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from lego.errors import SandboxError, StoreError
from lego.inject.baseline import Baseline
from lego.inject.bench import Worker
from lego.inject.edits import Mutation
from lego.inject.folder import Writer
from lego.inject.layout import Layout
from lego.inject.mutate import changes_program, mutations
from lego.inject.source import Project
from lego.inject.state import Decision, State
from lego.inject.trial import Bug, Candidate, Tried
from lego.together import together

_AHEAD = 4
"""Candidates that each worker may be ahead of the decisions."""
_LOSSES = 3
"""Containers that a candidate must lose to be at fault; all but the first answered without it just before."""
_PAUSES = (2.0, 10.0)
"""Seconds before a container that does not come up, or does not answer, is tried for again."""
_GOES_ON = "nothing was decided by it: once that is put right, the same command goes on where it was"

OpenWorker = Callable[[], AbstractAsyncContextManager[Worker]]


@dataclass(frozen=True)
class Told:
    """How far the search is: tasks kept, candidates decided and there are, and the newest decision."""

    kept: int
    decided: int
    candidates: int
    newest: Decision


def candidates(project: Project, layout: Layout, baseline: Baseline, seed: int) -> list[Candidate]:
    """Every mutation that some stable test reaches, in the seed's order: each function once before any twice, and a
    function's kinds of bug in turn."""
    rng = random.Random(f"{project.name}/{project.version}/{seed}")
    by_place: dict[tuple[str, str], dict[str, list[Candidate]]] = {}
    for path in layout.sources:
        if path not in baseline.lines:
            continue
        for mutation in mutations(path, project.tree[path].data):
            tied = baseline.tests_of(path, mutation.lines)
            if tied:
                kinds = by_place.setdefault((path, mutation.scope), {})
                kinds.setdefault(mutation.kind, []).append(Candidate(_id(mutation), mutation, tied))
    ranked: list[tuple[int, float, Candidate]] = []
    for kinds in by_place.values():
        for rank, candidate in enumerate(_in_turn(kinds, rng)):
            ranked.append((rank, rng.random(), candidate))
    return [candidate for _, _, candidate in sorted(ranked, key=lambda one: one[:2])]


def _in_turn(kinds: dict[str, list[Candidate]], rng: random.Random) -> list[Candidate]:
    for members in kinds.values():
        rng.shuffle(members)
    names = sorted(kinds)
    rng.shuffle(names)
    longest = max(map(len, kinds.values()))
    return [kinds[name][turn] for turn in range(longest) for name in names if turn < len(kinds[name])]


def _id(mutation: Mutation) -> str:
    text = f"{mutation.path}\0{mutation.start}\0{mutation.end}\0".encode() + mutation.text
    return hashlib.sha256(text).hexdigest()[:8]


class Search:
    """Decides candidates until `count` tasks are kept."""

    def __init__(
        self, project: Project, layout: Layout, baseline: Baseline, order: Sequence[Candidate], state: State,
        writer: Writer, out: Path, count: int, on_told: Callable[[Told], None],
    ) -> None:  # fmt: skip
        self._project, self._layout, self._baseline, self._order = project, layout, baseline, order
        self._state, self._writer, self._out, self._count = state, writer, out, count
        self._on_told = on_told
        self._tried: dict[int, tuple[Tried, float]] = {}
        self._next = self._turn = 0
        self._lines: set[tuple[str, tuple[int, int]]] = set()
        self._checked: dict[str, bool] = {}
        self._moved = asyncio.Condition()
        self.kept: list[str] = []

    async def run(self, open_worker: OpenWorker, jobs: int) -> list[str]:
        """The ids of the kept tasks, in order. Fewer than asked for where there are no more.

        Raises SandboxError where no container comes up.
        """
        self._decide()
        if not self._done():
            async with together() as group:
                for _ in range(jobs):
                    group.create_task(self._work(open_worker, jobs))
        return self.kept

    def _done(self) -> bool:
        return len(self.kept) >= self._count or self._turn >= len(self._order)

    async def _work(self, open_worker: OpenWorker, jobs: int) -> None:
        index, losses = await self._take(jobs), 0
        while index is not None:
            async with AsyncExitStack() as stack:
                worker = await self._worker(stack, open_worker, index if losses else None)
                index, losses = await self._with(worker, index, losses, jobs)

    async def _worker(self, stack: AsyncExitStack, open_worker: OpenWorker, suspect: int | None) -> Worker:
        """A fresh container, which has answered without the bug of a `suspect` candidate where there is one. What keeps
        it from coming up is the machine's doing: raises SandboxError."""
        for pause in (*_PAUSES, None):
            try:
                worker = await stack.enter_async_context(open_worker())
                if suspect is not None:
                    await self._bug(worker, suspect).control()
                return worker
            except (SandboxError, OSError) as error:
                await stack.aclose()
                if pause is None:
                    said = error.message if isinstance(error, SandboxError) else str(error)
                    raise SandboxError(f"the search for bugs stops: {said}", hint=_GOES_ON) from error
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _with(self, worker: Worker, index: int, losses: int, jobs: int) -> tuple[int | None, int]:
        """Try candidates, `index` first, until the container is lost or all is decided: which one is next, and how many
        containers it has lost. Only what a candidate does again and again is its own doing."""
        following: int | None = index
        while following is not None:
            begun, tried = time.monotonic(), None
            try:
                tried = await self._bug(worker, following).attempt()
            except SandboxError:
                losses += 1
                if losses < _LOSSES:
                    return following, losses
            await self._settle(following, tried or Tried("takes its container down"), time.monotonic() - begun)
            following, losses = await self._take(jobs), 0
            if tried is None:
                break
        return following, 0

    def _bug(self, worker: Worker, index: int) -> Bug:
        return Bug(worker, self._project, self._layout, self._baseline, self._order[index])

    async def _take(self, jobs: int) -> int | None:
        """The next candidate to try, None when all is decided."""
        async with self._moved:
            while True:
                while self._next < len(self._order) and self._settled(self._next):
                    self._next += 1
                if self._done() or self._next >= len(self._order):
                    return None
                if self._next < self._turn + _AHEAD * jobs:
                    self._next += 1
                    return self._next - 1
                await self._moved.wait()

    def _settled(self, index: int) -> bool:
        candidate = self._order[index]
        return candidate.id in self._state.decisions or bool(self._untried(candidate))

    def _untried(self, candidate: Candidate) -> str:
        """Why a candidate need not be tried at all; empty where it must be."""
        mutation = candidate.mutation
        if (mutation.path, mutation.lines) in self._lines:
            return "beside another"
        if candidate.id not in self._checked:
            self._checked[candidate.id] = changes_program(self._project.tree[mutation.path].data, mutation)
        return "" if self._checked[candidate.id] else "not another program"

    async def _settle(self, index: int, tried: Tried, seconds: float) -> None:
        async with self._moved:
            self._tried[index] = (tried, seconds)
            try:
                self._decide()
            except OSError as error:
                raise StoreError(f"a task cannot be written into {self._out}: {error}", hint=_GOES_ON) from error
            self._moved.notify_all()

    def _decide(self) -> None:
        """Decide as many candidates as can be, in order."""
        while self._turn < len(self._order) and not self._done():
            candidate = self._order[self._turn]
            known = self._state.decisions.get(candidate.id)
            if known is None and (reason := self._untried(candidate)):
                known = Decision(candidate.id, reason, candidate.mutation.kind)
                self._state.decide(known)
            if known is None:
                if self._turn not in self._tried:
                    return
                tried, seconds = self._tried.pop(self._turn)
                name = tried.task.id if tried.task else ""
                known = Decision(candidate.id, tried.reason, candidate.mutation.kind, name, round(seconds, 2))
                if tried.task is not None:
                    self._writer.write(tried.task, self._out)
                self._state.decide(known)
            self._turn += 1
            if known.task:
                self.kept.append(known.task)
                self._lines.add((candidate.mutation.path, candidate.mutation.lines))
            self._on_told(Told(len(self.kept), self._turn, len(self._order), known))
