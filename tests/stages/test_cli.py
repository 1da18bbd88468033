import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from lego.config.load import load, tags
from lego.errors import ConfigError, GateError, HarnessError, SandboxError, StoreError, TaskError
from stages import cli

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "vllm", "textual", "ray", "aiohttp", "podman", "rich", "omegaconf", "numpy"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEGO_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def lego(folder, capsys):
    """Runs a command line in an empty folder and returns (exit code, standard output, standard error)."""

    def run(*args: str) -> tuple[int, str, str]:
        code = cli.run(args)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def command(monkeypatch):
    """Puts a command of one's own in the place of `lego status`."""

    def put(body) -> None:
        module = ModuleType("stages.status")
        vars(module)["command"] = click.command("status")(body)
        monkeypatch.setitem(sys.modules, "stages.status", module)

    return put


def imported_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stderr.split()}


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_there_and_explains_itself(name):
    command = importlib.import_module(cli.module_of(name)).command
    assert isinstance(command, click.Command)
    assert command.help


def test_help_lists_every_command_and_loads_nothing_heavy():
    modules = imported_by("from stages.cli import run\nassert run(['--help']) == 0")
    assert "click" in modules
    assert modules & HEAVY == set()


def test_help_names_the_commands_in_the_order_of_the_circle(lego):
    code, out, _ = lego("--help")
    places = [out.index(f"\n  {name} ") for name in cli.COMMANDS]
    assert code == 0 and places == sorted(places)


def test_config_show_loads_no_model_library():
    modules = imported_by(
        f"from stages.cli import run\nassert run(['config', 'show', '-c', {str(ROOT)!r} + '/configs/demo.yaml']) == 0"
    )
    assert modules & {"torch", "transformers", "vllm", "textual"} == set()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (StoreError("x"), 3),
        (SandboxError("x"), 3),
        (HarnessError("x", fault="policy"), 1),
        (TaskError("x"), 1),
        (TaskError("x", fault="user"), 2),
        (GateError("x"), 4),
    ],
)
def test_the_exit_code_says_whose_fault_it_is(lego, command, error, code):
    def fails() -> None:
        """Fails."""
        raise error

    command(fails)
    assert lego("status") == (code, "", f"lego: {error.boundary}: x\n")


def test_an_error_is_one_line_and_what_to_do(lego, command):
    def fails() -> None:
        raise SandboxError("podman cannot start a container", hint="install runc\nor set sandbox.runtime")

    command(fails)
    assert lego("status")[2] == (
        "lego: sandbox: podman cannot start a container\n      install runc\n      or set sandbox.runtime\n"
    )


def test_ctrl_c_ends_with_130(lego, command):
    def interrupted() -> None:
        raise KeyboardInterrupt

    command(interrupted)
    assert lego("status")[0] == 130


def test_a_full_disk_is_infrastructure(lego, command):
    def full() -> None:
        raise OSError(28, "No space left on device", "runs/a/run.db")

    command(full)
    code, _, err = lego("status")
    assert code == 3 and err.startswith("lego: store: the disk is full: runs/a/run.db\n") and "lego gc" in err


@pytest.mark.parametrize(("number", "reason"), [(13, "Permission denied"), (30, "Read-only file system")])
def test_a_place_that_may_not_be_written_is_the_user_s(lego, command, number, reason):
    def refused() -> None:
        raise OSError(number, reason, "runs/a/.setup.lock")

    command(refused)
    code, _, err = lego("status")
    assert code == 2 and err.startswith(f"lego: store: runs/a/.setup.lock: {reason}\n") and "run.dir" in err


def test_a_bug_is_not_hidden(folder, command):
    def bug() -> None:
        raise BrokenPipeError(32, "a socket of ours, not standard output")

    command(bug)
    with pytest.raises(BrokenPipeError):
        cli.run(["status"])


def test_a_reader_that_goes_away_is_no_error():
    script = (
        "import sys, types, click\n"
        "from stages import cli\n"
        "module = types.ModuleType('stages.status')\n"
        "module.command = click.command()(lambda: [click.echo('x' * 1000) for _ in range(10000)])\n"
        "sys.modules['stages.status'] = module\n"
        "sys.argv = ['lego', 'status']\n"
        "cli.main()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


@pytest.mark.parametrize("args", [["no-such-command"], ["--no-such-option"], ["config", "show", "--no-such-option"]])
def test_usage_errors_end_with_2(lego, args):
    code, out, err = lego(*args)
    assert code == 2 and out == "" and "Usage" in err


def test_without_a_config_it_says_what_to_do(lego):
    code, _, err = lego("config", "show")
    assert code == 2 and "no config given" in err and "lego init" in err


def test_init_writes_a_config_that_every_command_then_finds(lego):
    code, out, _ = lego("init")
    assert code == 0 and "wrote lego.yaml" in out
    config = load("lego.yaml").config
    assert (config.policy.model, config.policy.renderer) == ("tiny", "tiny-chatml")
    assert config.tasks.train and config.tasks.eval
    assert lego("config", "show")[0] == 0


def test_init_takes_the_user_s_model_harnesses_and_tasks(lego, folder):
    for each in ("tasks/train", "tasks/held-out"):
        (folder / each).mkdir(parents=True)
    code, out, _ = lego(
        "init",
        "mine.yaml",
        "--model",
        "models/mine",
        "--harness",
        "tiny-agent",
        "--harness",
        "mini-swe-agent",
        "--tasks",
        "tasks/train",
        "--eval-tasks",
        "tasks/held-out",
    )
    assert code == 0 and "-c mine.yaml" in out
    config = load("mine.yaml").config
    assert config.run.name == "mine"
    assert (config.policy.model, config.policy.renderer) == ("models/mine", "auto")
    assert config.harness == {"tiny-agent": 1.0, "mini-swe-agent": 1.0}
    assert config.tasks.train[0].path == "tasks/train" and config.tasks.eval[0].path == "tasks/held-out"


def test_init_replaces_nothing_unasked(lego, folder):
    (folder / "lego.yaml").write_text("mine")
    code, _, err = lego("init")
    assert code == 2 and "already there" in err
    assert (folder / "lego.yaml").read_text() == "mine"
    assert lego("init", "--force")[0] == 0
    assert load("lego.yaml").config.run.name == "lego"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--tasks", "no/tasks"], "--tasks: there is no folder no/tasks"),
        (["--eval-tasks", "no/tasks"], "--eval-tasks: there is no folder no/tasks"),
        (["--model", "./no-model"], "--model: there is no folder ./no-model"),
        (["--harness", "tiny-agnt"], "no harness spec named 'tiny-agnt'"),
        (["/dev/null/a.yaml"], "/dev/null/a.yaml: cannot be written"),
    ],
)
def test_init_tells_what_is_not_there(lego, folder, asked, told):
    code, _, err = lego("init", *asked)
    assert code == 2 and told in err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", ["gc", "status", "report"])
def test_commands_that_look_at_a_run_begin_none(lego, folder, command):
    assert lego("init")[0] == 0
    code, _, err = lego(command)
    assert code == 2 and "there is no run at" in err
    assert [path.name for path in folder.iterdir()] == ["lego.yaml"]


def test_checking_a_config_begins_no_run(lego, folder):
    assert lego("init")[0] == 0
    code, out, _ = lego("check", "--only", "machine")
    assert code in (0, 4) and "96 tasks" in out
    assert [path.name for path in folder.iterdir()] == ["lego.yaml"]


def test_a_run_folder_that_cannot_be_made_is_named(lego):
    assert lego("init")[0] == 0
    code, _, err = lego("rollout", "run.dir=/dev/null/runs")
    assert code == 2 and "cannot make the run's folder /dev/null/runs/lego" in err and "run.dir" in err


def test_init_leaves_no_config_that_does_not_load(lego, folder):
    code, _, err = lego("init", "--name", "a/b")
    assert code == 2 and "run.name" in err
    assert list(folder.iterdir()) == []
    (folder / "lego.yaml").write_text("mine")
    assert lego("init", "--name", "a/b", "--force")[0] == 2
    assert (folder / "lego.yaml").read_text() == "mine"


def test_config_show_prints_value_tag_and_origin(lego):
    lego("init")
    code, out, _ = lego("config", "show", "rollout.max_turns=3", "-c", "lego.yaml")
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert code == 0 and list(rows) == list(tags())
    assert rows["rollout.max_turns"].split() == ["3", "tunable", "command", "line"]
    assert rows["run.name"].split()[:2] == ['"lego"', "identity"] and "lego.yaml:" in rows["run.name"]
    assert rows["run.dir"].split() == ['"runs"', "machine", "default"]


def test_config_show_for_machines(lego):
    lego("init")
    code, out, _ = lego("config", "show", "--json", "harness.other=2")
    shown = json.loads(out)
    assert code == 0
    assert shown["harness"] == {"value": {"tiny-agent": 1.0, "other": 2.0}, "tag": "identity", "origin": "command line"}


def test_the_environment_may_name_the_config(lego, folder, monkeypatch):
    lego("init", "elsewhere.yaml")
    monkeypatch.setenv("LEGO_CONFIG", "elsewhere.yaml")
    assert "elsewhere.yaml:" in lego("config", "show")[1]


def test_a_bad_override_is_a_config_error(lego):
    lego("init")
    code, _, err = lego("config", "show", "rollout.max_turn=3")
    assert code == 2
    assert err == "lego: config: rollout.max_turn: no such key; did you mean rollout.max_turns? (command line)\n"
