"""Checkpoints: a folder that is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from lego.engine.adapter import BASE_FILE
from lego.errors import TrainerError

OPTIMIZER_FILE = "optimizer.pt"
NOTES_FILE = "trainer.json"

_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"}
_WRITTEN_ANEW = {"config.json", "generation_config.json", NOTES_FILE, BASE_FILE}


def write_whole(target: Path, write: Callable[[Path], None]) -> None:
    """Have `write` fill a folder beside `target`, flush it to disk, then rename it into place.

    A reader, or a crash at any moment, sees the whole folder or none. What an earlier, killed attempt left under the
    same name is replaced: a checkpoint counts only once the database names it. One writer a target at a time.
    Raises TrainerError when the disk refuses; nothing is left behind then.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for stale in target.parent.glob(f".{target.name}.writing-*"):
            shutil.rmtree(stale)
        aside = target.parent / f".{target.name}.writing-{os.getpid()}"
        aside.mkdir()
    except OSError as error:
        raise _refused(target, error) from error
    try:
        write(aside)
        _flush(aside)
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
        _flush_folder(target.parent)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors wrap a full disk in their own
        raise _refused(target, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def laid_out(tensor: Tensor, folder: Path) -> Tensor:
    """A copy of `tensor` in a file of `folder` without a name, gone with the copy: memory that the system can write out
    and use for something else, as it cannot a process's own.

    Raises OSError where the disk has no room for it.
    """
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, tensor.nbytes)  # a full disk would end the process where it is written to
        place = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    return place.view(tensor.shape).copy_(tensor)


def copy_companions(source: Path, target: Path) -> None:
    """Copy what a policy needs beside its weights (tokenizer, chat template, licence) as it stands."""
    for file in sorted(source.iterdir()):
        is_weight = file.suffix in _WEIGHT_SUFFIXES or file.name.endswith(".index.json")
        if file.is_file() and not is_weight and file.name not in _WRITTEN_ANEW and not (target / file.name).exists():
            shutil.copyfile(file, target / file.name)


def _refused(target: Path, error: Exception) -> TrainerError:
    reason = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
    return TrainerError(
        f"cannot write checkpoint {target}: {reason or error}",
        hint="free some disk (lego gc removes old checkpoints), then run the command again",
    )


def _flush(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            _flush_folder(path)
        else:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
