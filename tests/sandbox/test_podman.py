from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from lego.errors import SandboxError
from lego.sandbox import hostconf, paths, probe
from lego.sandbox.podman import Podman, PodmanSettings


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], PodmanSettings]:
    """A podman on PATH that is a shell script, and a store of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(paths, "_runtime_base", lambda: tmp_path)

    def install(script: str) -> PodmanSettings:
        monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
        (folder / "crun").write_text("#!/bin/sh\n")
        (folder / "podman").write_text(f"#!/bin/sh\n{script}\n")
        for name in ("crun", "podman"):
            (folder / name).chmod(0o755)
        return PodmanSettings(tmp_path / "store", str(folder / "crun"))

    return install


def test_without_podman_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="podman is not installed") as caught:
        Podman.open(PodmanSettings(tmp_path / "store"))
    assert "apt install podman" in caught.value.hint


def test_a_podman_that_starts_nothing_gives_its_own_reason_and_advice(fake: Callable[[str], PodmanSettings]) -> None:
    settings = fake("""
    case "$1" in
      --version) echo podman version 5.0.0;;
      run) cat > /dev/null; echo 'Error: crun: cgroups in hybrid mode not supported' >&2; exit 126;;
    esac""")
    with pytest.raises(SandboxError) as caught:
        Podman.open(settings)
    assert str(caught.value) == ("sandbox: podman cannot start a container: crun: cgroups in hybrid mode not supported")
    assert caught.value.hint.startswith("install runc (apt install runc) or set sandbox.runtime")


def test_limits_that_do_not_hold_are_refused_unless_accepted(fake: Callable[[str], PodmanSettings]) -> None:
    settings = fake("""
    case "$1" in
      --version) echo podman version 5.0.0;;
      info) echo '{"host": {"security": {"rootless": true}, "cgroupVersion": "v1"}}';;
      inspect) echo '[{"State": {"Running": true, "Pid": 1, "ExitCode": 0}}]';;
    esac""")
    with pytest.raises(SandboxError, match=r"cannot enforce .*\(rootless on cgroup v1\)") as caught:
        Podman.open(settings)
    assert "sandbox.accept_unenforced_limits" in caught.value.hint
    opened = Podman.open(replace(settings, accept_unenforced_limits=True))
    assert not opened.capabilities.limits and opened.capabilities.rootless
    opened.close()


def test_an_unknown_runtime_is_refused(fake: Callable[[str], PodmanSettings]) -> None:
    settings = replace(fake("echo podman version 5.0.0"), runtime="no-such-runtime")
    with pytest.raises(SandboxError, match="sandbox.runtime=no-such-runtime"):
        Podman.open(settings)


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match="cannot be created") as caught:
        Podman.open(PodmanSettings(tmp_path / "file" / "store"))
    assert paths.STORE_VARIABLE in caught.value.hint


def test_stores_have_their_own_short_runtime_folders(tmp_path: Path) -> None:
    one, two = paths.store_paths(tmp_path / "a"), paths.store_paths(tmp_path / "b")
    try:
        assert one.run != two.run and one.run == paths.store_paths(tmp_path / "a").run
        assert len(str(one.sockets / "12345678-1234567-12345678901-12345" / "proxy.sock")) < 108
        assert one.run.stat().st_mode & 0o066 == 0
    finally:
        shutil.rmtree(one.run)
        shutil.rmtree(two.run)


def test_the_default_store_can_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paths.STORE_VARIABLE, "/somewhere/else")
    assert paths.default_store() == Path("/somewhere/else")


def test_settings_follow_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("crun", "runc", "fuse-overlayfs"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, path: str(tmp_path / name))
    monkeypatch.setattr(hostconf, "_systemd", lambda: True)
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    ways = hostconf.candidates("auto")
    assert [(Path(way.runtime).name, way.cgroup_manager, bool(way.mount_program)) for way in ways[:4]] == [
        ("crun", "systemd", False),
        ("runc", "systemd", False),
        ("crun", "cgroupfs", False),
        ("runc", "cgroupfs", False),
    ]
    assert all(way.mount_program for way in ways[4:]) and len(ways) == 8


def test_another_podmans_environment_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTAINER_HOST", "ssh://elsewhere")
    store = paths.StorePaths(tmp_path, tmp_path)
    env = hostconf.environment(store, store.conf)
    assert "CONTAINER_HOST" not in env and env["CONTAINERS_CONF"] == str(store.conf / "containers.conf")


@pytest.mark.podman
def test_what_was_probed_is_kept_and_proven_again_when_the_host_changes(
    podman: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object) -> None:
        raise AssertionError("probed again")

    monkeypatch.setattr(probe, "first_working", never)
    again = Podman.open(podman.settings)
    assert again.capabilities == podman.capabilities
    again.close()
    monkeypatch.setattr(probe, "VERSION", probe.VERSION + 1)
    with pytest.raises(AssertionError, match="probed again"):
        Podman.open(podman.settings)


@pytest.mark.podman
def test_the_users_own_store_is_not_touched(podman: Podman) -> None:
    info = json.loads(podman.cli("info", "--format", "json").stdout)["store"]
    # Rootless podman chooses its own folder below the runtime folder that it is given.
    assert info["graphRoot"] == str(podman.paths.graph) and info["runRoot"].startswith(f"{podman.paths.run}/")
    assert info["graphDriverName"] == "overlay"


@pytest.mark.podman
def test_a_failing_command_says_why(podman: Podman) -> None:
    with pytest.raises(SandboxError, match="podman inspect failed: .*no-such-thing"):
        podman.cli("inspect", "no-such-thing")
    assert podman.cli("inspect", "no-such-thing", check=False).returncode != 0
    with pytest.raises(SandboxError, match="refused get /containers/no-such-thing/json: .*no-such-thing"):
        podman.request("get", "/containers/no-such-thing/json")


@pytest.mark.podman
def test_the_service_comes_back_after_a_kill(podman: Podman) -> None:
    podman.client.version()
    assert podman._service is not None
    podman._service.kill()
    podman._service.wait()
    assert podman.client.version()["Version"] == podman.capabilities.version


@pytest.mark.podman
def test_capabilities_are_plain_data(podman: Podman) -> None:
    kept = json.loads((podman.paths.store / "capabilities.json").read_text())["capabilities"]
    assert kept == json.loads(json.dumps(asdict(podman.capabilities)))
