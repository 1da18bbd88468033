"""Real images in the store, on the bare image, so that each takes a second or two."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import replace

import pytest

from lego.config.schema import ImagesSection
from lego.errors import ImageError
from lego.images import build as build_module
from lego.images.build import Builder
from lego.images.plan import plan
from lego.images.recipes import task_tag
from lego.images.shelf import Shelf
from lego.tasks.task import Environment, File, Task

SECRET = File(b"def test_the_window_is_closed(): assert window(3) == 4\n")


@pytest.fixture
def section(bare_image: str) -> ImagesSection:
    return ImagesSection(base=f"registry:{bare_image}")


@pytest.fixture
def make(podman, section):
    """Tasks with an image of their own; the images are removed afterwards."""
    made: list[Task] = []

    def one(lines: str = "COPY unique /app/unique\n") -> Task:
        text = f"FROM {section.base.removeprefix('registry:')}\n{lines}"
        context = {"Dockerfile": File(text.encode()), "unique": File(uuid.uuid4().hex.encode() * 2)}
        task = Task(f"s{len(made)}", uuid.uuid4().hex, "", Environment(context=context), tests={"test_a.py": SECRET})
        made.append(task)
        return task

    yield one
    for task in made:
        podman.cli("rmi", "--force", task_tag(task, section), check=False)


def builder(podman, section, tmp_path) -> Builder:
    return Builder(podman, section, tmp_path / "logs")


@pytest.mark.podman
async def test_an_image_travels_as_a_file_and_is_proven_before_it_is_used(podman, section, make, tmp_path):
    first, second = make(), make("LABEL lego.redistributable=false\nCOPY unique /app/unique\n")
    own = builder(podman, section, tmp_path)
    jobs = plan([first, second], (), section)
    assert {result.status for result in await own.build(jobs)} <= {"built", "cached"}
    tags, shelf, archive = [task_tag(task, section) for task in (first, second)], Shelf(podman), tmp_path / "all.tar"
    moved = shelf.export(tags, archive)
    assert (moved.tags, moved.held_back) == ((tags[0],), (tags[1],)) and archive.stat().st_size > 1000
    assert os.listdir(tmp_path / "logs") and not list(tmp_path.glob("*.part"))
    with pytest.raises(ImageError, match="none of these") as caught:
        shelf.export(tags[1:], archive)
    assert "--with-proprietary" in caught.value.hint
    assert shelf.export(tags, archive, proprietary=True).held_back == ()
    podman.cli("rmi", *tags)
    (podman.paths.store / "images" / f"{jobs[1].key}.json").unlink()
    assert shelf.take_in(archive).tags == tuple(sorted(tags))
    results = await builder(podman, section, tmp_path / "new").build(jobs)
    assert [result.status for result in results] == ["cached"] * 3, "nothing is built again"
    leaking = replace(first, id="leaks", tests={"test_b.py": first.environment.context["unique"]})
    (_, refused) = await builder(podman, section, tmp_path / "new").build(plan([leaking], (), section))
    assert refused.status == "failed" and "/app/unique is tests/test_b.py" in refused.reason


@pytest.mark.podman
async def test_an_image_travels_through_a_shared_folder(podman, section, make, tmp_path):
    task = make()
    tag, shelf, registry = task_tag(task, section), Shelf(podman), f"dir:{tmp_path}/shared"
    await builder(podman, section, tmp_path).build(plan([task], (), section))
    assert shelf.push([tag], registry).tags == (tag,)
    assert shelf.pull([tag], registry).tags == (), "it is here"
    podman.cli("rmi", tag)
    assert shelf.pull([tag, "localhost/lego-task:absent"], registry).tags == (tag,)
    assert tag in shelf.sizes()


@pytest.mark.podman
async def test_what_is_missing_or_not_there_is_said(podman, section, tmp_path):
    shelf = Shelf(podman)
    with pytest.raises(ImageError, match="1 of 1 images are not in the store: localhost/lego-task:absent"):
        shelf.export(["localhost/lego-task:absent"], tmp_path / "x.tar")
    with pytest.raises(ImageError, match="is no archive of images: .*No such file"):
        shelf.take_in(tmp_path / "x.tar")
    (tmp_path / "x.tar").write_text("not a tar")
    with pytest.raises(ImageError, match="is no archive of images"):
        shelf.take_in(tmp_path / "x.tar")


@pytest.mark.podman
async def test_images_go_by_last_use_and_never_one_that_is_needed(podman, section, make, tmp_path):
    old, needed, fresh = make(), make(), make()
    jobs = plan([old, needed, fresh], (), section)
    await builder(podman, section, tmp_path).build(jobs)
    tags = [task_tag(task, section) for task in (old, needed, fresh)]
    shelf = Shelf(podman)
    long_ago = time.time() - 9 * 86400
    for tag in tags[:2]:
        os.utime(shelf._mark(tag), (long_ago, long_ago))
    unused = [one for one in shelf.unused({tags[1]}, 7 * 86400) if one.tag in tags]
    assert [one.tag for one in unused] == tags[:1]
    assert all(one.kind != "base" for one in unused)
    assert shelf.remove(unused) == tags[:1] and tags[0] not in shelf.sizes()
    await builder(podman, section, tmp_path).build(plan([needed], (), section))
    assert [one.tag for one in shelf.unused((), 7 * 86400) if one.tag in tags] == [], "wanting it again is using it"


@pytest.mark.podman
async def test_a_quota_stops_a_build_before_it_begins(podman, section, make, tmp_path):
    tight = replace(section, quota="1k")
    _, result = await Builder(podman, tight, tmp_path / "logs").build(plan([make()], (), tight))
    assert result.status == "failed" and "images.quota" in result.reason
    assert Shelf(podman).taken() > 1 << 20
    Shelf(podman).check_quota(0)


@pytest.mark.podman
async def test_a_hiccup_of_the_network_is_waited_out_and_other_failures_are_not(
    podman, section, make, tmp_path, monkeypatch
):
    monkeypatch.setattr(build_module, "_PAUSES", (0.0, 0.0))
    broken = make("RUN echo 'Temporary failure resolving deb.example.org' >&2; exit 100\n")
    wrong = make("RUN echo 'no such option' >&2; exit 2\n")
    jobs = plan([broken, wrong], (), section)
    _, network, own = await builder(podman, section, tmp_path).build(jobs)
    assert (network.fault, own.fault) == ("infra", "task")
    assert network.reason.startswith("the network failed (3 tries): ")
    assert network.log_path.read_text().count("the network failed; again in") == 2
    assert "the network failed" not in own.log_path.read_text()
