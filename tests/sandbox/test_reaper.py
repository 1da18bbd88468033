from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lego.sandbox.podman import Podman
from lego.sandbox.reaper import OWNER, RUN, Owner, remove, sweep
from lego.sandbox.seal import seal


def test_an_owner_is_a_process_not_a_number() -> None:
    me = Owner.current()
    assert me.alive() and Owner.parse(me.tag) == me
    assert not Owner(me.boot, me.pid, me.start + 1).alive()
    assert not Owner("00000000", me.pid, me.start).alive()
    assert Owner.parse("garbage") is None and Owner.parse("a-b-c") is None


def test_a_dead_process_owns_nothing() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "from lego.sandbox.reaper import Owner; print(Owner.current().tag)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    owner = Owner.parse(told.stdout.strip())
    assert owner is not None and owner != Owner.current() and not owner.alive()


def _start(podman: Podman, image: str, owner: Owner) -> str:
    labels = ("--label", "app=lego", "--label", f"{OWNER}={owner.tag}", "--label", f"{RUN}=reaper-test")
    done = podman.cli("run", "--detach", "--network", "none", *labels, image, "sleep", "1000")
    return done.stdout.decode().strip()


def _there(podman: Podman) -> set[str]:
    done = podman.cli("ps", "--all", "--filter", f"label={RUN}=reaper-test", "--format", "json")
    return {container["Id"] for container in json.loads(done.stdout or b"[]")}


@pytest.mark.podman
def test_the_dead_are_swept_and_the_living_left(podman: Podman, busybox: str) -> None:
    me = Owner.current()
    dead = Owner(me.boot, me.pid, me.start + 1)
    mine, theirs, earlier = (_start(podman, busybox, owner) for owner in (me, dead, Owner("00000000", 1, 1)))
    orphan = podman.paths.sockets / f"{dead.tag}-0"
    orphan.mkdir()
    (orphan / "proxy.sock").write_text("")
    other = podman.paths.sockets / "not-ours"
    other.mkdir()
    try:
        with seal(podman.paths) as sealed:
            sweep(podman)
            assert sealed.folder.exists() and other.exists() and not orphan.exists()
        assert _there(podman) == {mine}
        sweep(podman, own=True)
        assert _there(podman) == set()
    finally:
        other.rmdir()
        for container in (mine, theirs, earlier):
            remove(podman, container)


@pytest.mark.podman
def test_removing_what_is_gone_is_no_error(podman: Podman) -> None:
    assert remove(podman, "no-such-container")
