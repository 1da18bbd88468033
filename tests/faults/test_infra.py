"""Every injected fault ends as infrastructure with its true reason, is tried again, and leaves no mark on a reward."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from lego.config.load import load
from lego.engine.base import GenerationRequest, Sampled
from lego.engine.scripted import ScriptedEngine
from lego.rollout import health
from lego.rollout.run import open_run
from lego.rollout.settings import settings_for
from lego.rollout.site import open_workshop
from lego.rollout.stopping import Stop
from lego.rollout.work import run_trials, run_verifications
from lego.rundb import rounds, trials
from lego.rundb.store import Row
from lego.sandbox import container
from tests.faults.conftest import Project
from tests.faults.injected import ROLLOUT, VERIFY, Fault, Injector

pytestmark = pytest.mark.podman

ALL = (*ROLLOUT, *VERIFY)


class Struck(ScriptedEngine):
    """A scripted engine that faults are put into."""

    injector: Injector | None = None

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Sampled]:
        assert self.injector is not None
        async for piece in self.injector.on_generate(super(), request):  # type: ignore[arg-type]
            yield piece


@pytest.fixture(scope="module")
def ended(podman: object, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Row]]:
    """Every attempt, with its `verdicts`."""
    project = Project(tmp_path_factory.mktemp("infra"), str(tiny_policy), f"infra-{uuid.uuid4().hex[:12]}")
    for fault in ALL:
        project.task(fault.name)
    project.write(run={"dir": str(project.folder / "runs")}, rollout={"concurrency": 3}, verify={"concurrency": 3})
    config = yaml.safe_load((project.folder / "lego.yaml").read_text())
    config["tasks"] = {"train": [{"source": "harbor", "path": str(project.folder / "tasks")}]}
    (project.folder / "lego.yaml").write_text(yaml.safe_dump(config))
    patch = pytest.MonkeyPatch()
    try:
        yield asyncio.run(_run(project, patch))
    finally:
        patch.undo()


async def _run(project: Project, patch: pytest.MonkeyPatch) -> list[Row]:
    run, stop = open_run(load(project.folder / "lego.yaml")), Stop()
    store = run.store
    # So many different faults in a row are this test's own doing.
    patch.setattr(health, "INFRA_STREAK", 10**6)
    round_ = rounds.open_round(
        store, "train", ordinal=1, policy_version=run.newest_policy().version,
        tasks=[(name, "tiny-agent") for name in sorted(run.tasks)], samples=2,
        settings=replace(settings_for(run.config, "train"), samples=2).as_dict(),
    )  # fmt: skip
    async with open_workshop(run) as workshop:
        await workshop.build_images(list(run.tasks.values()), list(run.specs.values()))
        site = await workshop.site(round_)
        injector = Injector(store, workshop.podman, site.proxy, ALL)
        engine = site.engine
        assert isinstance(engine, ScriptedEngine)
        engine.__class__ = Struck
        engine.injector = injector  # type: ignore[attr-defined]
        patch.setattr(workshop.podman, "request", injector.on_request)
        patch.setattr(container, "perform_in", injector.on_perform)
        patch.setattr(requests.Session, "send", lambda session, *args, **how: injector.on_line(session, *args, **how))
        await asyncio.gather(
            run_trials(site, stop, lambda: None),
            run_verifications(workshop, round_, stop, lambda: None, lambda: not trials.unfinished(store, round_.id)),
        )
    verdicts: dict[int, list[dict[str, Any]]] = {}
    for row in store.rows("SELECT * FROM verdicts ORDER BY id"):
        verdicts.setdefault(row["trial_id"], []).append({**row, "detail": json.loads(row["detail"])})
    return [{**row, "verdicts": verdicts.get(row["id"], [])} for row in store.rows("SELECT * FROM trials ORDER BY id")]


def _of(ended: list[Row], fault: Fault) -> dict[tuple[int, int], Row]:
    return {(row["sample"], row["attempt"]): row for row in ended if row["task_id"] == fault.name}


@pytest.mark.parametrize("fault", ROLLOUT, ids=lambda fault: fault.name)
def test_a_fault_under_a_trial(ended: list[Row], fault: Fault) -> None:
    attempts = _of(ended, fault)
    assert set(attempts) == {(0, 1), (0, 2), (1, 1)}, attempts
    struck = attempts[0, 1]
    assert (struck["status"], struck["fault"], struck["submission"]) == ("failed", "infra", None)
    assert re.search(fault.said, struck["reason"]), struck["reason"]
    assert struck["verdicts"] == []
    for sound in (attempts[0, 2], attempts[1, 1]):
        assert (sound["status"], sound["fault"]) == ("finished", None), sound["reason"]
        assert [(v["outcome"], v["reward"]) for v in sound["verdicts"]] == [("passed", 1.0)]


@pytest.mark.parametrize("fault", VERIFY, ids=lambda fault: fault.name)
def test_a_fault_under_a_verification(ended: list[Row], fault: Fault) -> None:
    attempts = _of(ended, fault)
    assert set(attempts) == {(0, 1), (1, 1)}, "a verifier's fault costs no trial"
    first, *later = attempts[0, 1]["verdicts"]
    assert (first["outcome"], first["reward"], first["detail"]["fault"]) == ("error", None, "infra")
    assert re.search(fault.said, first["detail"]["reason"]), first["detail"]
    assert [(v["outcome"], v["reward"]) for v in later] == [("passed", 1.0)]
    assert [(v["outcome"], v["reward"]) for v in attempts[1, 1]["verdicts"]] == [("passed", 1.0)]


def test_a_bug_of_our_own_leaves_its_traceback(ended: list[Row]) -> None:
    for name in ("r-own-bug", "v-own-bug"):
        struck = next(one for one in ended if one["task_id"] == name and not one["sample"])
        reason = struck["reason"] or struck["verdicts"][0]["detail"]["reason"]
        log = Path(re.search(r"traceback in (.*)\)", reason)[1]).read_text()  # type: ignore[index]
        assert f"trial {struck['id']} of {name}\nTraceback" in log and log.count("RecursionError: too deep") == 2


def test_there_are_enough_faults() -> None:
    assert len({fault.name for fault in ALL}) == len(ALL) >= 20
