import hashlib
import json
import subprocess

import pytest

from lego.config.schema import TaskSource
from lego.errors import ConfigError, TaskError
from lego.tasks import dataset
from lego.tasks.harbor_files import content_hash
from lego.tasks.load import load_tasks


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make(root, name, org="org"):
    files = {
        "task.toml": f'[task]\nname = "{org}/{name}"\n',
        "instruction.md": f"Do {name}.\n",
        "environment/Dockerfile": "FROM debian:bookworm\nWORKDIR /app\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    }
    for path, text in files.items():
        (root / name / path).parent.mkdir(parents=True, exist_ok=True)
        (root / name / path).write_text(text)
    return root / name


def pin(root, *folders, extra=""):
    refs = "".join(f'[[tasks]]\nname = "org/{one.name}"\ndigest = "sha256:{content_hash(one)}"\n' for one in folders)
    (root / "dataset.toml").write_text(f'[dataset]\nname = "org/set"\n{extra}{refs}')
    return root / "dataset.toml"


def ids(path, **more):
    return [task.id for task in load_tasks([TaskSource("harbor", path=str(path), **more)])]


def test_the_hash_is_over_published_files_by_name(tmp_path):
    task = make(tmp_path, "a")
    (task / "notes.txt").write_text("not published")
    (task / "tests/__pycache__").mkdir()
    (task / "tests/__pycache__/x.pyc").write_bytes(b"x")
    (task / "tests/.harborignore").write_text("*.log\n")
    (task / "tests/big.log").write_text("x")
    lines = []
    for name in ("environment/Dockerfile", "instruction.md", "task.toml", "tests/test.sh"):
        lines.append(f"{name}\0{hashlib.sha256((task / name).read_bytes()).hexdigest()}\n")
    assert content_hash(task) == hashlib.sha256("".join(lines).encode()).hexdigest()
    (task / ".gitignore").write_text("Dockerfile\n")
    assert content_hash(task) != hashlib.sha256("".join(lines).encode()).hexdigest()


def test_a_manifest_gives_its_tasks_in_its_order_and_no_others(tmp_path):
    b, a, _ = (make(tmp_path, name) for name in "bac")
    path = pin(tmp_path, b, a)
    assert ids(path) == ids(tmp_path) == ["b", "a"]
    assert ids(path, count=1) == ["b"]


def test_a_task_that_is_not_what_was_pinned_is_refused(tmp_path):
    task = make(tmp_path, "a")
    path = pin(tmp_path, task)
    (task / "tests/test.sh").write_text("echo 0 > /logs/verifier/reward.txt\n")
    with pytest.raises(TaskError, match=r"is not the task that dataset\.toml pins: it has sha256:"):
        ids(path)


def test_files_of_a_dataset_are_checked_too(tmp_path):
    task = make(tmp_path, "a")
    (tmp_path / "metric.py").write_text("pass\n")
    digest = hashlib.sha256(b"pass\n").hexdigest()
    extra = f'[[files]]\npath = "metric.py"\ndigest = "sha256:{digest}"\n'
    assert ids(pin(tmp_path, task, extra=extra)) == ["a"]
    (tmp_path / "metric.py").write_text("fail\n")
    with pytest.raises(TaskError, match=r"metric\.py: is not the file"):
        ids(pin(tmp_path, task, extra=extra))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = ", "not valid TOML"),
        ("", "dataset: field required"),
        ('schema_version = "2.0"\n[dataset]\nname = "o/s"\n', "schema_version '2.0'"),
        ('[dataset]\nname = "nameless"\n', "dataset.name"),
        ('[dataset]\nname = "o/s"\n[[tasks]]\nname = "o/a"\ndigest = "abc"\n', "tasks.0.digest"),
        ('[dataset]\nname = "o/s"\n[[files]]\npath = "../x"\n', "files.0.path"),
        ('[dataset]\nname = "o/s"\n', "names no tasks"),
        (f'[dataset]\nname = "o/s"\n[[tasks]]\nname = "o/a"\ndigest = "sha256:{"0" * 64}"\n', "task o/a is not below"),
    ],
)
def test_a_wrong_manifest_says_where(tmp_path, text, words):
    (tmp_path / "dataset.toml").write_text(text)
    with pytest.raises(TaskError) as caught:
        dataset.folders(str(tmp_path))
    assert words in caught.value.message and "dataset.toml" in caught.value.message


def git(folder, *args):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *who, *args], cwd=folder, check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "origin"
    make(root / "tasks", "a")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    first = git(root, "rev-parse", "HEAD")
    (root / "tasks/a/instruction.md").write_text("Do it better.\n")
    make(root / "tasks", "b")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "two")
    return root, first


def test_a_repository_at_a_commit(repository):
    root, first = repository
    (old,) = load_tasks([TaskSource("harbor", path=f"git+file://{root}@{first}#tasks")])
    assert old.instruction == "Do a.\n"
    assert ids(f"git+file://{root}#tasks") == ["a", "b"]
    root.rename(root.with_name("gone"))
    assert ids(f"git+file://{root}@{first}#tasks") == ["a"], "it was fetched once and is kept"


def test_a_repository_may_hold_a_pinned_dataset(repository):
    root, _ = repository
    pin(root / "tasks", root / "tasks/b")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "three")
    assert ids(f"git+file://{root}#tasks") == ["b"]


def test_a_repository_that_cannot_be_had_is_no_fault_of_the_task(tmp_path, repository):
    root, _ = repository
    with pytest.raises(TaskError, match="git cannot fetch file:///nowhere") as caught:
        ids("git+file:///nowhere#tasks")
    assert caught.value.fault == "infra"
    with pytest.raises(TaskError, match="git cannot fetch .* at beef"):
        ids(f"git+file://{root}@beef")
    with pytest.raises(TaskError, match="leads out"):
        ids(f"git+file://{root}#../..")
    with pytest.raises(TaskError, match="there is no 'nothing'"):
        ids(f"git+file://{root}#nothing")
    assert not list((tmp_path / "cache/lego/tasks").glob("tmp*"))


def test_the_older_registry(tmp_path, repository):
    root, first = repository
    url = "https://git.example.org/tasks"
    here = make(tmp_path / "local", "c")
    rows = [
        {
            "name": "set",
            "version": "1.0",
            "description": "",
            "tasks": [
                {"name": "a", "git_url": url, "git_commit_id": first, "path": "tasks/a"},
                {"name": "b", "git_url": url, "git_commit_id": "head", "path": "tasks/b"},
                {"name": "c", "path": "local/c"},
            ],
        },
        {"name": "set", "version": "2.0", "description": "", "tasks": [{"name": "c", "path": "local/c"}]},
    ]
    path = tmp_path / "registry.json"
    path.write_text(json.dumps(rows))
    options = {"mirrors": {url: str(root)}}
    assert ids(path, name="set@1.0", options=options) == ["a", "b", "c"]
    assert ids(path, name="set@2.0") == ["c"]
    for name, words in (("", "needs `name`"), ("set", "2 data sets are 'set'"), ("other@1.0", "0 data sets")):
        with pytest.raises(TaskError, match=words) as caught:
            ids(path, name=name)
        assert "set@1.0, set@2.0" in caught.value.message
    (here / "task.toml").unlink()
    with pytest.raises(TaskError, match=r"task c: there is no local/c/task\.toml"):
        ids(path, name="set@2.0")
    path.write_text('[{"name": "x"}]')
    with pytest.raises(TaskError, match=r"0\.version"):
        ids(path, name="x")


def test_other_options_are_still_refused(tmp_path):
    make(tmp_path, "a")
    with pytest.raises(ConfigError, match="no such option: colour"):
        ids(tmp_path, options={"colour": "red"})
