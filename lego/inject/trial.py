"""One bug tried out: is it noticed, by which tests, can it be told without its place, is there a way back?"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lego.errors import SandboxError
from lego.inject import cut, instruct, patch
from lego.inject.baseline import Baseline
from lego.inject.bench import Ask, Ran, Worker
from lego.inject.edits import Mutation
from lego.inject.folder import Injected, solve_script
from lego.inject.layout import Layout
from lego.inject.recipe import APP
from lego.inject.source import Project

TEST_LIMIT = 5.0
"""Seconds of CPU a test may take in the search; a bug that makes one hang is not kept: it would cost every grading."""
_SAMPLE = 60
_LARGEST_SHARE = 0.5
_SOLVE = "/lego/solve.sh"


@dataclass(frozen=True)
class Candidate:
    """`id` is short and follows from the mutation; `tied` are the stable tests that run its lines."""

    id: str
    mutation: Mutation
    tied: tuple[str, ...]


@dataclass(frozen=True)
class Tried:
    """`task` where the bug can be kept; otherwise `reason` says why not."""

    reason: str
    task: Injected | None = None


class Bug:
    """A project with one candidate put in, and the worker that it is tried out on."""

    def __init__(
        self, worker: Worker, project: Project, layout: Layout, baseline: Baseline, candidate: Candidate
    ) -> None:
        self._worker, self._project, self._layout, self._baseline = worker, project, layout, baseline
        self._candidate = candidate
        self._mutation = candidate.mutation
        self._original = project.tree[self._mutation.path].data
        self._mutated = self._mutation.apply(self._original)

    async def attempt(self) -> Tried:
        """The search's few tests, then the whole suite once, then the proof of what is kept."""
        quick = await self._run(self._sampled())
        if reason := _unfit(quick):
            return Tried(reason)
        if not _failing(quick, self._sampled()):
            return Tried("no test notices")
        whole = await self._run(self._baseline.stable, detail=True)
        if reason := _unfit(whole):
            return Tried(reason)
        failing = _failing(whole, self._baseline.stable)
        if not failing:
            return Tried("flaky")
        if len(failing) > _LARGEST_SHARE * len(self._baseline.stable):
            return Tried("breaks too much")
        text = self._instruction(whole, failing)
        if text is None:
            return Tried("cannot be told")
        visible = self._visible(whole, failing)
        if visible is None:
            return Tried("its tests cannot be taken out")
        reason = await self._check(failing, visible, text)
        if reason:
            return Tried(reason)
        gone = set(failing)
        return Tried(
            "kept",
            Injected(
                f"{self._project.name}-{self._candidate.id}", self._mutation, text, failing,
                tuple(name for name in self._baseline.stable if name not in gone), self._mutated, visible,
                self._patch(),
            ),
        )  # fmt: skip

    def _instruction(self, ran: Ran, failing: Sequence[str]) -> str | None:
        return instruct.instruction(self._project, self._mutation, _told(ran, failing), len(failing))

    async def control(self) -> None:
        """The search's few tests without the bug. Raises SandboxError where the container does not get through them."""
        if (await self._run(self._sampled(), mutated=False)).hung:
            raise SandboxError("a fresh container of the search does not get through the project's tests as they stand")

    def _patch(self) -> bytes:
        return patch.unified(self._mutation.path, self._mutated, self._original)

    def _sampled(self) -> tuple[str, ...]:
        tied = self._candidate.tied
        if len(tied) <= _SAMPLE:
            return tied
        chosen = set(random.Random(self._candidate.id).sample(tied, _SAMPLE))
        return tuple(name for name in tied if name in chosen)

    async def _check(self, failing: Sequence[str], visible: Mapping[str, bytes], text: str) -> str:
        """Why the task does not hold: what an agent sees shows the bug, or the outcomes do not repeat."""
        files = tuple(dict.fromkeys(name.partition("::")[0] for name in failing))
        seen = await self._worker.tests(
            Ask(files, limit=TEST_LIMIT, budget=self._budget(), plugins=self._baseline.plugins),
            {self._mutation.path: self._mutated, **visible},
        )
        known = self._baseline.excluded
        if seen.hung or seen.uncollected or any(name not in known for name in set(seen.tests) - seen.passed()):
            return "what is left of its tests shows it"
        again = await self._run(failing, detail=True)
        if again.passed() or self._instruction(again, failing) != text:
            return "flaky"
        script = solve_script(self._patch())
        place = f"{APP}/{self._mutation.path}"
        rc, held, _ = await self._worker.command(
            ["/bin/sh", _SOLVE], {place: self._mutated, _SOLVE: script}, {"APP": APP}, [place]
        )
        if rc != 0 or held.get(place) != self._original:
            return "its patch does not apply"
        gold = await self._run(failing, mutated=False)
        return "" if gold.passed() == set(failing) else "flaky"

    async def _run(self, names: Sequence[str], *, detail: bool = False, mutated: bool = True) -> Ran:
        files = tuple(dict.fromkeys(name.partition("::")[0] for name in names))
        ask = Ask(files, names, TEST_LIMIT, self._budget(), True, detail, plugins=self._baseline.plugins)
        return await self._worker.tests(ask, {self._mutation.path: self._mutated} if mutated else {})

    def _budget(self) -> float:
        return 60.0 + 4 * self._baseline.seconds

    def _visible(self, whole: Ran, failing: Sequence[str]) -> dict[str, bytes] | None:
        """The agent's versions of the files that the failing tests are written in. A file whose tests cannot be cut
        out of it is left empty; None where that would take more than tests away."""
        names: dict[str, set[str]] = {}
        emptied: set[str] = set()
        for name in failing:
            home = whole.tests.get(name, {}).get("home")
            own = name.partition("::")[0]
            if home and home[0] in self._layout.suite and "<locals>" not in home[1]:
                names.setdefault(home[0], set()).add(home[1].replace(".", "::"))
            else:
                emptied.add(own)
        visible: dict[str, bytes] = {}
        for path, cut_out in names.items():
            left = cut.without(path, self._project.tree[path].data, cut_out)
            if left is None:
                emptied.add(path)
            else:
                visible[path] = left
        if not emptied <= set(self._layout.tests):
            return None
        return {**visible, **dict.fromkeys(emptied, b"")}


def _unfit(ran: Ran) -> str:
    if ran.hung or any("slow" in said for said in ran.tests.values()):
        return "hangs"
    return "does not load" if ran.uncollected else ""


def _failing(ran: Ran, names: Sequence[str]) -> tuple[str, ...]:
    passed = ran.passed()
    return tuple(name for name in names if name not in passed)


def _told(whole: Ran, failing: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    """What the failing tests showed, one test of each function before a second one."""
    seen: dict[str, int] = {}
    ranked: list[tuple[int, int, str]] = []
    for position, name in enumerate(failing):
        function = name.partition("[")[0]
        ranked.append((seen.get(function, 0), position, name))
        seen[function] = seen.get(function, 0) + 1
    said = [(name, whole.tests.get(name, {}).get("failure")) for _, _, name in sorted(ranked)]
    return [(name, failure) for name, failure in said if failure]
