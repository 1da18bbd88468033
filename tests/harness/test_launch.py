from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from lego.errors import HarnessError
from lego.harness.launch import MAX_ARGUMENT, LaunchValues, render
from lego.harness.spec import Install, Run, load_spec

VALUES = LaunchValues(
    instruction="Fix {token} and {nothing}",
    token="s3cret",
    model="policy",
    max_turns=7,
    max_output_tokens=99,
    context=4096,
    temperature=0.5,
    workdir="/app",
)
BASE = load_spec("tiny-agent")


def spec(install: Install | None = None, **run: object):
    return replace(BASE, install=install or Install(), run=Run(**run))  # type: ignore[arg-type]


def test_values_are_filled_in_once():
    launch = render(
        spec(
            argv=("/x", "{instruction}", "--n={max_turns}/{max_output_tokens}/{context}/{temperature}"),
            env={"KEY": "{token}", "DIR": "{workdir}"},
        ),
        VALUES,
        "tag",
    )
    assert launch.argv == ("/x", "Fix {token} and {nothing}", "--n=7/99/4096/0.5")
    assert launch.env == {"KEY": "s3cret", "DIR": "/app"}
    assert launch.image_mount == ("tag", "/opt/harness") and launch.stdin is None


def test_braces_that_name_nothing_stay():
    launch = render(spec(argv=("/x",), files={"/tmp/c.json": '{"a": {"model": "{model}"}, "b": {}}'}), VALUES, "t")
    assert launch.files["/tmp/c.json"].data == b'{"a": {"model": "policy"}, "b": {}}'


def test_the_instruction_on_stdin():
    assert render(spec(argv=("/x",), stdin="instruction"), VALUES, "t").stdin == b"Fix {token} and {nothing}"


def test_only_a_harness_that_wants_an_address_gets_the_forwarder():
    assert "/opt/harness/lego/forward.py" not in render(spec(argv=("/x", "{socket}")), VALUES, "t").argv
    argv = render(spec(argv=("/x",), env={"URL": "{proxy}/v1"}), VALUES, "t").argv
    at = argv.index("/opt/harness/lego/forward.py")
    assert argv[at + 1 :] == ("4141", "/run/lego/proxy.sock", "/x")
    assert argv[0] == "/opt/harness/lego/ld.so"


def test_programs_run_on_the_runtimes_own_loader_isolated():
    venv = Install(pip={"h": "1"})
    script = render(spec(venv, argv=("h", "-x")), VALUES, "t").argv
    assert script[:3] == ("/opt/harness/lego/ld.so", "--library-path", "/opt/harness/lego/lib")
    assert script[3:] == ("/opt/harness/venv/bin/python", "-I", "/opt/harness/venv/bin/h", "-x")
    own = render(spec(argv=("python", "a.py")), VALUES, "t").argv
    assert own[3:] == ("/opt/harness/lego/python", "-I", "-S", "a.py")
    assert render(spec(venv, argv=("python", "a.py")), VALUES, "t").argv[3] == "/opt/harness/venv/bin/python"


def test_a_native_program_runs_by_itself():
    npm = Install(npm={"@scope/h": "1"})
    assert render(spec(npm, argv=("h", "-x")), VALUES, "t").argv == ("/opt/harness/npm/bin/h", "-x")
    assert render(spec(npm, argv=("python", "a.py")), VALUES, "t").argv[3] == "/opt/harness/lego/python"


def test_an_instruction_too_long_for_an_argument_is_the_tasks_fault():
    longest = replace(VALUES, instruction="é" * (MAX_ARGUMENT // 2))
    assert render(BASE, longest, "t")
    with pytest.raises(HarnessError) as caught:
        render(BASE, replace(VALUES, instruction="é" * (MAX_ARGUMENT // 2 + 1)), "t")
    assert caught.value.fault == "task"
    assert render(spec(argv=("/x",), stdin="instruction"), replace(VALUES, instruction="x" * 10**6), "t").stdin


def test_a_file_that_says_what_runs_it_can_be_executed():
    files = render(spec(argv=("/x",), files={"/tmp/rg": "#!/bin/sh\n", "/tmp/c": "a"}), VALUES, "t").files
    assert (files["/tmp/rg"].mode, files["/tmp/c"].mode) == (0o755, 0o644)


@pytest.mark.parametrize("name", ["codex", "opencode", "qwen-code"])
def test_the_settings_of_the_shipped_harnesses_are_read_as_such(name):
    """A brace too many would be found by the real harness alone."""
    launch = render(load_spec(name), VALUES, "t")
    read = {".json": json.loads, ".toml": tomllib.loads}
    settings = [read[PurePosixPath(p).suffix](f.data.decode()) for p, f in launch.files.items() if "." in p]
    (told,) = (json.dumps(one) for one in settings)
    assert "4096" in told, "the context window"
    assert ("http://127.0.0.1:4141/v1" in told) or launch.env["OPENAI_BASE_URL"] == "http://127.0.0.1:4141/v1"
