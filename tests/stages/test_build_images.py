from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lego.images.build import ImageResult
from stages.build_images import line
from stages.cli import run
from tests.conftest import CONFIGS


def result(**changes: object) -> ImageResult:
    values: dict[str, object] = {
        "key": "k",
        "tag": "t",
        "kind": "task",
        "name": "lru-cache",
        "status": "built",
        "log_path": Path("x.log"),
        "seconds": 3.21,
        "bytes": 219_000_000,
    }
    return ImageResult(**(values | changes))  # type: ignore[arg-type]


def test_a_line_an_image():
    assert line(result()) == " task     lru-cache  built  3.2 s  219 MB"
    assert line(result(status="cached")) == " task     lru-cache  cached  219 MB"
    assert line(result(status="failed", reason="exit status 9")) == " task     lru-cache  failed: exit status 9"


@pytest.mark.podman
def test_one_broken_dockerfile_fails_alone_and_shows_its_log(podman, tmp_path, capfd):
    tasks = tmp_path / "tasks"
    for name in ("lru-cache", "broken"):
        shutil.copytree(CONFIGS / "tasks/basics/lru-cache", tasks / name)
    toml = tasks / "broken/task.toml"
    toml.write_text(toml.read_text().replace("lru-cache", "broken"))
    (tasks / "broken/environment/Dockerfile").write_text("FROM debian:bookworm\nRUN exit 9\n")
    config = tmp_path / "c.yaml"
    config.write_text(
        f"run: {{name: b, dir: {tmp_path}/runs}}\npolicy: {{model: tiny, renderer: tiny-chatml}}\n"
        f"engine: {{kind: scripted}}\ntasks: {{train: [{{source: harbor, path: {tasks}}}]}}\n"
    )
    assert run(["build-images", "-c", str(config)]) == 1
    shown = capfd.readouterr()
    assert " task     lru-cache  " in shown.out and "failed" not in shown.out.split("lru-cache")[1].splitlines()[0]
    assert " task     broken  failed: " in shown.out
    assert "lego: image: 1 of 4 images failed\n      broken: see " in shown.err
    log = Path(shown.err.split("broken: see ")[1].splitlines()[0])
    assert "exit status 9" in log.read_text()
