"""A run as the stages see it: its config, its database, its tasks, its harnesses, its policies."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lego.config.load import Loaded, flat, tags
from lego.config.schema import Config
from lego.errors import ConfigError
from lego.harness.spec import HarnessSpec, load_spec
from lego.policy import PolicyRef
from lego.rundb import catalogue, meta, rounds
from lego.rundb.catalogue import TaskEntry
from lego.rundb.paths import run_db, run_folder
from lego.rundb.store import Store, git_commit
from lego.tasks.load import load_all
from lego.tasks.task import Task
from lego.units import parse_duration, parse_size

_PROVENANCE = ("lego", "torch", "transformers", "renderers", "podman", "numpy")


@dataclass
class Run:
    """`tasks` and `specs` by id and name; `folder` holds the database, checkpoints and logs."""

    config: Config
    folder: Path
    store: Store
    tasks: dict[str, Task]
    specs: dict[str, HarnessSpec]

    @property
    def policies_dir(self) -> Path:
        return self.folder / "policies"

    @property
    def logs_dir(self) -> Path:
        return self.folder / "logs"

    def newest_policy(self) -> PolicyRef:
        """The newest version, making version 0 of the starting model at first use."""
        with _set_up_lock(self.folder):
            return catalogue.policy(self.store) or self._start()

    def policy(self, wanted: int) -> PolicyRef:
        found = catalogue.policy(self.store, wanted)
        if found is None:
            raise ConfigError(f"there is no policy {wanted} in this run", hint="lego status -c CONFIG lists them")
        return found

    def trainable(self) -> list[str]:
        """The tasks of training rounds: those with a solution, so that they are known to tell solved from unsolved."""
        known = ((one, self.tasks.get(one)) for one in catalogue.task_ids(self.store, "train"))
        return [one for one, task in known if task is None or task.solution]

    def harness_of(self, task: str, ordinal: int) -> str:
        """The harness of a task's group in round `ordinal`: its own, or one drawn by weight."""
        known = self.tasks.get(task)
        own = known.harness if known else ""
        return own or rounds.pick_harness(dict(self.config.harness), self.config.run.seed, ordinal, task)

    def _start(self) -> PolicyRef:
        from lego.engine.digest import folder_digest

        path = self._starting_folder(self.config.policy.model)
        return catalogue.add_policy(
            self.store, parent=None, path=str(path), digest=folder_digest(path), made_by="start"
        )

    def _starting_folder(self, model: str) -> Path:
        if model == "tiny":
            from lego.trainer.tiny import make_tiny

            target = self.policies_dir / "0"
            half = self.policies_dir / ".0.making"
            shutil.rmtree(half, ignore_errors=True)
            shutil.rmtree(target, ignore_errors=True)
            make_tiny(half, self.config.run.seed, _corpus(self.tasks.values()))
            half.rename(target)
            return target
        if Path(model).is_dir():
            return Path(model).resolve()
        if model.startswith((".", "/")) or model.count("/") != 1:
            raise ConfigError(
                f"policy.model: there is no folder {model}", hint="name a Hugging Face folder, a hub name, or tiny"
            )
        return _from_hub(model)


def open_run(loaded: Loaded) -> Run:
    """Open (or begin) the run that a config describes; every identity is frozen at first use.

    Raises ConfigError if an identity field, a task or a harness changed since, and what loading tasks and specs
    raises.
    """
    config = loaded.config
    folder = run_folder(config.run.dir, config.run.name)
    train, held_out = load_all(config.tasks)
    named = {task.harness for task in (*train, *held_out) if task.harness}
    specs = {name: load_spec(name) for name in sorted({*config.harness, *named})}
    for name, spec in specs.items():
        if parse_size(config.sandbox.memory) < parse_size(spec.run.memory):
            raise ConfigError(
                f"sandbox.memory: {name} needs at least {spec.run.memory}, and is given {config.sandbox.memory}",
                hint="it would end in the middle of a trial, and the policy would get the blame",
            )
    store = Store.open(
        run_db(config.run.dir, config.run.name),
        lease=parse_duration(config.rollout.lease),
        pause=parse_duration(config.rollout.retry_pause),
    )
    with _set_up_lock(folder), store.write():
        meta.settle_config(store, flat(config), tags())
        for name, spec in specs.items():
            meta.settle_identity(store, f"harness.{name}", _spec_digest(spec), f"the harness spec {name}")
        catalogue.register_tasks(store, [*_entries("train", train), *_entries("eval", held_out)])
        _record_provenance(store)
    tasks = {task.id: task for task in (*train, *held_out)}
    return Run(config, folder, store, tasks, specs)


def _entries(split: catalogue.Split, tasks: Iterable[Task]) -> Iterator[TaskEntry]:
    for task in tasks:
        yield TaskEntry(task.id, split, task.digest, task.metadata.get("source", ""), task.instruction, task.where)


def _spec_digest(spec: HarnessSpec) -> str:
    return hashlib.sha256(repr((spec.install, spec.run, spec.calls, spec.limits, spec.dialect)).encode()).hexdigest()


def _record_provenance(store: Store) -> None:
    for name in _PROVENANCE:
        try:
            meta.put(store, f"version.{name}", version(name))
        except PackageNotFoundError:
            continue
    commit = git_commit(Path(__file__).parent)
    if commit:
        meta.put(store, "git_commit", commit)


@contextmanager
def _set_up_lock(folder: Path) -> Iterator[None]:
    """One process at a time sets a run up; the kernel releases the lock of a killed one."""
    handle = os.open(folder / ".setup.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _corpus(tasks: Iterable[Task]) -> list[str]:
    """Text as the policy will meet it, for a tokenizer made on the spot. A few hundred tasks say it all."""
    texts: list[str] = []
    for task in list(tasks)[:400]:
        texts.append(task.instruction)
        texts += [file.data.decode(errors="replace") for file in task.environment.workspace.values()]
        texts += [step.command for step in task.demonstration]
    return texts


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name))
    except Exception as error:  # the hub client raises many kinds; all mean the same here
        raise ConfigError(
            f"policy.model: {name} is neither a folder nor could it be downloaded: {error}",
            hint="name a Hugging Face folder on this machine, a hub name, or tiny",
        ) from error
