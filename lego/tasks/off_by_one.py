"""The family `off-by-one`: a small function whose one comparison includes or excludes its boundary wrongly.

The instruction says in words which side the boundary belongs to, and the fix is always one operator, so that a tiny
policy can learn it: which of four operators is right follows from what it reads.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from importlib import resources
from typing import Any

from lego.tasks.task import DEFAULT_PROTECTED, DemoStep, Environment, File, Task

OPERATORS = {"<": "below", "<=": "at most", ">": "above", ">=": "at least"}
_SLIPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


@dataclass(frozen=True)
class Options:
    """`random_fix_rate`, 0 to 1: the share of demonstrations whose operator is drawn blindly from the four, so that
    a policy taught from them knows how to work but not how to choose."""

    random_fix_rate: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.random_fix_rate <= 1.0:
            raise ValueError(f"random_fix_rate must lie between 0 and 1, not {self.random_fix_rate}")


@dataclass(frozen=True)
class _Shape:
    """`code` and `says` are filled with f (function), v (value), xs (list), k (boundary), op or words."""

    code: str
    says: str
    takes: str


_SHAPES = (
    _Shape("def {f}({v}):\n    return {v} {op} {k}\n", "{f}({v}) is true for {v} {words} {k}", "value"),
    _Shape(
        "def {f}({v}):\n    if {v} {op} {k}:\n        return True\n    return False\n",
        "{f}({v}) is true for {v} {words} {k}",
        "value",
    ),
    _Shape(
        "def {f}({v}):\n    return 'yes' if {v} {op} {k} else 'no'\n",
        "{f}({v}) says yes for {v} {words} {k}",
        "value",
    ),
    _Shape("def {f}({v}, k):\n    return {v} {op} k\n", "{f}({v}, k) is true for {v} {words} k", "pair"),
    _Shape(
        "def {f}({xs}):\n    return [{v} for {v} in {xs} if {v} {op} {k}]\n", "{f}({xs}) keeps {v} {words} {k}", "list"
    ),
    _Shape(
        "def {f}({xs}):\n    return sum({v} {op} {k} for {v} in {xs})\n", "{f}({xs}) counts {v} {words} {k}", "list"
    ),
    _Shape(
        "def {f}({xs}):\n    n = 0\n    for {v} in {xs}:\n        if {v} {op} {k}:\n            n += 1\n    return n\n",
        "{f}({xs}) counts {v} {words} {k}",
        "list",
    ),
    _Shape(
        "def {f}({xs}):\n    return all({v} {op} {k} for {v} in {xs})\n",
        "{f}({xs}) is true if all {v} are {words} {k}",
        "list",
    ),
    _Shape(
        "def {f}({xs}):\n    return any({v} {op} {k} for {v} in {xs})\n",
        "{f}({xs}) is true if any {v} is {words} {k}",
        "list",
    ),
    _Shape(
        "def {f}({xs}):\n    for {v} in {xs}:\n        if {v} {op} {k}:\n            return {v}\n    return None\n",
        "{f}({xs}) finds the first {v} {words} {k}",
        "list",
    ),
)
_FUNCTIONS = [
    "fits",
    "near",
    "pick",
    "keep",
    "late",
    "full",
    "warm",
    "safe",
    "able",
    "fine",
    "good",
    "tall",
    "deep",
    "slow",
    "fast",
    "rich",
    "old",
    "big",
    "hot",
    "far",
]
_VALUES = ["x", "y", "n", "a", "t", "w", "h"]
_LISTS = ["xs", "ys", "rows", "vals"]
_FILES = ["a.py", "b.py", "m.py", "p.py", "q.py", "z.py"]

_DOCKERFILE = b"FROM debian:bookworm\nWORKDIR /app\n"
_TEST = b"""#!/bin/sh
exec python3 -I -S -B /tests/check.py --cases /tests/cases.json --out /logs/verifier --user 65534
"""


def make(rng: random.Random, options: Options) -> Task:
    """One task with an empty id and digest: file, tests, solution and demonstration."""
    shape = rng.choice(_SHAPES)
    right = rng.choice(list(OPERATORS))
    wrong = _SLIPS[right]
    name = rng.choice(_FILES)
    boundary = rng.randint(2, 60)
    words = {
        "f": rng.choice(_FUNCTIONS),
        "v": rng.choice(_VALUES),
        "xs": rng.choice(_LISTS),
        "k": str(boundary),
        "words": OPERATORS[right],
    }
    code = shape.code.format(op=wrong, **words)
    tests = _tests(shape, shape.code.format(op=right, **words), words["f"], boundary)
    fix = f"sed -i 's/{wrong}/{right}/' {name}"
    blind = rng.random() < options.random_fix_rate
    shown = rng.choice(list(OPERATORS)) if blind else right
    cases = {"file": f"/app/{name}", "function": words["f"], "tests": tests}
    return Task(
        id="",
        digest="",
        instruction=f"Fix {name}: {shape.says.format(**words)}.\n",
        environment=Environment(
            context={"Dockerfile": File(_DOCKERFILE)},
            workspace={f"/app/{name}": File(code.encode())},
            workdir="/app",
            roots=("/app",),
        ),
        tests={
            "test.sh": File(_TEST, 0o755),
            "check.py": File(resources.files("lego.tasks.runners").joinpath("check.py").read_bytes()),
            "cases.json": File(json.dumps(cases).encode()),
        },
        solution={"solve.sh": File(f"#!/bin/sh\ncd /app && {fix}\n".encode(), 0o755)},
        verifier_timeout=30.0,
        protected=DEFAULT_PROTECTED,
        demonstration=(DemoStep(f"cat {name}"), DemoStep(f"sed -i 's/{wrong}/{shown}/' {name}")),
        metadata={"operator": right, "demonstrated": shown},
    )


def _tests(shape: _Shape, correct: str, function: str, k: int) -> list[dict[str, Any]]:
    """Named tests around the boundary; the answers come from running the correct code."""
    space: dict[str, Any] = {}
    exec(correct, space)
    inputs: dict[str, list[Any]]
    if shape.takes == "value":
        inputs = {"far_below": [k - 7], "below": [k - 1], "boundary": [k], "above": [k + 1], "far_above": [k + 9]}
    elif shape.takes == "pair":
        inputs = {"below": [k - 1, k], "boundary": [k, k], "above": [k + 1, k], "zero": [0, 0], "swapped": [k, k - 3]}
    else:
        inputs = {
            "empty": [[]],
            "boundary": [[k]],
            "below": [[k - 1, k - 5]],
            "above": [[k + 1, k + 4]],
            "boundary_and_above": [[k, k + 2]],
            "boundary_and_below": [[k, k - 2]],
            "mixed": [[k + 3, k - 1, k, k + 1, k - 4, k]],
        }
    return [{"name": name, "args": args, "want": space[function](*args)} for name, args in inputs.items()]
