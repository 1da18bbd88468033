"""Recipes: the build context of a task's image, of a verifier's and of a harness's runtime image, as pure functions of
content."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files

from lego.config.schema import ImagesSection
from lego.errors import TaskError
from lego.harness.launch import MOUNT
from lego.harness.spec import HarnessSpec
from lego.images import dockerfile, keys
from lego.images.frozen import frozen
from lego.tasks.task import Environment, File, Task, Tree

DOCKERFILE = "Dockerfile"
_SUITES = ("bullseye", "bookworm", "trixie")
_RUNTIME_PACKAGES = ("python3", "python3-venv", "ca-certificates")


@dataclass(frozen=True)
class Recipe:
    """What `podman build` gets. `restore_user` is the USER that stands at the end, None where the base's own does."""

    dockerfile: str
    context: Tree
    base: str = ""
    restore_user: str | None = ""
    purge: bool = False

    @property
    def key(self) -> str:
        return keys.digest(self.dockerfile, keys.tree_digest(self.context), PURGE if self.purge else "")


def replacements(section: ImagesSection) -> dict[str, str]:
    """FROM lines and what stands in for them. `base`, as a value of images.base_map, is the run's base image."""
    base = keys.base_tag(section)
    own = {suite.base: tag for tag, suite in suites(section).items()}
    return own | {image: base if target == "base" else target for image, target in section.base_map.items()}


def suites(section: ImagesSection) -> dict[str, ImagesSection]:
    """Debian base images that are built from packages where a Dockerfile stands on them: tag -> what it is made of.

    None, where the run's own base is made in another way.
    """
    kind, name = keys.split_base(section.base)
    if kind != "debian":
        return {}
    made = [section] + [replace(section, base=f"debian:{suite}") for suite in _SUITES if suite != name]
    return {keys.base_tag(one): one for one in made}


def task_recipe(task: Task, section: ImagesSection) -> Recipe:
    """The recipe of the image a task's agent works in. Raises TaskError where there is no usable Dockerfile."""
    return environment_recipe(task.environment, section, task.where or task.id)


def environment_recipe(environment: Environment, section: ImagesSection, where: str) -> Recipe:
    context = dict(environment.context)
    if environment.image:
        text = f"FROM {environment.image}\n"
    elif DOCKERFILE in context:
        text = context[DOCKERFILE].data.decode(errors="replace")
    else:
        raise TaskError(
            f"{where}: environment/{DOCKERFILE} is missing",
            hint="add one, or name a prebuilt image as docker_image in task.toml",
        )
    try:
        rewritten = dockerfile.rewrite(text, replacements(section))
    except ValueError as error:
        raise TaskError(f"{where}: {DOCKERFILE}: {error}") from error
    own_base = rewritten.final_base in suites(section) or (
        rewritten.final_base == keys.base_tag(section) and not section.base.startswith("registry:")
    )
    user = rewritten.final_user or ("0" if own_base else None)
    return Recipe(rewritten.text, context, rewritten.final_base, user, purge=_writes_files(rewritten.text))


def runtime_section(spec: HarnessSpec, section: ImagesSection) -> ImagesSection:
    """What a harness's runtime image stands on: the run's base image, or the Debian suite that the spec asks for.

    An image that images.base_map puts in that suite's place is taken instead, as it is for tasks.
    """
    wanted = f"debian:{spec.install.suite}"
    if not spec.install.suite or section.base == wanted:
        return section
    mapped = {dockerfile.canonical(image): target for image, target in section.base_map.items()}.get(wanted)
    if mapped == "base":
        return section
    if mapped:
        return replace(section, base=f"registry:{mapped}")
    return replace(section, base=wanted, packages=list(_RUNTIME_PACKAGES))


def runtime_recipe(spec: HarnessSpec, section: ImagesSection) -> Recipe:
    """The recipe of a harness's runtime image: see lego.harness.launch for how it is used."""
    base = keys.base_tag(runtime_section(spec, section))
    lines = [*_npm_stage(spec, base), f"FROM {base}", "USER 0"]
    if spec.install.packages:
        packages = " ".join(spec.install.packages)
        lines.append(
            f"RUN apt-get update && apt-get install -y --no-install-recommends {packages} "
            "&& rm -rf /var/lib/apt/lists/*"
        )
    if spec.install.pip:
        wanted = " ".join(f"'{name}=={version}'" for name, version in sorted(spec.install.pip.items()))
        lines.append("RUN python3 -m venv /venv && /venv/bin/python -m pip install --no-cache-dir " + wanted)
    if spec.install.npm:
        lines.append("COPY --from=npm /npm /npm")
    if not spec.install.redistributable:
        lines.append("LABEL lego.redistributable=false")
    lines += ["COPY . /lego/", f"RUN {RELOCATE.format(venv=VENV if spec.install.pip else 'true')}"]
    context = {
        "forward.py": File(files("lego.harness").joinpath("forward.py").read_bytes()),
        "loader.py": File(files("lego.images").joinpath("loader.py").read_bytes()),
    }
    context |= {name: File(data) for name, data in spec.install.files.items()}
    return Recipe("\n".join(lines) + "\n", context, base)


def _npm_stage(spec: HarnessSpec, base: str) -> list[str]:
    """Where npm packages are installed: npm and the node it runs on stay behind. A harness that runs on node brings
    its own as a package.
    """
    if not spec.install.npm:
        return []
    wanted = " ".join(f"'{name}@{version}'" for name, version in sorted(spec.install.npm.items()))
    return [
        f"FROM {base} AS npm",
        "USER 0",
        "RUN apt-get update && apt-get install -y --no-install-recommends npm patchelf",
        f"RUN npm install --global --prefix /npm --no-audit --no-fund {wanted}",
        f"RUN {OWN_LOADER}",
    ]


def task_tag(task: Task, section: ImagesSection) -> str:
    """Name of a task's image; tasks with the same environment share it."""
    return keys.tag("task", task_recipe(task, section).key)


def verifier_recipe(task: Task, section: ImagesSection) -> Recipe | None:
    """The recipe of the image that a task's tests run in, where that is another one than the agent's."""
    if task.separate is not None and task.separate.bundled:
        return environment_recipe(task.separate.environment, section, f"{task.where or task.id}: verifier")
    if not task.installs:
        return None
    image = task_tag(task, section)
    text, context = frozen(task.installs, image, keys.base_tag(section))
    return Recipe(text, context, image, None)


def verifier_tag(task: Task, section: ImagesSection) -> str:
    """Name of the image that a task's tests run in."""
    recipe = verifier_recipe(task, section)
    return task_tag(task, section) if recipe is None else keys.tag("verifier", recipe.key)


def runtime_tag(spec: HarnessSpec, section: ImagesSection) -> str:
    """Name of a harness's runtime image; specs that install the same share it."""
    return keys.tag("runtime", runtime_recipe(spec, section).key)


def _writes_files(text: str) -> bool:
    words = {line.split(maxsplit=1)[0].upper() for line in dockerfile.instructions(text) if line.strip()}
    return bool(words & {"RUN", "COPY", "ADD"})


# Fixed names under /lego whatever the distribution and the architecture; every link is relative, because the image is
# used mounted at another place than it was built at.
RELOCATE = (
    'set -e; real=$(readlink -f "$(ls /lib64/ld-linux*.so* /lib/ld-linux*.so* /lib/*/ld-linux*.so* 2>/dev/null'
    f' | head -n 1)"); python3 /lego/loader.py "$real" {MOUNT}/lego/lib /lego/ld.so;'
    ' ln -sr "$(dirname "$real")" /lego/lib;'
    ' python=$(readlink -f "$(command -v python3)"); ln -sr "$python" /lego/python; {venv}'
)
VENV = f'ln -sfr "$python" /venv/bin/python; sed -i "s|^home = .*|home = {MOUNT}$(dirname "$python")|" /venv/pyvenv.cfg'

# A native program finds its own parts by /proc/self/exe, so the loader cannot be started with the program as its
# argument, as it is for Python: the program has to name the loader. A name that is not longer moves nothing in it.
# Programs of another C library, and static ones, are left as they are.
OWN_LOADER = (
    "find /npm -type f -perm /111 -size +64k -exec sh -c 'for file; do"
    ' case "$(patchelf --print-interpreter "$file" 2>/dev/null)" in */ld-linux*)'
    f' patchelf --set-interpreter {MOUNT}/lego/ld.so "$file" || exit 1;;'
    " esac; done' sh {} +"
)

# Caches hold other versions of what a task is about; git's logs and loose ends hold commits nothing points at.
PURGE = r"""
for home in /root /home/*; do rm -rf "$home/.cache/pip" "$home/.cache/uv" "$home/.npm/_cacache"; done
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
if command -v git >/dev/null; then
  find / -xdev -type d -name objects 2>/dev/null | while read -r objects; do
    repository=${objects%/objects}
    if [ -f "$repository/HEAD" ] && [ -d "$repository/refs" ]; then
      rm -rf "$repository/logs" "$repository/ORIG_HEAD" "$repository/FETCH_HEAD"
      owner=$(stat -c %u:%g "$repository")
      git -c safe.directory='*' -c gc.reflogExpire=now --git-dir="$repository" gc --prune=now --quiet
      chown -R "$owner" "$repository"
    fi
  done
fi
"""
