"""One task's fresh containers: its solution made, its tests run on what was handed in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lego.clock import TrialClock
from lego.errors import SandboxError, Unfit, VerifierError
from lego.sandbox.container import Box, open_box
from lego.sandbox.create import BoxSpec, Limits
from lego.sandbox.ending import Ending, refuse_unhealthy
from lego.sandbox.layers import Entry
from lego.sandbox.podman import Podman
from lego.sandbox.rootfs import Carried
from lego.sandbox.submission import Submission, collect, task_roots
from lego.tasks.task import Environment, File, Stage, Task, Tree
from lego.verifier.graders import READ_CAP, REWARD_JSON, REWARD_TEXT, TEST_LOG
from lego.verifier.graders_open import open_grader
from lego.verifier.witness import Seen, Witness

_LOG_CAP = 1 << 20
_TESTS_CAP = 4 << 20
_REWARDS = (REWARD_JSON, REWARD_TEXT)
_SCRIPT = "/tests/test.sh"
_LOGS = ("/logs/verifier", "/logs/agent", "/logs/artifacts")
# Enough for a test.sh to run the code under test as another user than the one that writes the reward.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
_PYCACHE = "/tmp/lego-pycache"
_SHOWN = 20


@dataclass(frozen=True)
class Place:
    """Where containers stand: an image, and what they may use."""

    image: str
    limits: Limits


@dataclass(frozen=True)
class Run:
    """One run of the tests: `reward` None where they gave none, and `why`. `seen`: what it showed from beside."""

    reward: float | None
    why: str
    ending: Ending
    log: bytes
    seen: Seen
    detail: Mapping[str, Any] = field(default_factory=dict)


class Bench:
    """`agents` is where the agent works, `tests_in` where the tests run: the same, but for a separate verifier."""

    def __init__(
        self,
        podman: Podman,
        task: Task,
        agents: Place,
        tests_in: Place,
        timeout: float,
        run_id: str = "",
        trial: str = "",
    ) -> None:
        """`timeout` in seconds of wall clock for the tests; `run_id` and `trial` label the containers."""
        self.task, self._podman, self._agents, self._tests_in = task, podman, agents, tests_in
        self._timeout, self._run_id, self._trial = timeout, run_id, trial

    async def gold(self) -> Submission:
        task = self.task
        stages = task.stages or (
            Stage(solution=task.solution, solution_env=task.solution_env, agent_timeout=task.agent_timeout),
        )
        if any("solve.sh" not in stage.solution for stage in stages):
            raise VerifierError(
                f"task {task.id} has no solution/solve.sh",
                fault="task",
                hint="a task without a solution cannot be checked, and is not trained on",
            )
        # The files of steps are laid in when their step begins.
        spec = replace(self.agents_spec("oracle"), several=bool(task.collect or task.stages))
        spec = replace(spec, workspace=_less(spec.workspace, stages))
        async with open_box(self._podman, spec) as box:
            for stage in stages:
                await self._solve(box, stage)
            await run_hooks(box, task)
            return await collect(
                box, task_roots(self._podman, task, self._agents.image), trusted=True, built=bool(task.separate)
            )

    async def _solve(self, box: Box, stage: Stage) -> None:
        task = self.task
        box.put(stage.files)
        box.empty(["/solution"])
        box.put(_under("/solution", stage.solution, "solve.sh"))
        box.lay([Entry("/logs/agent", "dir", 0o777), *published(task)])
        env = {"DEBIAN_FRONTEND": "noninteractive", **stage.solution_env}
        clock = TrialClock(max(self._timeout, stage.agent_timeout or 0))
        try:
            ending = await box.run(["/solution/solve.sh"], env=env, clock=clock, stage=stage)
        except Unfit as error:
            # No agent had a part in what lies there.
            raise SandboxError(f"the solution of task {task.id} cannot begin: {error.message}", fault="task") from error
        refuse_unhealthy(ending, "the solution")
        if ending.reason == "lost":
            raise SandboxError(f"the container vanished while the solution of task {task.id} ran")
        if ending.reason != "exit":
            raise VerifierError(f"the solution of task {task.id} did not end by itself: {ending.reason}", fault="task")

    async def tests(self, submission: Submission) -> Run:
        """One run of the hidden tests on a submission, in a fresh container. Raises SandboxError where podman fails."""
        try:
            return await self._tests(submission)
        except Unfit as error:
            why = f"the tests cannot be laid over what was handed in: {error.message}"
            return Run(None, why, Ending(None, "exit", b"", b"", 0.0), b"", Seen(None))

    async def _tests(self, submission: Submission) -> Run:
        task = self.task
        grader = open_grader(task)
        async with open_box(self._podman, self.tests_spec("verify")) as box:
            carried = await self.prepare(box, submission)
            hidden = {} if task.separate and task.separate.bundled else hidden_tests(task)
            box.put(grader.files())
            box.lay([Entry(path, "deleted") for path in (REWARD_JSON, REWARD_TEXT, TEST_LOG)])
            witness = Witness()
            box.lay(witness.entries())
            env = {"PYTHONPYCACHEPREFIX": _PYCACHE, **task.verifier_env, **grader.env()}
            env |= witness.env(env.get("PYTHONPATH") or self._python_path())
            command = witness.command(_SCRIPT, TEST_LOG)
            ending = await box.run(command, env=env, clock=TrialClock(self._timeout), output_limit=64 << 10)
            if ending.reason == "lost":
                raise SandboxError("the container vanished while the tests ran")
            files = await box.read([*grader.reads, TEST_LOG, witness.report], READ_CAP)
            now = await box.read(sorted(hidden), _TESTS_CAP)
            rewritten = [path for path, file in sorted(hidden.items()) if file.data[:_TESTS_CAP] != now[path]]
            if not hidden:
                rewritten = await _rewritten(box)
        # In a thread, here and below: reading a report or a log of the size that is allowed takes a second, and others
        # wait for this one's loop.
        seen = replace(
            await asyncio.to_thread(witness.read, ending.stdout, files[witness.report]),
            rewritten=tuple(rewritten),
            rewards=tuple(
                path for path in _REWARDS if files.get(path) is not None and not _spoken_of(path, task.tests)
            ),
        )
        reward = await asyncio.to_thread(grader.reward, files, seen.rc)
        detail: dict[str, Any] = {"rc": ending.rc, "ending": ending.reason, **dict(ending.evidence)}
        detail |= {"seen": seen.as_dict(), **reward.detail}
        if reward.parts:
            detail["parts"] = dict(reward.parts)
        if carried is not None:
            detail["carried"] = len(carried.entries)
            if carried.left_out:
                detail["not_carried"] = carried.left_out[:_SHOWN]
        log = (files[TEST_LOG] or ending.stdout + ending.stderr)[:_LOG_CAP]
        if ending.reason == "unhealthy":
            words = " ".join(ending.stdout[-300:].decode(errors="replace").split())
            return Run(None, f"the health check failed before the tests began: {words}", ending, log, seen, detail)
        # A hang is no verdict, even if some reward was written before it: the tests were not done.
        if ending.reason != "exit":
            return Run(None, f"the tests did not end by themselves: {ending.reason}", ending, log, seen, detail)
        # So is a test.sh that was killed, whatever it, or its killer, had written by then.
        if seen.rc is None:
            return Run(None, "the tests did not end by themselves: test.sh was killed", ending, log, seen, detail)
        return Run(reward.value, reward.why, ending, log, seen, detail)

    def agents_spec(self, kind: str) -> BoxSpec:
        """A container as the agent's."""
        return self._spec(self.task.environment, self._agents, self.task.agent_user or "", kind)

    def tests_spec(self, kind: str) -> BoxSpec:
        """A container that tests run in."""
        task = self.task
        environment = task.separate.environment if task.separate else task.environment
        return self._spec(environment, self._tests_in, task.verifier_user or "", kind, CAPABILITIES)

    async def prepare(self, box: Box, submission: Submission) -> Carried | None:
        """Lay into a container for tests what was handed in, then the hidden tests. Returns what was carried over from
        another container, None where the submission is laid over the agent's own image."""
        separate = self.task.separate
        carried = None
        if separate is None:
            submission.apply_to(box)
        else:
            carried = await self._carried(submission)
            box.empty(carried.folders)
            box.lay(carried.entries, handed_in=True)
        if separate is None or not separate.bundled:
            box.put(hidden_tests(self.task))
        else:
            box.allow(_SCRIPT)
        box.lay([Entry(path, "dir", 0o777) for path in _LOGS])
        return carried

    async def _carried(self, submission: Submission) -> Carried:
        """The artifacts, out of a container of the agent's image with the submission applied, in which nothing runs."""
        task = self.task
        assert task.separate is not None
        async with open_box(self._podman, self.agents_spec("carry")) as box:
            submission.apply_to(box)
            await box.rest()
            artifacts = task.separate.artifacts
            return await box.tree([one.source for one in artifacts], [one.exclude for one in artifacts])

    def _python_path(self) -> str:
        """PYTHONPATH as the container itself has it."""
        task = self.task
        environment = (task.separate.environment if task.separate else task.environment).env
        image = self._podman.image(self._tests_in.image).env
        return environment.get("PYTHONPATH") or image.get("PYTHONPATH", "")

    def nothing(self) -> Submission:
        return Submission(task_roots(self._podman, self.task, self._agents.image))

    async def control(self) -> str | None:
        """Why the same tests give no reward now on what is known to be sound; None where they do. Raises SandboxError
        where infrastructure fails, or its health check as well."""
        try:
            run = await self.tests(await self.gold() if self.task.solution else self.nothing())
        except VerifierError as error:
            return error.message
        refuse_unhealthy(run.ending, "the tests")
        return run.why if run.reward is None else None

    async def gold_seen(self) -> Seen | None:
        """What the tests show when they pay for the task's own solution; None where there is none, or they do not.
        Raises SandboxError where infrastructure fails: that says nothing of the solution."""
        if not self.task.solution:
            return None
        try:
            run = await self.tests(await self.gold())
        except VerifierError:
            return None
        refuse_unhealthy(run.ending, "the tests")
        return run.seen if run.reward is not None and run.reward >= 1.0 else None

    def _spec(
        self, environment: Environment, place: Place, user: str, kind: str, capabilities: Sequence[str] = ()
    ) -> BoxSpec:
        return BoxSpec(
            place.image,
            place.limits,
            env=environment.env,
            user=user,
            workdir=environment.workdir,
            workspace=environment.workspace,
            run_id=self._run_id,
            trial=self._trial,
            labels={"lego.kind": kind},
            capabilities=capabilities,
            health=environment.health,
        )


def _less(workspace: Tree, stages: Sequence[Stage]) -> dict[str, File]:
    """A workspace without the files of steps."""
    return {path: file for path, file in workspace.items() if not any(path in stage.files for stage in stages)}


async def run_hooks(box: Box, task: Task) -> None:
    """Run a task's collect commands in the agent's container, now that the agent is done; how they end means nothing,
    nor does it that one cannot begin in what the agent left.

    Raises SandboxError where the container is lost or podman fails.
    """
    for hook in task.collect:
        try:
            ending = await box.run(
                ["/bin/sh", "-c", hook.command], clock=TrialClock(hook.timeout), output_limit=64 << 10
            )
        except Unfit:
            continue
        if ending.reason == "lost":
            raise SandboxError("the container vanished while verifier.collect ran")


def published(task: Task) -> list[Entry]:
    """The folders that the agent's container has for what it publishes."""
    places = [root for root in task.environment.roots if root.startswith("/logs/artifacts")]
    return [Entry(path, "dir", 0o777) for path in (["/logs/artifacts"] if places else [])]


async def _rewritten(box: Box) -> list[str]:
    """Files of the tests that the image brought along and that are others now."""
    found = await box.changes(["/tests"])
    return [
        entry.path
        for entry in found.entries
        if entry.path in found.originals and entry.kind != "dir" and entry.data != found.originals[entry.path].data
    ]


def hidden_tests(task: Task) -> dict[str, File]:
    """A task's tests by the absolute paths that they have at verification."""
    return _under("/tests", task.tests, "test.sh")


def _spoken_of(path: str, tests: Tree) -> bool:
    """Whether some file of the tests names a file; of tests that only an image holds nothing is known."""
    return not tests or any(path.rpartition("/")[2].encode() in file.data for file in tests.values())


def _under(folder: str, tree: Tree, script: str) -> dict[str, File]:
    """A tree's files below an absolute folder, the script executable."""
    return {
        f"{folder}/{path}": replace(file, mode=file.mode | 0o555) if path == script else file
        for path, file in tree.items()
    }
