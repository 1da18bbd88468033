"""What a project's tests do before any bug is put in, and which lines each of them runs. Measured once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from lego.errors import TaskError
from lego.inject.bench import Ask, Ran, Worker
from lego.inject.layout import Layout
from lego.inject.source import Project, normalised

_SEARCH_BUDGET = 900.0
_TOLD = 5


@dataclass(frozen=True)
class Baseline:
    """`stable`: the tests that passed in every run, in their order. `excluded`: the others, and what they did.
    `uncollected`: files that could not be loaded, and why. `seconds`: of one run of the whole suite. `lines`: file to
    line to the numbers of the stable tests that ran it. `plugins`: pytest plug-ins that the tests may need."""

    stable: tuple[str, ...]
    excluded: Mapping[str, str]
    uncollected: Mapping[str, str]
    seconds: float
    lines: Mapping[str, Mapping[int, tuple[int, ...]]]
    plugins: tuple[str, ...]

    def tests_of(self, path: str, lines: tuple[int, int]) -> tuple[str, ...]:
        """The stable tests that run any line from the first to the last of `lines`."""
        of_file = self.lines.get(path, {})
        numbers = {number for line in range(lines[0], lines[1] + 1) for number in of_file.get(line, ())}
        return tuple(self.stable[number] for number in sorted(numbers))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Baseline:
        """Raises ValueError, KeyError or TypeError on anything else."""
        raw = json.loads(text)
        lines = {
            path: {int(line): tuple(numbers) for line, numbers in found.items()} for path, found in raw["lines"].items()
        }
        return cls(
            tuple(raw["stable"]), raw["excluded"], raw["uncollected"], raw["seconds"], lines, tuple(raw["plugins"])
        )


async def measure(worker: Worker, project: Project, layout: Layout, limit: float) -> Baseline:
    """Run the suite twice as it is and once under coverage.

    `limit`: seconds of CPU a test may take; a slower one is excluded. Raises TaskError where no test is found, or none
    passes each time, or where a run does not come to its end.
    """
    plugins = tuple(name for name, package in worker.facts["plugins"] if normalised(package) != project.name)
    ask = Ask(layout.tests, limit=limit, budget=_SEARCH_BUDGET, plugins=plugins)
    first = await worker.tests(ask)
    _need_end(project, first, "as it stands")
    if not first.tests:
        raise TaskError(f"{project.name}: no tests found that can be run here", hint=_hint(first), fault="user")
    second = await worker.tests(ask)
    _need_end(project, second, "the second time")
    traced = await worker.tests(
        Ask(layout.tests, limit=4 * limit, budget=_SEARCH_BUDGET, plugins=plugins, coverage=True)
    )
    _need_end(project, traced, "under coverage")
    excluded: dict[str, str] = {}
    for name in dict.fromkeys((*first.tests, *second.tests)):
        said = [run.tests.get(name, {"outcome": "missing"})["outcome"] for run in (first, second)]
        if said != ["passed", "passed"]:
            excluded[name] = said[0] if said[0] == said[1] else f"flaky: {' then '.join(said)}"
    stable = tuple(name for name in first.tests if name not in excluded)
    if not stable:
        what = ", ".join(f"{count} {outcome}" for outcome, count in Counter(excluded.values()).most_common(3))
        hint = (
            f"the first is {next(iter(excluded))}; tests that need the network or write into the repository fail in "
            "the sandbox, and what tests need beside the project is named with --with PACKAGE"
        )
        tests = f"{len(first.tests)} tests" if len(first.tests) > 1 else "one test"
        raise TaskError(
            f"{project.name}: none of its {tests} passes each time as it stands ({what})", hint=hint, fault="user"
        )
    number_of = {name: number for number, name in enumerate(stable)}
    lines = {
        path: {line: tuple(number_of[name] for name in names if name in number_of) for line, names in found.items()}
        for path, found in traced.lines.items()
        if path in layout.sources
    }
    seconds = sum(said["seconds"] for said in second.tests.values())
    return Baseline(stable, excluded, dict(first.uncollected), seconds, lines, plugins)


def _need_end(project: Project, ran: Ran, how: str) -> None:
    """What a run that was broken off did not say is taken for nothing: it is no measure."""
    if ran.hung:
        last = f"the last they said: {ran.log[-300:].strip()!r}"
        raise TaskError(
            f"{project.name}: its tests did not end by themselves, {how}; {last}",
            hint=f"all of them may take {_SEARCH_BUDGET:.0f} s, and a test that takes the whole process down cannot be "
            "left out; name a folder without it", fault="user",
        )  # fmt: skip


def _hint(ran: Ran) -> str:
    if ran.uncollected:
        told = [f"{path}: {why}" for path, why in list(ran.uncollected.items())[:_TOLD]]
        return "\n".join([*told, "what tests import beside the project is named with --with PACKAGE"])
    return "tests are files test_*.py or *_test.py for pytest; many sdists leave them out: name a checkout's folder"
