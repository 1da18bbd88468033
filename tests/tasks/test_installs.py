"""What a test.sh would install, read off its text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.tasks.installs import UV, Installs, Packages, scan
from lego.tasks.task import File

STOCK = """#!/bin/bash
# Install curl
apt-get update
apt-get install -y curl

curl -LsSf https://astral.sh/uv/0.9.7/install.sh | sh

source $HOME/.local/bin/env
if [ "$PWD" = "/" ]; then
    echo "Error: it's no working directory"
    exit 1
fi
uvx \\
  -p 3.13 \\
  -w pytest==8.4.1 \\
  -w pytest-json-ctrf==0.3.5 \\
  pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA

if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""


def found(script: str, **more: str) -> Installs:
    files = {"test.sh": script, **more}
    return scan({name: File(text.encode()) for name, text in files.items()})


def test_harbors_stock_script_is_understood() -> None:
    wanted = Packages("uvx", ("pytest==8.4.1", "pytest-json-ctrf==0.3.5"), "3.13", "pytest")
    assert found(STOCK) == Installs(("curl",), "0.9.7", (wanted,))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("uvx --with pytest==8.4.1 --with=ctrf==0.3.5 pytest", ("uvx", ("pytest==8.4.1", "ctrf==0.3.5"), "", "pytest")),
        ("uv tool run --python=3.11 --with a,b[x,y] --from c==1 d", ("uvx", ("a", "b[x,y]"), "3.11", "c==1")),
        ("uvx ruff@0.5 check . > /dev/null 2>&1", ("uvx", (), "", "ruff==0.5")),
        ("if ! uvx pytest@latest; then exit; fi", ("uvx", (), "", "pytest")),
        ("uv run --with pytest --with 'numpy>=1,<3' python -m pytest", ("run", ("pytest", "numpy>=1,<3"))),
        ("uv pip install --system -q pytest==8.4.1 2> log", ("uv", ("pytest==8.4.1",))),
        ("(cd /x && uv add 'pytest~=8.0' requests)", ("uv", ("pytest~=8.0", "requests"))),
        ("X=1 sudo pip3 install --break-system-packages pytest==8.4.1", ("pip", ("pytest==8.4.1",))),
        ("/venv/bin/python -m pip install -r /tests/req.txt", ("pip", ("a==1", "b"))),
        ("pip install -e .[dev]", ("pip", ("setuptools", "wheel"))),
    ],
)  # fmt: skip
def test_packages(line: str, wanted: tuple[object, ...]) -> None:
    what = found(line + "\n", **{"req.txt": "# some\na==1\nb # why\n\n"})
    assert what.packages == (Packages(*wanted),) and not what.problems  # type: ignore[arg-type]
    assert what.uv == ("" if wanted[0] == "pip" else UV)


def test_debian_packages_of_all_scripts_are_joined() -> None:
    what = found(
        "apt-get -qq update && apt-get install -y -o A=b git=1:2.3-4+x\n. /tests/more.sh\n",
        **{"more.sh": "apt install libc6:amd64\n"},
    )
    assert what == Installs(("git=1:2.3-4+x", "libc6:amd64"))
    assert found("apt-get update || true\n") == Installs(()) and found("apt-get update\n")


@pytest.mark.parametrize(
    "line",
    [
        "curl -fsSL https://example.org/x.sh",
        "wget http://example.org/x",
        "npm install -g x",
        "git clone https://github.com/a/b",
        "apt-get install -y $PACKAGES",
        "pip install git+https://github.com/a/b",
        "pip install $REQUIREMENTS",
        "pip install -r requirements.txt",
        "pip install --index-url https://x.org/simple a",
        "uvx --from git+https://github.com/a/b b",
        "uvx $TOOL",
        "uv sync --frozen",
        "uv python install 3.12",
        "cat x | while read y; do apk add z; done",
    ],
)
def test_what_cannot_be_had_is_named(line: str) -> None:
    (problem,) = found(f"set -x\n{line}\n").problems
    assert problem.split()[0] in line and problem.split()[-1] in line


@pytest.mark.parametrize(
    "script",
    [
        'curl -s http://localhost:8000/x && curl http://127.0.0.1/\ncurl "$URL"\n',
        "python3 - <<'END'\n# it's pip install x\nimport os; os.system('pip install y')\nEND\n",
        "cat <<EOF > x\napt-get install 'y\nEOF\necho done\n",
        '# pip install x\necho "pip install x"\npip --version; npm test; git diff\n',
        "python3 -m pytest /tests -k 'curl or apt-get'\n",
        "echo 'this quote never closes\n",
    ],
)
def test_what_installs_nothing_needs_nothing(script: str) -> None:
    assert not found(script) and found(script).problems == ()


@given(st.text(st.sampled_from("ab $\\\"'`(){}<>|&;#\n-=/:") | st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_read(text: str) -> None:
    found(text)
