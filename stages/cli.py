"""The command `lego`: a group whose commands are imported only when used, and the one place errors become words.

Exit codes: 0 done; 1 the work failed; 2 usage or config; 3 infrastructure; 4 a gate was not met; 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import select
import sys
from collections.abc import Sequence

import click

from lego.errors import GateError, LegoError, StoreError

COMMANDS: dict[str, str] = {
    "init": "Write a commented config for your model, harness and tasks.",
    "check": "Probe this machine, the sandbox, the engine and each harness.",
    "tasks": "List, validate, filter and make tasks.",
    "build-images": "Build the images of the tasks and harnesses.",
    "images": "List images, carry them to other machines.",
    "rollout": "Run the trials of the open round.",
    "verify": "Grade what the trials left, each in a fresh container.",
    "sft": "Teach the policy from demonstrations.",
    "train": "Turn a round into samples, a step and the next policy.",
    "eval": "Measure a policy on held-out tasks.",
    "loop": "Run the whole circle, round after round.",
    "try": "Run one attempt of one task in the foreground.",
    "status": "Say where a run stands and whether something looks wrong.",
    "show": "Show a trial: turns, tool calls, reward and why; or a task's trials.",
    "shell": "Open a shell in what a trial left.",
    "monitor": "Watch a run live in the terminal.",
    "report": "Write the run as one self-contained HTML file.",
    "export": "Write trials as a data set: tokens, chats or ATIF.",
    "config": "Print every setting of a config and where it came from.",
    "gc": "Remove what no run needs any more.",
}
"""Command -> its one line of help. The command `a-b` is stages/a_b.py; `try`, a word of Python's, is try_.py."""

USAGE, WORK, INFRASTRUCTURE, GATE, INTERRUPTED = 2, 1, 3, 4, 130


def module_of(command: str) -> str:
    """The module that holds a command."""
    name = command.replace("-", "_")
    return f"stages.{'try_' if name == 'try' else name}"


class LazyGroup(click.Group):
    """Knows its commands' names and one-line helps; imports a command's module when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(module_of(cmd_name)).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="lego", message="lego %(version)s")
def cli() -> None:
    """Train coding agents by reinforcement learning inside the harness they will be used in.

    Two commands to start: `lego init`, then `lego loop`. Every command takes -c CONFIG and key=value overrides.
    """


def exit_code(error: LegoError) -> int:
    """The exit code that an error ends a command with."""
    if isinstance(error, GateError):
        return GATE
    return {"user": USAGE, "infra": INFRASTRUCTURE}.get(error.fault, WORK)


def describe(error: LegoError) -> str:
    """`lego: boundary: message`, then the hint's lines, indented."""
    hint = "".join(f"\n      {line}" for line in error.hint.splitlines())
    return f"lego: {error}{hint}"


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code. Errors of lego's own are printed, never raised."""
    try:
        with cli.make_context("lego", list(args)) as context:
            cli.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        error.show()
        return USAGE
    except LegoError as error:
        print(describe(error), file=sys.stderr)
        return exit_code(error)
    except (KeyboardInterrupt, click.Abort):
        print("lego: interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _reader_gone():
            return WORK
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            print(describe(_disk_full(error)), file=sys.stderr)
            return INFRASTRUCTURE
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and error.filename:
            print(describe(_not_allowed(error)), file=sys.stderr)
            return USAGE
        raise


def _disk_full(error: OSError) -> LegoError:
    where = f": {error.filename}" if error.filename else ""
    return StoreError(f"the disk is full{where}", hint="free some space (`lego gc` helps) and run the command again")


def _not_allowed(error: OSError) -> LegoError:
    return StoreError(
        f"{error.filename}: {error.strerror}",
        hint="check the permissions of this place, or set run.dir or sandbox.store to another",
        fault="user",
    )


def _reader_gone() -> bool:
    """Whether it is our own standard output that nobody reads any more (as in `lego show 1 | head`)."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        gone = any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False
    if gone:
        # Python flushes standard output once more on the way out; there must be somewhere to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return gone


def main() -> None:
    """The entry point of the command `lego`."""
    # Read when torch loads. Threads that spin while they wait starve the sandboxes on the same cores (docs/log.md).
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    # transformers loads DeepSpeed where it finds it, and that warns on standard output, where `--json` belongs.
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        # An abandoned training step may still be computing in its thread, and Python cannot end that in good order.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
