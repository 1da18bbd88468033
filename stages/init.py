"""`lego init`: a commented config to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lego.config.load import load
from lego.config.starter import starter
from lego.errors import ConfigError
from lego.harness.spec import load_spec
from stages._common import DEFAULT_CONFIG


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=DEFAULT_CONFIG)
@click.option("--name", help="The run's name. [default: the file's]")
@click.option(
    "--model",
    default="tiny",
    show_default=True,
    help="A Hugging Face folder or name; `tiny` makes a demo policy on the spot.",
)
@click.option(
    "--harness",
    multiple=True,
    default=["tiny-agent"],
    show_default=True,
    help="A harness; repeat for several, which then share the groups evenly.",
)
@click.option("--tasks", help="A Harbor task folder, or a folder of many. [default: generated one-line bugs]")
@click.option("--eval-tasks", help="Held-out tasks, as --tasks.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def command(
    file: Path,
    name: str | None,
    model: str,
    harness: tuple[str, ...],
    tasks: str | None,
    eval_tasks: str | None,
    force: bool,
) -> None:
    """Write a commented config to FILE, with every setting, its default and what it means."""
    if file.exists() and not force:
        raise ConfigError(f"{file}: is already there", hint="--force replaces it; or name another file")
    chosen: dict[str, Any] = {
        "run.name": name or file.stem,
        "policy.model": model,
        "policy.renderer": "tiny-chatml" if model == "tiny" else "auto",
        "tasks.train": [_harbor(tasks) if tasks else _generated(count=64, seed=1)],
        "harness": {each: 1.0 for each in harness},
    }
    if eval_tasks:
        chosen["tasks.eval"] = [_harbor(eval_tasks)]
    elif not tasks:
        chosen["tasks.eval"] = [_generated(count=32, seed=2)]
    _refuse_missing(model, tasks, eval_tasks)
    for each in harness:
        load_spec(each)
    before = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_bytes() if file.exists() else None
        file.write_text(starter(chosen), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}", hint="name a file you can write") from error
    try:
        load(file)
    except ConfigError:
        # What was asked for makes no valid config: leave the folder as it was.
        file.unlink() if before is None else file.write_bytes(before)
        raise
    option = "" if str(file) == DEFAULT_CONFIG else f" -c {file}"
    click.echo(f"wrote {file}\nnext: lego check{option}, then lego loop{option}")


def _refuse_missing(model: str, tasks: str | None, eval_tasks: str | None) -> None:
    """What is spelled wrongly is best told now, not by the first command that needs it."""
    for option, path in (("--tasks", tasks), ("--eval-tasks", eval_tasks)):
        if path and not Path(path).is_dir():
            raise ConfigError(f"{option}: there is no folder {path}", hint="name a task folder, or a folder of many")
    if model.startswith((".", "/")) and not Path(model).is_dir():
        raise ConfigError(
            f"--model: there is no folder {model}", hint="name a Hugging Face folder, a hub name, or tiny"
        )


def _harbor(path: str) -> dict[str, Any]:
    return {"source": "harbor", "path": path}


def _generated(count: int, seed: int) -> dict[str, Any]:
    return {"source": "family", "name": "off-by-one", "count": count, "seed": seed}
