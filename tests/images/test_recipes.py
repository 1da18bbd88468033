from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.config.schema import ImagesSection
from lego.errors import ImageError, TaskError
from lego.harness.spec import HarnessSpec, Install, Run
from lego.images.bases import host_mirror
from lego.images.keys import base_key, base_tag, digest, tree_digest
from lego.images.plan import plan
from lego.images.recipes import runtime_recipe, runtime_tag, task_recipe, task_tag
from lego.tasks.task import Environment, File, Task

SECTION = ImagesSection()
SPEC = HarnessSpec(name="h", dialect="openai_chat", run=Run(argv=("h",)), install=Install(pip={"h": "1.0"}))


def task(dockerfile: str = "FROM debian:bookworm\nRUN true\n", name: str = "t", **more: File) -> Task:
    context = {"Dockerfile": File(dockerfile.encode()), **more}
    return Task(id=name, digest=name, instruction="", environment=Environment(context=context), tests={})


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_no_two_lists_of_parts_collide(left, right):
    assert (digest(*left) == digest(*right)) == (left == right)


def test_mode_content_and_path_all_count():
    trees = [{"a": File(b"x")}, {"a": File(b"x", 0o755)}, {"a": File(b"y")}, {"b": File(b"x")}]
    assert len({tree_digest(tree) for tree in trees}) == 4
    assert tree_digest({"a": File(b"1"), "b": File(b"2")}) == tree_digest({"b": File(b"2"), "a": File(b"1")})


def test_the_bases_key_follows_its_content_not_its_spelling(tmp_path):
    assert base_key(SECTION) == base_key(replace(SECTION, packages=list(reversed(SECTION.packages)), parallel=9))
    assert base_key(SECTION) != base_key(replace(SECTION, packages=[*SECTION.packages, "gcc"]))
    tar = tmp_path / "r.tar"
    tar.write_bytes(b"one")
    first = base_key(ImagesSection(base=f"rootfs:{tar}"))
    other = tmp_path / "same.tar"
    other.write_bytes(b"one")
    assert base_key(ImagesSection(base=f"rootfs:{other}")) == first
    assert base_tag(ImagesSection(base="registry:images.example/library/debian")) == "images.example/library/debian"


@pytest.mark.parametrize("base", ["bookworm", "debian:", "docker:debian", "rootfs:/no/such.tar"])
def test_a_base_nobody_can_make_is_the_users_error(base):
    with pytest.raises(ImageError) as caught:
        base_key(ImagesSection(base=base))
    assert caught.value.fault == "user" and "images.base" in caught.value.message


def test_a_task_stands_on_the_runs_base_and_its_key_follows_it():
    recipe = task_recipe(task(), SECTION)
    assert recipe.base == base_tag(SECTION) and recipe.dockerfile.startswith(f"FROM {base_tag(SECTION)}\n")
    assert recipe.restore_user == "0"
    assert task_tag(task(), SECTION) != task_tag(task(), replace(SECTION, packages=["python3"]))
    assert task_tag(task(), SECTION) != task_tag(task(x=File(b"1")), SECTION)


def test_base_map_replaces_from_lines():
    section = replace(SECTION, base_map={"python:3.11-slim": "base", "node:20": "localhost/my-node:1"})
    assert task_recipe(task("FROM python:3.11-slim\n"), section).base == base_tag(SECTION)
    recipe = task_recipe(task("FROM node:20\nUSER node\nRUN x\n"), section)
    assert (recipe.base, recipe.restore_user) == ("localhost/my-node:1", "node")
    assert task_recipe(task("FROM node:20\nRUN x\n"), section).restore_user is None, "the base's own user is asked for"


def test_a_prebuilt_image_goes_through_the_same_map():
    prebuilt = Task(id="p", digest="p", instruction="", environment=Environment(image="debian:bookworm"), tests={})
    recipe = task_recipe(prebuilt, SECTION)
    assert recipe.base == base_tag(SECTION) and not recipe.purge


def test_tasks_and_harnesses_with_equal_content_share_an_image():
    tests = {"test.sh": File(b"x" * 40)}
    jobs = plan([task(), replace(task(name="u"), tests=tests)], [SPEC, replace(SPEC, name="h-text")], SECTION)
    assert [job.kind for job in jobs] == ["base", "task", "runtime"]
    assert jobs[1].name == "t and 1 more" and [t.id for t in jobs[1].tasks] == ["t", "u"]
    assert jobs[2].name == "h, h-text"


def test_a_task_without_a_dockerfile_fails_alone():
    broken = Task(id="b", digest="b", instruction="", environment=Environment(), tests={}, where="tasks/b")
    with pytest.raises(TaskError, match="tasks/b: environment/Dockerfile is missing"):
        task_recipe(broken, SECTION)
    jobs = plan([broken, task()], [], SECTION)
    assert [bool(job.problem) for job in jobs] == [False, True, False]


def test_a_runtime_pins_what_it_installs():
    recipe = runtime_recipe(
        replace(SPEC, install=Install(pip={"b": "2", "a": "1"}, packages=("tmux",), files={"x.py": b"1"})), SECTION
    )
    assert "'a==1' 'b==2'" in recipe.dockerfile and "tmux" in recipe.dockerfile
    assert set(recipe.context) == {"forward.py", "loader.py", "x.py"}
    assert runtime_tag(SPEC, SECTION) != runtime_tag(replace(SPEC, install=Install(pip={"h": "1.1"})), SECTION)


def test_a_runtime_can_stand_on_a_newer_suite_than_the_runs_base():
    spec = replace(SPEC, install=Install(suite="trixie", pip={"h": "1.0"}))
    jobs = plan([task()], [spec, SPEC], SECTION)
    assert [(job.kind, job.name) for job in jobs[:2]] == [("base", "debian:bookworm"), ("base", "debian:trixie")]
    bookworm, trixie, newer, older = jobs[0].tag, jobs[1].tag, jobs[3], jobs[4]
    assert newer.recipe.base == trixie != bookworm == older.recipe.base
    assert jobs[1].section.packages == ["python3", "python3-venv", "ca-certificates"]
    own = replace(SECTION, base="debian:trixie")
    assert runtime_recipe(spec, own).base == base_tag(own)
    mapped = replace(SECTION, base_map={"registry.example/library/debian:trixie": "localhost/newer:1"})
    assert [job.tag for job in plan([], [spec], mapped)[:2]] == [bookworm, "localhost/newer:1"]
    assert runtime_recipe(spec, replace(SECTION, base_map={"debian:trixie": "base"})).base == bookworm


def test_npm_packages_are_installed_in_a_stage_of_their_own():
    spec = replace(SPEC, install=Install(npm={"@scope/h": "1.2.3"}))
    recipe = runtime_recipe(spec, SECTION)
    first, last = recipe.dockerfile.split("FROM ")[1:]
    assert "npm install --global --prefix /npm" in first and "'@scope/h@1.2.3'" in first
    assert "patchelf --set-interpreter /opt/harness/lego/ld.so" in first
    assert "npm install" not in last and "COPY --from=npm /npm /npm" in last
    assert runtime_tag(spec, SECTION) != runtime_tag(replace(spec, install=Install(npm={"@scope/h": "1.2.4"})), SECTION)


def test_what_may_not_be_handed_on_is_labelled():
    label = "LABEL lego.redistributable=false"
    kept = replace(SPEC, install=replace(SPEC.install, redistributable=False))
    assert label in runtime_recipe(kept, SECTION).dockerfile.splitlines()
    assert label not in runtime_recipe(SPEC, SECTION).dockerfile


def test_the_hosts_own_mirror_is_found(tmp_path):
    (tmp_path / "sources.list.d").mkdir()
    with pytest.raises(ImageError, match="no Debian archive"):
        host_mirror(tmp_path)
    (tmp_path / "sources.list.d/other.list").write_text("deb https://packages.example/apt stable main\n")
    sources = tmp_path / "sources.list.d/debian.sources"
    sources.write_text("Types: deb\nURIs: http://mirror.example/debian/\nSuites: bookworm\n")
    assert host_mirror(tmp_path) == "http://mirror.example/debian"
    line = "deb [arch=amd64 signed-by=/k.gpg] http://first.example/debian bookworm main\n"
    (tmp_path / "sources.list").write_text(line)
    assert host_mirror(tmp_path) == "http://first.example/debian"
