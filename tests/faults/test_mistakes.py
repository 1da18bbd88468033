"""A user's mistakes: one clear line, the right exit code, nothing half-written."""

import shutil

import pytest


@pytest.fixture
def begun(project):
    project.task("good")
    project.write()
    return project


def nothing_written(project) -> bool:
    return not (project.folder / "runs").exists()


@pytest.mark.parametrize(
    "override, said",
    [
        ("rolout.max_turns=3", "rolout: no such key; did you mean rollout?"),
        ("rollout.max_turn=3", "rollout.max_turn: no such key; did you mean rollout.max_turns?"),
        ("rollout.max_turns=many", "rollout.max_turns: must be a whole number, not 'many'"),
        ("sandbox.timeout=soon", "sandbox.timeout: 'soon' is not a duration"),
    ],
)
def test_a_setting_that_cannot_be(begun, override, said):
    result = begun.lego("rollout", override)
    assert result.code == 2 and said in result.error and "(command line)" in result.error
    assert nothing_written(begun)


def test_a_wrong_setting_in_the_file_is_named_with_its_line(begun):
    begun.write(rollout={"samples_per_taks": 3})
    lines = (begun.folder / "lego.yaml").read_text().splitlines()
    number = next(at for at, line in enumerate(lines, 1) if "samples_per_taks" in line)
    result = begun.lego("rollout")
    assert result.code == 2 and nothing_written(begun)
    assert "did you mean rollout.samples_per_task?" in result.error and f"lego.yaml line {number}" in result.error


def test_a_harness_that_is_misspelt(begun):
    begun.write(harness={"tiny-agnet": 1.0})
    result = begun.lego("rollout")
    assert result.code == 2 and nothing_written(begun)
    assert result.error == "lego: harness: no harness spec named 'tiny-agnet'\n      did you mean tiny-agent?"


def test_a_harness_whose_program_nothing_installs(begun):
    spec = begun.folder / "mine.yaml"
    spec.write_text(
        "name: mine\ndialect: openai_chat\nrun: {argv: [my-agent]}\nscript: {tool: bash, submit: {tool: submit}}\n"
    )
    begun.write(harness={str(spec): 1.0})
    result = begun.lego("rollout")
    assert result.code == 2 and nothing_written(begun)
    assert f"{spec}: run.argv: nothing installs my-agent" in result.error and "under install" in result.error


@pytest.mark.parametrize("missing", ["instruction.md", "task.toml", "tests/test.sh", "environment/Dockerfile"])
def test_a_task_with_a_missing_file(begun, missing):
    folder = begun.task("broken")
    (folder / missing).unlink()
    result = begun.lego("rollout")
    assert result.code == 2 and nothing_written(begun)
    assert f"tasks/broken: {missing} is missing" in result.error and "lego tasks validate" in result.error


@pytest.mark.parametrize(
    "toml, said",
    [
        ('schema_version = "1.4\n', "tasks/broken/task.toml: not valid TOML:"),
        ('[agent]\ntimeout_sec = "long"\n', "tasks/broken/task.toml: agent.timeout_sec:"),
        ("[environment]\ngpus = 2\n", "tasks/broken: not supported: environment.gpus"),
        ('[[steps]]\nname = "one"\n', "tasks/broken/steps/one: instruction.md is missing"),
        ('[environment]\nnetwork_mode = "public"\n', "not supported: environment.network_mode = public"),
    ],
)
def test_a_task_that_says_what_cannot_be(begun, toml, said):
    begun.task("broken", toml=toml)
    result = begun.lego("tasks", "ls")
    assert result.code == 2 and said in result.error


def test_validate_names_the_broken_tasks_and_counts_the_others(begun):
    (begun.task("broken") / "instruction.md").unlink()
    begun.task("worse", toml="=")
    result = begun.lego("tasks", "validate")
    assert result.code == 1
    assert "tasks/broken: instruction.md is missing" in result.out and "tasks/worse/task.toml: not valid" in result.out
    assert "1 task loaded, 2 errors" in result.out


@pytest.mark.parametrize("command", [("status",), ("show", "1"), ("show", "last")])
def test_looking_at_a_run_that_was_not_begun(begun, command):
    result = begun.lego(*command)
    assert result.code == 2 and nothing_written(begun)
    assert "there is no run at" in result.error and "lego rollout" in result.error


def test_training_on_nothing(begun):
    result = begun.lego("train")
    assert result.code == 2 and nothing_written(begun)
    assert (
        result.error == "lego: trainer: no round is open: there is nothing to train on\n      lego rollout begins one"
    )


def test_help_fits_80_columns(begun):
    for command in ((), ("rollout",), ("verify",), ("eval",), ("tasks", "ls"), ("init",)):
        result = begun.lego(*command, "--help", env={"COLUMNS": "80"})
        assert result.code == 0 and result.err == ""
        assert max(map(len, result.out.splitlines())) <= 80, command
        assert "\x1b" not in result.out


def test_the_others_say_nothing_of_a_task_that_is_gone(begun):
    shutil.rmtree(begun.folder / "tasks")
    result = begun.lego("tasks", "ls")
    assert result.code == 2 and "no such folder of tasks: tasks" in result.error
