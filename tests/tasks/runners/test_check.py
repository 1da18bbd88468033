import json
import subprocess
import sys

import pytest

from lego.tasks.runners import check

CASES = {
    "file": "",
    "function": "fits",
    "tests": [
        {"name": "below", "args": [11], "want": True},
        {"name": "boundary", "args": [12], "want": True},
        {"name": "above", "args": [13], "want": False},
    ],
}
RIGHT = "def fits(n):\n    return n <= 12\n"


@pytest.fixture
def grade(tmp_path):
    def run(code):
        file = tmp_path / "f.py"
        file.write_text(code)
        cases = tmp_path / "cases.json"
        cases.write_text(json.dumps({**CASES, "file": str(file)}))
        command = [sys.executable, "-I", "-S", "-B", check.__file__, "--cases", str(cases), "--out", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert not (tmp_path / "reward.json").exists()
        return (tmp_path / "reward.txt").read_text().strip(), done.stdout

    return run


def test_right_and_wrong(grade):
    assert grade(RIGHT)[0] == "1"
    reward, log = grade(RIGHT.replace("<=", "<"))
    assert reward == "0"
    assert "FAILED boundary fits(12) gave False" in log and "2 of 3 passed" in log


@pytest.mark.parametrize(
    "code",
    [
        "",
        "def fits(n:\n",
        "raise SystemExit(0)\n",
        "import os\nos._exit(0)\n",
        "def fits(n):\n    return 1\n",
        "def fits(n):\n    return int(n <= 12)\n",
        "def fits(n):\n    raise SystemExit\n",
        "fits = 3\n",
        "import sys\nsys.exit = None\ndef fits(n):\n    return {n}\n",
    ],
)
def test_no_way_around(grade, code):
    assert grade(code)[0] == "0"


def test_submission_that_writes_the_reward_itself(grade, tmp_path):
    code = (
        "import atexit, sys\n"
        f"def write():\n    for name in ('reward.txt', 'reward.json'):\n"
        f"        open('{tmp_path}/' + name, 'w').write('1')\n"
        "write()\natexit.register(write)\ndef fits(n):\n    return False\n"
    )
    assert grade(code)[0] == "0"


def test_printing_does_not_disturb_the_answers(grade):
    assert grade("print('[]', flush=True)\ndef fits(n):\n    print('{}')\n    return n <= 12\n")[0] == "1"


def test_answers_cannot_be_found(grade):
    code = (
        "import gc, os, sys\n"
        "seen = [one for one in gc.get_objects() if isinstance(one, dict) and 'want' in one]\n"
        "assert not seen and 'want' not in ' '.join(sys.argv) + str(dict(os.environ))\n" + RIGHT
    )
    assert grade(code)[0] == "1"


def test_endless_submission_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "LIMIT", 0.2)
    file = tmp_path / "f.py"
    file.write_text("while True:\n    pass\n")
    assert check.ask({**CASES, "file": str(file)}, None) == [{"error": "no answer"}] * 3
