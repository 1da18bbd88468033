"""A verifier's image with what its test.sh installs: the agent's image, and beside it packages, uv, and stand-ins for
the commands that would fetch them. It is built with a network, proves itself without, and is never an agent's."""

from __future__ import annotations

import shlex

from lego.tasks.installs import Installs, Packages
from lego.tasks.task import File, Tree

PLACE = "/opt/lego-verifier"
_VARIABLES = {
    "PATH": PLACE + "/bin:${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}",
    "UV_OFFLINE": "1",
    "UV_FIND_LINKS": f"{PLACE}/wheels",
    "UV_CACHE_DIR": f"{PLACE}/cache",
    "UV_PYTHON_INSTALL_DIR": f"{PLACE}/python",
    "UV_LINK_MODE": "copy",
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": f"{PLACE}/wheels",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}


def frozen(installs: Installs, image: str, base: str) -> tuple[str, Tree]:
    """The Dockerfile and the context of the image that stands on `image` and has what `installs` names. `base`: an
    image with Python and venv, to fetch with. The user at its end is root."""
    lines = [
        f"FROM {base} AS lego-frozen",
        "USER 0",
        f"RUN mkdir -p {PLACE}/bin {PLACE}/wheels {PLACE}/cache {PLACE}/boot",
    ]
    if installs.uv or installs.packages:
        wanted = f"pip uv=={installs.uv}" if installs.uv else "pip"
        lines.append(
            f"RUN python3 -m venv /venv && /venv/bin/python -m pip download -q --no-deps -d /fetched {wanted}"
            f" && cd {PLACE}/boot && for one in /fetched/*.whl; do python3 -m zipfile -e $one .; done"
            " && for one in *.data/scripts/*; do [ ! -e $one ] || install -m 755 $one ../bin/; done"
        )
    lines += [
        f"COPY bin/ {PLACE}/bin/",
        f"RUN chmod 755 {PLACE}/bin/*",
        f"FROM {image}",
        "USER 0",
        f"COPY --from=lego-frozen {PLACE} {PLACE}",
        f"COPY freeze.sh {PLACE}/boot/freeze.sh",
        f"RUN sh {PLACE}/boot/freeze.sh",
        "ENV " + " ".join(f'{name}="{value}"' for name, value in _VARIABLES.items()),
    ]
    context: dict[str, File] = {
        "freeze.sh": File(_script(installs).encode()),
        "bin/install-uv": File(_INSTALL_UV.encode(), 0o755),
    }
    context |= {f"bin/{name}": File(_FETCH.encode(), 0o755) for name in ("curl", "wget")}
    context |= {f"bin/{name}": File(_APT.encode(), 0o755) for name in ("apt-get", "apt")}
    return "\n".join(lines) + "\n", context


def _script(installs: Installs) -> str:
    """What is run as root in the agent's image, with a network; its last line says what could not be had."""
    lines = [_BEGIN]
    if installs.apt:
        names = shlex.join(installs.apt)
        lines.append(f"debian {names}")
    for wanted in installs.packages:
        lines.append(f"python_for {shlex.quote(wanted.python)}")
        lines.append(f"fetch {shlex.join(_all(wanted))}")
    exports = [f"export {name}={value}" for name, value in _VARIABLES.items() if name != "PATH"]
    lines += exports
    for wanted in installs.packages:
        lines.append(f"python_for {shlex.quote(wanted.python)}")
        lines.append(f"{_proof(wanted)} < /dev/null || die not to be had without a network: {shlex.join(_all(wanted))}")
    lines.append(_END)
    return "\n".join(lines) + "\n"


def _all(wanted: Packages) -> list[str]:
    return [*([wanted.tool] if wanted.tool else []), *wanted.requirements]


def _proof(wanted: Packages) -> str:
    """The same, now without a network; what uv makes of it stays in its cache."""
    version = ["-p", wanted.python] if wanted.python else []
    withs = [part for one in wanted.requirements for part in ("--with", one)]
    if wanted.how == "uvx":
        return shlex.join([f"{PLACE}/bin/uvx", *version, *withs, "--from", wanted.tool, "python", "-c", ""])
    if wanted.how == "run":
        return shlex.join([f"{PLACE}/bin/uv", "run", "--no-project", *version, *withs, "python", "-c", ""])
    target = ["--target", "/tmp/lego-proof"]
    if wanted.how == "uv":
        command = shlex.join([f"{PLACE}/bin/uv", "pip", "install", "-q", *target, *wanted.requirements])
        return f'{command} --python "$python"'
    return f'"$python" {PLACE}/boot/pip install -q {shlex.join([*target, *wanted.requirements])}'


_BEGIN = rf"""set -e
die() {{ echo "lego: the verifier's packages: $*" >&2; exit 1; }}
debian() {{
  command -v apt-get > /dev/null || die "the image has no apt-get to install $* with"
  apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" \
    || die "apt-get cannot install $*"
  rm -rf /var/lib/apt/lists/*
}}
python_for() {{
  export UV_CACHE_DIR={PLACE}/cache UV_PYTHON_INSTALL_DIR={PLACE}/python
  python=$(command -v "python${{1:-3}}" || true)
  if [ -z "$python" ] && [ -x {PLACE}/bin/uv ]; then
    python=$({PLACE}/bin/uv python find $1 2> /dev/null || true)
    if [ -z "$python" ] && {PLACE}/bin/uv python install -q $1; then python=$({PLACE}/bin/uv python find $1); fi
  fi
  [ -n "$python" ] || die "the image has no Python $1, and none can be fetched"
}}
fetch() {{
  "$python" {PLACE}/boot/pip wheel -q --no-cache-dir --disable-pip-version-check -w {PLACE}/wheels "$@" \
    || die "these cannot be fetched: $*"
}}"""
_END = f"""rm -rf /tmp/lego-proof {PLACE}/boot
chmod -R a+rwX {PLACE}/cache"""

_INSTALL_UV = f"""#!/bin/sh
# uv's installer, for a uv that is here already.
folder=${{UV_INSTALL_DIR:-${{XDG_BIN_HOME:-$HOME/.local/bin}}}}
mkdir -p "$folder"
for name in uv uvx; do ln -sf "{PLACE}/bin/$name" "$folder/$name"; done
echo "export PATH=\\"$folder:\\$PATH\\"" > "$folder/env"
"""
_FETCH = f"""#!/bin/sh
# uv's installer is here already; anything else is the real program's business.
me=${{0##*/}} uv= out= take=
for word; do
  if [ -n "$take" ]; then out=$word take=; continue; fi
  case $me:$word in
    *:https://astral.sh/uv/*) uv=1 ;;
    curl:--output | curl:-o | wget:--output-document | wget:-O) take=1 ;;
    *:--*) ;;
    curl:-*o) take=1 ;;
    curl:-*O) out=install.sh ;;
    wget:-*O-) out=- ;;
    wget:-*O) take=1 ;;
  esac
done
if [ -z "$uv" ]; then
  PATH=$(printf %s "$PATH" | sed 's#{PLACE}/bin:##g')
  exec "$me" "$@"
fi
if [ "$me:$out" = wget: ]; then out=install.sh; fi
if [ -z "$out" ] || [ "$out" = - ]; then cat {PLACE}/bin/install-uv; else cat {PLACE}/bin/install-uv > "$out"; fi
"""
_APT = f"""#!/bin/sh
# What the tests install is here already.
for word; do
  case $word in
    update | install | upgrade | clean | autoclean | autoremove) exit 0 ;;
  esac
done
PATH=$(printf %s "$PATH" | sed 's#{PLACE}/bin:##g')
exec "${{0##*/}}" "$@"
"""
