"""One image for many tasks: a stage of the Dockerfile that they share, and what each lays over it at its start."""

from __future__ import annotations

import functools
import io
import re
import tarfile
from collections.abc import Sequence
from types import MappingProxyType

from lego.tasks.reading import in_short
from lego.tasks.task import File, Tree

_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*\S+(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE | re.MULTILINE)
DOCKERFILE = "Dockerfile"


def split(context: Tree, stage: str, over: Sequence[str], workdir: str) -> tuple[Tree, Tree]:
    """The build context of `stage` alone, and the files that `over` lays over it (absolute paths).

    `over` names tar archives and folders of the context whose files go below `workdir`, the later ones winning; the
    Dockerfile's stages after `stage` do the same for who builds all of it. Folders leave the context; archives stay,
    as the stage may install from them. Raises ValueError, saying what is wrong.
    """
    if DOCKERFILE not in context or not workdir:
        raise ValueError("stage needs a Dockerfile, and environment.workdir to lay files in")
    text = context[DOCKERFILE].data.decode(errors="replace")
    stages = list(_FROM.finditer(text))
    numbers = [number for number, found in enumerate(stages) if found[1] == stage]
    if not numbers:
        raise ValueError(f"the Dockerfile has no stage {stage!r}")
    end = stages[numbers[0] + 1].start() if numbers[0] + 1 < len(stages) else len(text)
    kept = {**context, DOCKERFILE: File(text[:end].encode())}
    laid: dict[str, File] = {}
    for name in over:
        inside = {path: file for path, file in context.items() if path.startswith(f"{name}/")}
        if name in context:
            laid |= {f"{workdir}/{path}": file for path, file in _unpacked(context[name].data).items()}
        elif inside:
            laid |= {f"{workdir}/{path[len(name) + 1 :]}": file for path, file in inside.items()}
            kept = {path: file for path, file in kept.items() if path not in inside}
        else:
            raise ValueError(f"environment/ holds no {name!r}")
    return kept, laid


@functools.lru_cache(maxsize=64)
def _unpacked(data: bytes) -> Tree:
    """The regular files of a tar. Tasks that share an archive share its files in memory. Raises ValueError."""
    files: dict[str, File] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isfile() else None
                if file is not None:
                    files[member.name.removeprefix("./")] = File(file.read(), 0o755 if member.mode & 0o111 else 0o644)
    except Exception as error:  # tarfile and what unpacks for it raise whatever broken bytes lead them to
        raise ValueError(f"an archive cannot be read: {in_short(error)}") from error
    return MappingProxyType(files)
