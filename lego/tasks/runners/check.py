"""Hidden tests of a generated task: call one function, compare what it returns, write the reward.

    check.py --cases FILE --out FOLDER [--user UID]

The cases name a file, a function and, for each test, its arguments and the answer wanted. The function runs in a
process of its own that is told the arguments alone, under another user where `--user` is given and the sandbox
allows it: that process can neither read the answers nor write the reward. Standard library only, since this runs
inside the sandbox thousands of times.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time

LIMIT = 5.0
PROBE = """
import json, os, sys
out = os.dup(1)
os.dup2(2, 1)
ask = json.loads(sys.stdin.read())
space = {"__name__": "submission"}
answers = []
try:
    with open(ask["file"]) as source:
        exec(compile(source.read(), ask["file"], "exec"), space)
    function = space[ask["function"]]
except BaseException as error:
    answers = [{"error": repr(error)}] * len(ask["args"])
else:
    for args in ask["args"]:
        try:
            answers.append({"value": function(*args)})
        except BaseException as error:
            answers.append({"error": repr(error)})
os.write(out, json.dumps(answers, default=repr).encode())
"""


def become(user: int) -> None:
    try:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    except PermissionError:
        print("note: cannot change user here; the submission runs as the tests do")


def start(user: int | None) -> tuple[int, int, int]:
    """Start the process that runs the submission: its pid, and the descriptors of its stdin and stdout."""
    ask_read, ask_write = os.pipe()
    answer_read, answer_write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(ask_read)
        os.close(answer_write)
        return pid, ask_write, answer_read
    os.setsid()
    os.dup2(ask_read, 0)
    os.dup2(answer_write, 1)
    os.chdir("/")
    if user is not None:
        become(user)
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-B", "-c", PROBE])


def ask(cases: dict, user: int | None) -> list[dict]:
    pid, ask_write, answer_read = start(user)
    question = {"file": cases["file"], "function": cases["function"], "args": [test["args"] for test in cases["tests"]]}
    os.write(ask_write, json.dumps(question).encode())
    os.close(ask_write)
    answer = b""
    deadline = time.monotonic() + LIMIT
    while select.select([answer_read], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(answer_read, 65536)
        if not piece:
            break
        answer += piece
    end(pid, user)
    try:
        answers = json.loads(answer)
    except ValueError:
        answers = None
    if not isinstance(answers, list) or len(answers) != len(cases["tests"]):
        return [{"error": "no answer"}] * len(cases["tests"])
    return [one if isinstance(one, dict) else {} for one in answers]


def end(pid: int, user: int | None) -> None:
    """Kill the submission's process and whatever it left running."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except PermissionError:
        return
    except ProcessLookupError:
        pass
    os.waitpid(pid, 0)
    if user is None or user == os.getuid():
        return
    for _ in range(100):
        left = [int(name) for name in os.listdir("/proc") if name.isdigit() and owner(name) == user]
        if not left:
            return
        for one in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.005)


def owner(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == "Z":
                return -1
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def hide(path: str, mode: int) -> None:
    with contextlib.suppress(OSError):
        os.chmod(path, mode)


def main(argv: list[str]) -> int:
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    out = options["--out"]
    user = int(options["--user"]) if "--user" in options else None
    with open(options["--cases"]) as file:
        cases = json.load(file)
    if user is not None:
        hide(os.path.dirname(options["--cases"]), 0o700)
        hide(out, 0o755)
        hide(cases["file"], 0o644)
    good = 0
    for test, answer in zip(cases["tests"], ask(cases, user), strict=True):
        passed = json.dumps(answer.get("value", "no value")) == json.dumps(test["want"])
        good += passed
        call = f"{cases['function']}({', '.join(map(repr, test['args']))})"
        got = repr(answer["value"]) if "value" in answer else answer.get("error", "nothing")
        print("PASSED" if passed else "FAILED", test["name"], "" if passed else f"{call} gave {got}")
    print(f"{good} of {len(cases['tests'])} passed")
    if os.path.lexists(f"{out}/reward.json"):
        os.unlink(f"{out}/reward.json")
    with open(f"{out}/.reward", "w") as file:
        file.write("1\n" if good == len(cases["tests"]) else "0\n")
    os.replace(f"{out}/.reward", f"{out}/reward.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
