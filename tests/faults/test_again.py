"""`lego verify --again`: every round, changed findings too, and an outage that takes no verdict away."""

from __future__ import annotations

import json

import pytest

from lego.errors import SandboxError
from lego.rollout import again
from lego.rollout.site import Workshop
from lego.rollout.verification import verify_submission
from lego.rundb import verdicts
from lego.rundb.store import Row, Store
from lego.sandbox.podman import Podman
from lego.verifier.verdict import Verdict
from stages import cli
from tests.faults.conftest import DOCKERFILE, Project

pytestmark = pytest.mark.podman


def test_verdicts_change_only_where_a_verifier_said_so(
    project: Project, podman: Podman, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = f"{DOCKERFILE}ENV OWN={project.name}\n"
    project.task("solved", dockerfile=own)
    spoils = "#!/bin/sh\necho right > /app/answer\necho x > /app/conftest.py\n"
    project.task("spoilt", solve=spoils, dockerfile=own)
    train, held_out = ({"source": "harbor", "path": f"tasks/{name}"} for name in ("solved", "spoilt"))
    project.write(tasks={"train": [train], "eval": [held_out]}, rollout={"samples_per_task": 1})
    monkeypatch.chdir(project.folder)

    def lego(*args: str) -> tuple[int, str, str]:
        code = cli.run(args)
        return code, *capsys.readouterr()

    for command in ("rollout", "verify", "eval"):
        assert lego(command)[0] == 0
    store = Store.open(project.database)
    ids = [row["id"] for row in store.rows("SELECT id FROM trials ORDER BY id")]

    def latest() -> list[tuple[object, ...]]:
        found = [verdicts.latest(store, trial) for trial in ids]
        return [(one["outcome"], one["reward"], json.loads(one["tamper"])) for one in found if one]

    sound = latest()
    assert [(outcome, reward, len(tamper)) for outcome, reward, tamper in sound] == [
        ("passed", 1.0, 0), ("passed", 1.0, 1)
    ]  # fmt: skip

    # An outage: nothing may be started. (So small a disk is refused before anything is.)
    code, out, err = lego("verify", "--again", "sandbox.disk_reserve=1000000g")
    assert code == 3 and "2 of 2 trials could not be verified again" in err
    assert "0 of 0 verdicts changed" in out and out.count("keeps its verdict") == 2
    assert latest() == sound

    # What an earlier verifier is made to have said, of one round's reward and of the other's findings.
    def said(trial: int, reward: float, outcome: str) -> None:
        verdicts.record(
            store, trial, reward=reward, outcome=outcome, detail={}, tamper=[], trust="", log=b"", seconds=0.0,
            leased=False,
        )  # fmt: skip

    said(ids[0], 0.0, "failed")
    said(ids[1], 1.0, "passed")

    # It breaks off after the first: what has changed until then is told, since another run would compare with it.
    async def breaks(row: Row, workshop: Workshop) -> Verdict:
        if row["id"] == ids[1]:
            raise SandboxError("podman does not answer")
        return await verify_submission(row, workshop)

    with monkeypatch.context() as broken:
        broken.setattr(again, "verify_submission", breaks)
        broken.setattr(again, "INFRA_STREAK", 1)
        code, out, err = lego("verify", "--again", "verify.concurrency=1")
    assert code == 3 and "1 verifications in a row failed" in err
    assert f"trial {ids[0]} solved: failed, 0 -> passed, 1" in out and "1 of 1 verdicts changed" in out
    said(ids[0], 0.0, "failed")

    images = [row["tag"] for row in store.rows("SELECT DISTINCT tag FROM images WHERE kind = 'task'")]
    podman.cli("rmi", "--force", *images)
    code, out, err = lego("verify", "--again")
    podman.cli("rmi", "--force", *images)
    assert code == 0, err
    assert f"trial {ids[0]} solved: failed, 0 -> passed, 1" in out
    assert f"trial {ids[1]} spoilt: passed, 1 -> passed, 1 (test hook /app/conftest.py)" in out
    assert "2 of 2 verdicts changed" in out and latest() == sound
    code, out, err = lego("verify", "--again", "--round", "2")
    assert code == 2 and "no round 2" in err
