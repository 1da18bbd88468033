"""The one image that all tasks of a project stand in, and what is laid over it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping

from lego.inject.layout import Layout
from lego.inject.source import Project
from lego.tasks.task import Environment, File, Tree

APP = "/app"
PYTHON = "/opt/env/bin/python"
STAGE = "package"
TOOLS = ("pytest==9.2.0", "coverage==7.17.5")
REPO_TAR = "repo.tar"
BUG = "bug"
_TIME = 1_000_000_000

# Wheels, which builds pack files into, cannot say a time before 1980, and a builder may give what it adds time 0. What
# the project is installed from is taken away in the same step: an agent's files are all laid over at the start, so that
# none of them stands out by its time or place.
_DOCKERFILE = """\
FROM debian:bookworm AS {stage}
RUN (python3 -c 'import venv, ensurepip' && git --version) >/dev/null 2>&1 || \\
    (apt-get update && apt-get install -y --no-install-recommends python3 python3-venv git && \\
     rm -rf /var/lib/apt/lists/*)
ADD {repo} {app}/
WORKDIR {app}
RUN find {app} -exec touch {{}} + && python3 -m venv /opt/env && \\
{steps}
    {python} -m pip uninstall -q -y pip && find {app} -mindepth 1 -delete
ENV PATH=/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
FROM {stage}
ADD {repo} {app}/
COPY {bug}/ {app}/
"""


def dockerfile(layout: Layout, pins: Mapping[str, str] | None = None) -> str:
    """The Dockerfile of every task of a project. Without `pins` (name to version) pip chooses what is not pinned."""
    install = f"    {PYTHON} -m pip install -q --no-cache-dir"
    if pins is None:
        wanted = " ".join(f"'{one}'" for one in (*TOOLS, *layout.requirements))
        project = f" -e {APP}" if layout.installable else ""
        steps = [f"{install} {wanted}{project} && \\"]
    else:
        wanted = " ".join(f"'{name}=={version}'" for name, version in sorted(pins.items()))
        steps = [f"{install} --no-deps {wanted} && \\"]
        steps += [f"{install} --no-deps -e {APP} && \\"] if layout.installable else []
    if not layout.installable:
        steps.append(f"    printf '{APP}\\n{APP}/src\\n' > $(echo /opt/env/lib/python3*/site-packages)/app.pth && \\")
    return _DOCKERFILE.format(stage=STAGE, repo=REPO_TAR, app=APP, bug=BUG, python=PYTHON, steps="\n".join(steps))


def environment(text: str, project: Project) -> Environment:
    """The shared stage of the Dockerfile, as an environment that can be built by itself."""
    context = {"Dockerfile": File(shared_stage(text).encode()), REPO_TAR: File(pack(project.tree))}
    return Environment(context=context, workdir=APP, roots=(APP,))


def shared_stage(text: str) -> str:
    return text[: text.rindex("FROM ")]


def pack(tree: Tree, paths: Iterable[str] | None = None) -> bytes:
    """A tar of files in the order of their paths, with one owner and time for all: equal files give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(tree if paths is None else paths):
            info = tarfile.TarInfo(path)
            info.size, info.mode, info.mtime = len(tree[path].data), tree[path].mode, _TIME
            tar.addfile(info, io.BytesIO(tree[path].data))
    return buffer.getvalue()
