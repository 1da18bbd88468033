import os
import shutil

import pytest

from lego.config.schema import ImagesSection
from lego.errors import TaskError
from lego.images.plan import plan
from lego.images.recipes import task_tag, verifier_tag
from lego.tasks.harbor import find, load
from lego.tasks.installs import Packages
from lego.tasks.task import DEFAULT_PROTECTED, Artifact, Collect, Healthcheck
from lego.tasks.validate import warnings

TOML = 'schema_version = "1.4"\n[task]\nname = "org/one"\n[agent]\ntimeout_sec = 90\nuser = 1000\n'


@pytest.fixture
def folder(tmp_path):
    def write(name, text, mode=0o644):
        path = tmp_path / "one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    write("task.toml", TOML)
    write("instruction.md", "Fix it.\n")
    write("environment/Dockerfile", "FROM debian:bookworm\nWORKDIR /srv\nCOPY app.py .\n")
    write("environment/app.py", "x = 1\n")
    write("solution/solve.sh", "#!/bin/bash\nsed -i s/1/2/ app.py\n", 0o755)
    write("tests/test.sh", "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n", 0o755)
    write("tests/lib/helper.py", "pass\n")
    return tmp_path / "one"


def add(folder, text):
    (folder / "task.toml").write_text(TOML + text)
    return folder


def top(folder, text):
    (folder / "task.toml").write_text(text)
    return folder


def test_all_parts_are_read(folder):
    task = load(
        add(
            folder,
            '[verifier]\ntimeout_sec = 30\n[verifier.env]\nA = "b"\n[solution.env]\nC = "d"\n'
            '[environment]\ncpus = 1.5\nmemory_mb = 256\nworkdir = "/srv"\n'
            '[metadata]\ndifficulty = "easy"\n',
        )
    )
    assert (task.id, task.instruction, task.where) == ("one", "Fix it.\n", str(folder))
    assert set(task.environment.context) == {"Dockerfile", "app.py"}
    assert set(task.tests) == {"test.sh", "lib/helper.py"}
    assert task.tests["test.sh"].mode == 0o755 and task.tests["lib/helper.py"].mode == 0o644
    assert (task.agent_timeout, task.agent_user, task.verifier_timeout) == (90, "1000", 30)
    assert (task.verifier_env, task.solution_env) == ({"A": "b"}, {"C": "d"})
    environment = task.environment
    assert (environment.cpus, environment.memory_mb, environment.workdir, environment.roots) == (1.5, 256, "/srv", ())
    assert task.metadata == {"difficulty": "easy", "name": "org/one"}
    assert task.protected == DEFAULT_PROTECTED
    assert task.digest == task.content_digest() and len(task.digest) == 64


def test_a_healthcheck_is_read_with_the_formats_defaults(folder):
    plain = load(folder)
    task = load(add(folder, "[environment.healthcheck]\ncommand = 'true'\nretries = 2\nstart_period_sec = 1.5\n"))
    assert task.environment.health == Healthcheck("true", 5.0, 30.0, 1.5, 5.0, 2)
    assert plain.environment.health is None and plain.digest != task.digest


STEPS = """multi_step_reward_strategy = "final"
[environment]
workdir = "/srv"
[verifier.env]
A = "task"
B = "task"
[[steps]]
name = "one"
min_reward = 0.5
[steps.verifier]
timeout_sec = 7
[steps.verifier.env]
A = "step"
[[steps]]
name = "two"
artifacts = ["/out"]
[steps.verifier]
environment_mode = "separate"
[steps.healthcheck]
command = "true"
"""


@pytest.fixture
def stepped(folder):
    (folder / "task.toml").write_text(STEPS)
    (folder / "instruction.md").unlink()
    for name, text in {
        "one/instruction.md": "# canary\nFirst.\n", "one/workdir/setup.sh": "true\n", "one/workdir/in/x": "x\n",
        "two/instruction.md": "Second.\n", "two/tests/lib/helper.py": "own\n", "two/solution/solve.sh": "true\n",
    }.items():  # fmt: skip
        (folder / "steps" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "steps" / name).write_text(text)
    return folder


def test_steps_are_tasks_over_what_the_earlier_ones_laid(stepped):
    task = load(stepped)
    one, two = task.steps
    assert (one.name, two.name, task.strategy, task.instruction) == ("one", "two", "final", "First.\n\n\nSecond.\n")
    assert (one.min_reward, two.min_reward) == ({"reward": 0.5}, {})
    assert (one.task.verifier_timeout, two.task.verifier_timeout) == (7, 600)
    assert (one.task.verifier_env, two.task.verifier_env) == ({"A": "step", "B": "task"}, {"A": "task", "B": "task"})
    assert two.task.tests["lib/helper.py"].data == b"own\n" and one.task.tests["lib/helper.py"].data == b"pass\n"
    assert [stage.setup for stage in two.task.stages] == ["/srv/setup.sh", ""]
    assert set(two.task.environment.workspace) == {"/srv/setup.sh", "/srv/in/x"}
    assert not task.environment.workspace and two.task.stages[1].health == Healthcheck("true")
    assert [b"sed" in stage.solution["solve.sh"].data for stage in two.task.stages] == [True, False]
    assert one.task.separate is None and two.task.separate is not None
    assert [artifact.source for artifact in two.task.separate.artifacts] == ["/logs/artifacts", "/out"]
    assert task.environment.roots == ("/srv", "/logs/artifacts", "/out") == two.task.environment.roots
    assert set(task.solution) == {"one/solve.sh", "two/solve.sh"} and task.agent_timeout is None
    assert task_tag(one.task, ImagesSection()) == task_tag(task, ImagesSection())


def test_all_of_a_step_decides_what_the_task_is(stepped):
    before = load(stepped).digest
    for name in ("one/instruction.md", "one/workdir/in/x", "two/tests/lib/helper.py", "two/solution/solve.sh"):
        path = stepped / "steps" / name
        path.write_text(path.read_text() + "#\n")
        assert before != (before := load(stepped).digest)
    for old, new in (("0.5", "0.6"), ('"final"', '"mean"'), ('command = "true"', 'command = "a"')):
        (stepped / "task.toml").write_text((stepped / "task.toml").read_text().replace(old, new))
        assert before != (before := load(stepped).digest)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "steps/two/instruction.md").unlink(), "steps/two: instruction.md is missing"),
        (lambda folder: (folder / "steps/three").mkdir(), "steps/three is no step"),
        (lambda folder: (folder / "tests/test.sh").unlink(), "step one has no test.sh"),
        (lambda folder: _no_workdir(folder), "needs environment.workdir"),
    ],
)  # fmt: skip
def test_steps_that_lack_something_are_named(stepped, change, said):
    change(stepped)
    with pytest.raises(TaskError, match=said):
        load(stepped)


def _no_workdir(folder):
    (folder / "task.toml").write_text(STEPS.replace('workdir = "/srv"\n', ""))
    (folder / "environment/Dockerfile").write_text("FROM debian:bookworm\n")


def test_what_tests_install_is_frozen_or_refused_by_name(folder):
    plain = load(folder)
    (folder / "tests/test.sh").write_text("pip install pytest==8.4.1\n")
    assert load(folder).installs.packages == (Packages("pip", ("pytest==8.4.1",)),)
    (folder / "tests/test.sh").write_text("npm install -g x\ncurl https://example.org/y\n")
    with pytest.raises(TaskError, match="npm install -g; curl https://example.org/y") as caught:
        load(folder)
    assert "freeze = false" in caught.value.hint
    assert load(add(folder, "[metadata.lego]\nfreeze = false\n")).installs == plain.installs
    add(folder, "[verifier.environment]\ndocker_image = 'org/verifier:1'\n")
    assert not load(folder).installs


def test_a_separate_verifier_without_an_image_is_another_container_of_the_agents(folder):
    text = 'artifacts = ["/srv/out"]\n[verifier]\nenvironment_mode = "separate"\n[environment.env]\nA = "b"\n'
    task = load(top(folder, text))
    assert task.separate is not None and not task.separate.bundled
    assert task.separate.environment.context == task.environment.context
    assert task.separate.environment.env == {"A": "b"}
    assert task.separate.artifacts == (Artifact("/logs/artifacts"), Artifact("/srv/out"))
    assert task.environment.roots == ("/logs/artifacts", "/srv/out") and task.protected == ()
    assert verifier_tag(task, ImagesSection()) == task_tag(task, ImagesSection())


def test_a_separate_verifiers_image_is_named_or_in_its_tests(folder):
    (folder / "tests/Dockerfile").write_text("FROM debian:bookworm\nCOPY . /tests/\n")
    assert "tests/Dockerfile means nothing" in load(folder).metadata["warnings"]
    add(folder, "[verifier.environment]\nmemory_mb = 64\n[verifier.environment.env]\nKEY = '${KEY:-none}'\n")
    own = load(folder).separate
    assert own is not None and own.bundled and own.environment.env == {"KEY": "none"}
    assert (
        set(own.environment.context) == {"Dockerfile", "test.sh", "lib/helper.py"} and own.environment.memory_mb == 64
    )
    jobs = [(job.kind, job.tag) for job in plan([load(folder)], (), ImagesSection()) if job.kind != "base"]
    task = load(folder)
    assert jobs == [("task", task_tag(task, ImagesSection())), ("verifier", verifier_tag(task, ImagesSection()))]
    (folder / "tests/lib/helper.py").write_text("changed\n")
    assert verifier_tag(load(folder), ImagesSection()) != jobs[1][1]
    add(folder, "[verifier.environment]\ndocker_image = 'org/verifier:1'\n")
    own = load(folder).separate
    assert (
        own is not None and own.bundled and (own.environment.image, own.environment.context) == ("org/verifier:1", {})
    )
    shutil.rmtree(folder / "tests")
    assert warnings(load(folder)) == []


def test_collect_hooks_and_excludes_are_read(folder):
    hook = '[[verifier.collect]]\ncommand = "dump"\nuser = "1000"\n'
    artifact = '[[artifacts]]\nsource = "/srv/x/"\nexclude = ["*.log"]\n'
    task = load(add(folder, f"[verifier]\nenvironment_mode = 'separate'\n{hook}{artifact}"))
    assert task.collect == (Collect("dump", 60.0),)
    assert task.separate is not None and task.separate.artifacts[1] == Artifact("/srv/x", ("*.log",))


def test_artifacts_add_to_the_working_directory(folder):
    assert load(top(folder, 'artifacts = ["/out", "/logs/artifacts/x", "/logs/agent"]\n')).environment.roots == (
        "/srv",
        "/out",
        "/logs/artifacts/x",
    )


@pytest.mark.parametrize("place", ["/proc/1", "/dev/shm", "out"])
def test_artifacts_are_places_for_files(folder, place):
    with pytest.raises(TaskError, match=f"artifacts: '{place}'"):
        load(top(folder, f'artifacts = ["{place}"]\n'))


def test_a_whole_system_is_no_artifact_of_a_separate_verifier(folder):
    with pytest.raises(TaskError, match="whole system"):
        load(top(folder, 'artifacts = ["//./"]\n[verifier]\nenvironment_mode = "separate"\n'))


def test_solution_is_the_demonstration_where_it_stands_alone(folder):
    assert [step.command for step in load(folder).demonstration] == ["ls -A", "sed -i s/1/2/ app.py"]
    (folder / "solution/solve.sh").write_text("patch < /solution/fix.patch\n")
    assert load(folder).demonstration == ()


UNSUPPORTED = {
    "[[steps]]\nname = 'a'\n[steps.agent]\nuser = 'b'\n": "steps.agent.user",
    "[[steps]]\nname = 'a'\n[steps.verifier.environment]\ngpus = 1\n": "steps.0.verifier.environment.gpus",
    "[[steps]]\nname = 'a'\n[steps.verifier]\nnetwork_mode = 'public'\n": "steps.0.verifier.network_mode",
    "[environment]\nos = 'windows'\n": "environment.os",
    "[environment]\ngpus = 1\n": "environment.gpus",
    "[environment]\ngpu_types = ['H100']\n": "environment.gpu_types",
    "[environment.tpu]\ntype = 'v6e'\ntopology = '2x2'\n": "environment.tpu",
    "[[environment.mcp_servers]]\nname = 'x'\nurl = 'http://x'\n": "environment.mcp_servers",
    "[environment]\nskills_dir = '/skills'\n": "environment.skills_dir",
    "[[artifacts]]\nsource = '/x'\nservice = 'db'\n": "artifacts with a service",
    "[[verifier.collect]]\ncommand = 'true'\nservice = 'db'\n": "verifier.collect.service",
    "[[verifier.collect]]\ncommand = 'true'\nuser = 'root'\n": "verifier.collect.user",
    "[verifier.environment]\ngpus = 1\n": "verifier.environment.gpus",
    "[verifier.environment]\nallow_internet = true\n": "verifier.environment.allow_internet",
    "[environment]\nnetwork_mode = 'public'\n": "environment.network_mode = public",
    "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['x.org']\n": "environment.allowed_hosts",
    "[environment]\nallow_internet = true\n": "environment.allow_internet",
    "[verifier]\nnetwork_mode = 'public'\n": "verifier.network_mode = public",
}


@pytest.mark.parametrize("text", UNSUPPORTED)
def test_unsupported_is_refused_by_name(folder, text):
    if text.startswith("[[artifacts]]"):
        (folder / "task.toml").write_text(text)
    else:
        add(folder, text)
    with pytest.raises(TaskError, match="not supported: ") as caught:
        load(folder)
    assert UNSUPPORTED[text] in caught.value.message and str(folder) in caught.value.message
    assert caught.value.fault == "task"


@pytest.mark.parametrize(
    "name", ["steps/a/instruction.md", "environment/docker-compose.yaml", "tests/docker-compose.yaml"]
)
def test_unsupported_files_are_refused_by_name(folder, name):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("x")
    with pytest.raises(TaskError, match=name.split("/instruction")[0].split("/a")[0]):
        load(folder)


def test_everything_unsupported_is_named_at_once(folder):
    add(folder, "[environment]\ngpus = 2\nskills_dir = '/s'\nnetwork_mode = 'public'\n")
    with pytest.raises(TaskError, match="gpus.*skills_dir.*network_mode") as caught:
        load(folder, sealed=False)
    assert caught.value.hint == ""


def test_no_network_is_what_a_sandbox_gives(folder):
    assert load(add(folder, "[environment]\nnetwork_mode = 'no-network'\nallow_internet = false\n")).metadata == {
        "name": "org/one"
    }


def test_sealed_runs_a_public_task_with_a_warning(folder):
    add(folder, "[environment]\nnetwork_mode = 'public'\n")
    with pytest.raises(TaskError) as caught:
        load(folder)
    assert "sealed" in caught.value.hint
    assert "network_mode = public" in load(folder, sealed=True).metadata["warnings"]


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"])
def test_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(TaskError, match=name.rpartition("/")[2]) as caught:
        load(folder)
    assert "missing" in caught.value.message and str(folder) in caught.value.message


def test_prebuilt_image_needs_no_dockerfile(folder):
    (folder / "environment/Dockerfile").unlink()
    assert load(add(folder, "[environment]\ndocker_image = 'org/image:1'\n")).environment.image == "org/image:1"


def test_missing_solution_is_allowed_but_not_half_a_one(folder):
    (folder / "solution/solve.sh").rename(folder / "solution/other.sh")
    with pytest.raises(TaskError, match=r"solve\.sh"):
        load(folder)
    (folder / "solution/other.sh").unlink()
    assert load(folder).solution == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[agent\n", "not valid TOML"),
        ("[verifier]\ntimeout_sec = 'long'\n", "verifier.timeout_sec"),
        ("[verifier]\ntimeout_sec = -1\n", "verifier.timeout_sec"),
        ("[environment]\nnetwork_mode = 'open'\n", "environment.network_mode"),
        ("[environment]\ncpus = 'two'\n", "environment.cpus"),
        ("[environment]\nmemory = 'lots'\n", "environment: memory"),
        ("[environment]\nmemory = '2G'\nmemory_mb = 5\n", "memory and memory_mb contradict"),
        ("[metadata.lego]\nroots = ['app']\n", "absolute"),
        ("[metadata.lego]\nrots = ['/app']\n", "metadata.lego: rots"),
    ],
)
def test_malformed(folder, text, words):
    with pytest.raises(TaskError, match=words) as caught:
        load(add(folder, text))
    assert "\n" not in caught.value.message


def test_other_schema_versions_are_refused(folder):
    for key in ("schema_version", "version"):
        (folder / "task.toml").write_text(f'{key} = "2.0"\n')
        with pytest.raises(TaskError, match=r"schema_version '2\.0'"):
            load(folder)
    (folder / "task.toml").write_text('version = "1.0"\n')
    assert load(folder).metadata == {}


def test_not_text(folder):
    (folder / "instruction.md").write_bytes(b"\xff\xfe")
    with pytest.raises(TaskError, match=r"instruction\.md.*cannot be read"):
        load(folder)
    (folder / "instruction.md").write_text("  \n")
    with pytest.raises(TaskError, match="is empty"):
        load(folder)


def test_deprecated_sizes(folder):
    environment = load(add(folder, "[environment]\nmemory = '2G'\nstorage = '512m'\n")).environment
    assert (environment.memory_mb, environment.storage_mb) == (2048, 512)


def test_an_instruction_is_shown_without_its_canary(folder):
    canary = "<!-- BENCHMARK DATA: canary GUID 1 -->\n# harbor canary 2\n\n"
    (folder / "instruction.md").write_text(f"{canary}# Fix it.\n\nkeep the canary alive\n")
    assert load(folder).instruction == "# Fix it.\n\nkeep the canary alive\n"


def test_harborignore_leaves_files_out_of_tests_and_solution_alone(folder):
    (folder / "tests/data/deep").mkdir(parents=True)
    for name in ("data/a.log", "data/b.txt", "data/deep/c.txt", "data/deep/keep.log"):
        (folder / "tests" / name).write_text(name)
    (folder / "tests/.harborignore").write_text("*.log\nlib/\n")
    (folder / "tests/data/deep/.harborignore").write_text("!keep.log\nc.txt\n")
    (folder / "environment/.harborignore").write_text("app.py\n")
    task = load(folder)
    assert set(task.tests) == {"test.sh", "data/b.txt", "data/deep/keep.log"}
    assert "app.py" in task.environment.context


def test_roots(folder):
    add(folder, "[metadata.lego]\nroots = ['/app', '/srv']\nprotected = []\n")
    task = load(folder)
    assert (task.environment.roots, task.protected) == (("/app", "/srv"), ())
    (folder / "task.toml").write_text("artifacts = ['/logs/artifacts', '/out/', {source = '/out/'}]\n")
    assert load(folder).environment.roots == ("/srv", "/logs/artifacts", "/out")
    (folder / "task.toml").write_text("artifacts = ['/a/../etc']\n")
    with pytest.raises(TaskError, match=r"'\.\.'"):
        load(folder)


@pytest.mark.parametrize("pattern", ["!", "a\\"])
def test_what_protects_is_a_pattern(folder, pattern):
    add(folder, f"[metadata.lego]\nprotected = ['tests/', '{pattern}']\n")
    with pytest.raises(TaskError, match=r"protected\.1: .* is no pattern") as raised:
        load(folder)
    assert repr(pattern) in str(raised.value)


def test_the_files_of_named_tests_are_protected_whatever_a_task_says_of_the_rest(folder):
    add(folder, "[metadata.lego]\ngrader = 'pytest-ids'\n")
    (folder / "tests/names.json").write_text('{"fail_to_pass": ["pkg/test_x.py::test_a", "check.py::T::test_b"]}')
    assert load(folder).protected == (*DEFAULT_PROTECTED, "/pkg/test_x.py", "/check.py")
    text = (folder / "task.toml").read_text().replace("grader =", "protected = []\ngrader =")
    (folder / "task.toml").write_text(text)
    assert load(folder).protected == ("/pkg/test_x.py", "/check.py")


def test_variables_come_only_from_what_was_let_through(folder, monkeypatch):
    monkeypatch.setenv("LEGO_TEST_SECRET", "hunter2")
    add(folder, "[environment.env]\nA = 'x-${LEGO_TEST_SECRET:-none}'\n")
    assert load(folder).environment.env == {"A": "x-none"}
    assert load(folder, host_env={"LEGO_TEST_SECRET": "given"}).environment.env == {"A": "x-given"}
    add(folder, "[environment.env]\nA = '${LEGO_TEST_SECRET}'\n")
    with pytest.raises(TaskError, match="LEGO_TEST_SECRET") as caught:
        load(folder)
    assert "hunter2" not in str(caught.value) and "host_env" in caught.value.hint


def test_unknown_keys_are_ignored_as_harbor_does_but_named(folder):
    task = load(add(folder, "[environment]\ncolour = 'red'\n[novel]\nx = 1\n"))
    assert "environment.colour" in task.metadata["warnings"] and "novel" in task.metadata["warnings"]


def test_links(folder, tmp_path):
    (tmp_path / "outside").write_text("secret")
    (folder / "environment/inside.py").symlink_to("app.py")
    assert load(folder).environment.context["inside.py"].data == b"x = 1\n"
    (folder / "environment/leak").symlink_to(tmp_path / "outside")
    with pytest.raises(TaskError, match="leads out"):
        load(folder)


def test_odd_files(folder):
    os.mkfifo(folder / "tests/pipe")
    with pytest.raises(TaskError, match="neither a file nor a folder"):
        load(folder)


def test_digest_is_of_what_decides(folder):
    before = load(folder).digest
    (folder / "tests/lib/helper.py").chmod(0o664)
    (folder / "tests/__pycache__").mkdir()
    (folder / "tests/__pycache__/x.pyc").write_bytes(b"x")
    assert load(folder).digest == before
    moved = folder.rename(folder.parent / "two")
    assert load(moved).digest == before
    (moved / "tests/lib/helper.py").write_text("other\n")
    assert load(moved).digest != before


def test_find(folder, tmp_path):
    assert find(folder) == [folder]
    assert find(tmp_path) == [folder]
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/instruction.md").write_text("no task.toml\n")
    assert find(tmp_path) == [tmp_path / "bare", folder]
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(TaskError) as caught:
            find(nothing)
        assert caught.value.fault == "user"
