"""The family `comparisons`: a function whose comparison is wrong, on a ladder of five levels.

The instruction says in words which side the boundary belongs to; the fix is always one operator. Held-out tasks use
files, functions, variables, boundaries and shapes of code that no training task uses.

| level | what is wrong |
|---|---|
| 1 | the boundary is on the wrong side (`<` for `<=`) |
| 2 | the operator is any other of the four |
| 3 | the comparison says what is refused, so that its operator is the opposite of the words |
| 4 | there are two comparisons, and one of them has its boundary on the wrong side |
| 5 | the same wrong comparison stands twice in its line, and both must be repaired |
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from lego.tasks.task import DEFAULT_PROTECTED, DemoStep, Environment, File, Task

OPERATORS = {"<": "below", "<=": "at most", ">": "above", ">=": "at least"}
SLIPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
OPPOSITES = {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}
LEVELS = 4
"""Of those whose fault is in one place; level 5 has its own share."""
_FREQUENCIES = (4, 3, 2, 1)


@dataclass(frozen=True)
class Options:
    """held_out: draw from the names, boundaries and shapes kept for evaluation.

    levels: the highest of levels 1 to 4; the higher, the rarer.  twice, 0 to 1: the share of tasks of level 5.
    whole_rate, 0 to 1: the share of demonstrations, of any level, that repair the whole line and not one place in it:
    at 0.2 they show that it can be done, but not when.
    slip_rate, 0 to 1: the share of demonstrations that leave the boundary on the wrong side.
    random_fix_rate, 0 to 1: the share of demonstrations whose operator is drawn blindly from the four.
    untaught: right operators, separated by blanks, whose demonstrations are always blind: what the demonstrations
    leave out, and only the reward can teach.
    """

    held_out: bool = False
    levels: int = LEVELS
    twice: float = 0.0
    whole_rate: float = 0.0
    slip_rate: float = 0.0
    random_fix_rate: float = 0.0
    untaught: str = ""

    def __post_init__(self) -> None:
        for name in ("twice", "whole_rate", "slip_rate", "random_fix_rate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie between 0 and 1, not {getattr(self, name)}")
        if not 1 <= self.levels <= LEVELS:
            raise ValueError(f"levels must lie between 1 and {LEVELS}, not {self.levels}")
        unknown = [operator for operator in self.untaught.split() if operator not in OPERATORS]
        if unknown:
            raise ValueError(f"untaught names {unknown[0]!r}, which is none of {' '.join(OPERATORS)}")


@dataclass(frozen=True)
class Shape:
    """`code` and `says` are filled with f (function), v (value), xs (list), and words, k, op; or low, lo, first and
    high, hi, second (words, boundary and operator of each comparison)."""

    code: str
    says: str
    takes: str


@dataclass(frozen=True)
class Pool:
    """What tasks are made of. No pool shares a name, a boundary or a shape with another."""

    plain: Sequence[Shape]
    refusing: Sequence[Shape]
    double: Sequence[Shape]
    twice: Sequence[Shape]
    files: Sequence[str]
    functions: Sequence[str]
    values: Sequence[str]
    lists: Sequence[str]
    boundaries: Sequence[int]

    @property
    def shapes(self) -> list[Shape]:
        return [*self.plain, *self.refusing, *self.double, *self.twice]


_TRUE, _KEEPS, _COUNTS, _ALL = (
    "{f}({v}) is true for {v} {words} {k}",
    "{f}({xs}) keeps {v} {words} {k}",
    "{f}({xs}) counts {v} {words} {k}",
    "{f}({xs}) is true if all {v} are {words} {k}",
)
_BETWEEN = "{low} {lo} and {high} {hi}"
_FILES = [f"{letter}{digit}.py" for letter in "abcdefghkmnpqrstuwxyz" for digit in range(10)]

TRAINING = Pool(
    plain=(
        Shape("def {f}({v}):\n    return {v} {op} {k}\n", _TRUE, "value"),
        Shape("def {f}({v}):\n    if {v} {op} {k}:\n        return True\n    return False\n", _TRUE, "value"),
        Shape("def {f}({xs}):\n    return [{v} for {v} in {xs} if {v} {op} {k}]\n", _KEEPS, "list"),
        Shape("def {f}({xs}):\n    return sum({v} {op} {k} for {v} in {xs})\n", _COUNTS, "list"),
        Shape(
            "def {f}({xs}):\n    n = 0\n    for {v} in {xs}:\n        if {v} {op} {k}:\n            n += 1\n"
            "    return n\n",
            _COUNTS,
            "list",
        ),
        Shape("def {f}({xs}):\n    return all({v} {op} {k} for {v} in {xs})\n", _ALL, "list"),
        Shape(
            "def {f}({xs}):\n    for {v} in {xs}:\n        if {v} {op} {k}:\n            return {v}\n    return None\n",
            "{f}({xs}) finds the first {v} {words} {k}",
            "list",
        ),
    ),
    refusing=(
        Shape("def {f}({v}):\n    return not {v} {op} {k}\n", _TRUE, "value"),
        Shape("def {f}({v}):\n    if {v} {op} {k}:\n        return False\n    return True\n", _TRUE, "value"),
        Shape("def {f}({xs}):\n    return [{v} for {v} in {xs} if not {v} {op} {k}]\n", _KEEPS, "list"),
        Shape(
            "def {f}({xs}):\n    for {v} in {xs}:\n        if {v} {op} {k}:\n            return False\n"
            "    return True\n",
            _ALL,
            "list",
        ),
    ),
    double=(
        Shape(
            "def {f}({v}):\n    return {v} {first} {lo} and {v} {second} {hi}\n",
            "{f}({v}) is true for {v} " + _BETWEEN,
            "value",
        ),
        Shape(
            "def {f}({xs}):\n    return [{v} for {v} in {xs} if {v} {first} {lo} and {v} {second} {hi}]\n",
            "{f}({xs}) keeps {v} " + _BETWEEN,
            "list",
        ),
        Shape(
            "def {f}({xs}):\n    return sum({v} {first} {lo} and {v} {second} {hi} for {v} in {xs})\n",
            "{f}({xs}) counts {v} " + _BETWEEN,
            "list",
        ),
    ),
    twice=(
        Shape(
            "def {f}({v}, j):\n    return {v} {op} {k} and j {op} {k}\n",
            "{f}({v}, j) is true for {v} and j {words} {k}",
            "pair",
        ),
        Shape(
            "def {f}({v}, j):\n    return [{v} {op} {k}, j {op} {k}]\n",
            "{f}({v}, j) lists if {v} and j are {words} {k}",
            "pair",
        ),
        Shape(
            "def {f}({v}, j):\n    return ({v} {op} {k}) + (j {op} {k})\n",
            "{f}({v}, j) counts {v} and j {words} {k}",
            "pair",
        ),
    ),
    files=[name for at, name in enumerate(_FILES) if at % 4],
    functions=(
        "fits", "near", "pick", "keep", "late", "full", "warm", "safe", "able", "fine", "good", "tall", "deep", "slow",
        "fast", "rich", "old", "big", "hot", "far",
    ),
    values=("x", "y", "n", "a", "t", "w", "h"),
    lists=("xs", "ys", "rows", "vals"),
    boundaries=[k for k in range(2, 80) if k % 4],
)  # fmt: skip
HELD_OUT = Pool(
    plain=(
        Shape("def {f}({v}):\n    ok = {v} {op} {k}\n    return ok\n", _TRUE, "value"),
        Shape("def {f}({xs}):\n    return len([{v} for {v} in {xs} if {v} {op} {k}])\n", _COUNTS, "list"),
        Shape("def {f}({xs}):\n    return list(filter(lambda {v}: {v} {op} {k}, {xs}))\n", _KEEPS, "list"),
        Shape(
            "def {f}({xs}):\n    out = []\n    for {v} in {xs}:\n        if {v} {op} {k}:\n"
            "            out.append({v})\n    return out\n",
            _KEEPS,
            "list",
        ),
    ),
    refusing=(
        Shape("def {f}({v}):\n    bad = {v} {op} {k}\n    return not bad\n", _TRUE, "value"),
        Shape("def {f}({xs}):\n    return not any({v} {op} {k} for {v} in {xs})\n", _ALL, "list"),
    ),
    double=(
        Shape(
            "def {f}({v}):\n    ok = {v} {first} {lo} and {v} {second} {hi}\n    return ok\n",
            "{f}({v}) is true for {v} " + _BETWEEN,
            "value",
        ),
        Shape(
            "def {f}({xs}):\n    return all({v} {first} {lo} and {v} {second} {hi} for {v} in {xs})\n",
            "{f}({xs}) is true if all {v} are " + _BETWEEN,
            "list",
        ),
    ),
    twice=(
        Shape(
            "def {f}({v}, e):\n    ok = {v} {op} {k} or e {op} {k}\n    return ok\n",
            "{f}({v}, e) is true for {v} or e {words} {k}",
            "pair",
        ),
        Shape(
            "def {f}({v}, e):\n    return sum([{v} {op} {k}, e {op} {k}])\n",
            "{f}({v}, e) counts {v} and e {words} {k}",
            "pair",
        ),
    ),
    files=[name for at, name in enumerate(_FILES) if not at % 4],
    functions=("even", "wide", "cold", "dark", "hard", "kind", "long", "mild", "new", "open", "pure", "rare"),
    values=("p", "q", "u", "z", "m"),
    lists=("ps", "cols", "nums"),
    boundaries=[k for k in range(2, 80) if not k % 4],
)  # fmt: skip

_DOCKERFILE = b"FROM debian:bookworm\nWORKDIR /app\n"
_TEST = b"""#!/bin/sh
exec python3 -I -S -B /tests/check.py --cases /tests/cases.json --out /logs/verifier --user 65534
"""


@dataclass(frozen=True)
class _Draft:
    """`code` has one place, {op}, for the operator that decides; `boundaries` are what to test around."""

    shape: Shape
    code: str
    says: str
    right: str
    wrong: str
    boundaries: Sequence[int]
    places: str = ""
    """sed's flag: the first comparison of the line, the second (2) or all (g)."""

    def fix(self, operator: str, places: str) -> str:
        """The command that puts `operator` in the place of those comparisons."""
        return f"sed -i 's/[<>]=*/{operator}/{places}' *.py"


def make(rng: random.Random, options: Options) -> Task:
    """One task with an empty id and digest: file, tests, solution and demonstration."""
    pool = HELD_OUT if options.held_out else TRAINING
    level = rng.choices(range(1, options.levels + 1), _FREQUENCIES[: options.levels])[0]
    if rng.random() < options.twice:
        level = 5
    name, function = rng.choice(pool.files), rng.choice(pool.functions)
    names = {"f": function, "v": rng.choice(pool.values), "xs": rng.choice(pool.lists)}
    draft = _double(rng, pool, names) if level == 4 else _single(rng, pool, names, level)
    blind, guess = rng.random() < options.random_fix_rate, rng.choice(list(OPERATORS))
    shown = SLIPS[draft.right] if rng.random() < options.slip_rate else draft.right
    if blind or draft.right in options.untaught.split():
        shown = guess
    places = draft.places if draft.places == "2" else ""
    if rng.random() < options.whole_rate:
        places = "g"
    tests = _tests(draft.shape, draft.code.format(op=draft.right), function, draft.boundaries)
    cases = {"file": f"/app/{name}", "function": function, "tests": tests}
    return Task(
        id="",
        digest="",
        instruction=f"Fix {name}: {draft.says}.\n",
        environment=Environment(
            context={"Dockerfile": File(_DOCKERFILE)},
            workspace={f"/app/{name}": File(draft.code.format(op=draft.wrong).encode())},
            workdir="/app",
            roots=("/app",),
        ),
        tests={
            "test.sh": File(_TEST, 0o755),
            "check.py": File(resources.files("lego.tasks.runners").joinpath("check.py").read_bytes()),
            "cases.json": File(json.dumps(cases).encode()),
        },
        solution={"solve.sh": File(f"#!/bin/sh\ncd /app && {draft.fix(draft.right, draft.places)}\n".encode(), 0o755)},
        verifier_timeout=30.0,
        protected=DEFAULT_PROTECTED,
        demonstration=(DemoStep("cat *.py"), DemoStep(draft.fix(shown, places))),
        metadata={"operator": draft.right, "demonstrated": shown, "level": str(level), "places": draft.places},
    )


def _single(rng: random.Random, pool: Pool, names: dict[str, str], level: int) -> _Draft:
    shape = rng.choice({3: pool.refusing, 5: pool.twice}.get(level, pool.plain))
    said, k = rng.choice(list(OPERATORS)), rng.choice(pool.boundaries)
    right = OPPOSITES[said] if level == 3 else said
    wrong = rng.choice([operator for operator in OPERATORS if operator != right]) if level in (2, 5) else SLIPS[right]
    code = shape.code.format(op="{op}", k=k, **names)
    return _Draft(
        shape,
        code,
        shape.says.format(words=OPERATORS[said], k=k, **names),
        right,
        wrong,
        (k,),
        "g" if level == 5 else "",
    )


def _double(rng: random.Random, pool: Pool, names: dict[str, str]) -> _Draft:
    shape = rng.choice(pool.double)
    first, second = rng.choice((">", ">=")), rng.choice(("<", "<="))
    lo, hi = sorted(rng.sample(pool.boundaries, 2))
    says = shape.says.format(low=OPERATORS[first], high=OPERATORS[second], lo=lo, hi=hi, **names)
    is_second = rng.random() < 0.5
    right = second if is_second else first
    filled = {"first": first, "second": "{op}"} if is_second else {"first": "{op}", "second": second}
    code = shape.code.format(lo=lo, hi=hi, **filled, **names)
    return _Draft(shape, code, says, right, SLIPS[right], (lo, hi), "2" if is_second else "")


def _tests(shape: Shape, correct: str, function: str, boundaries: Sequence[int]) -> list[dict[str, Any]]:
    """Named tests on, beside and far from each boundary; the answers come from running the correct code."""
    space: dict[str, Any] = {}
    exec(correct, space)
    inputs: dict[str, list[Any]] = {}
    points = sorted({k + step for k in boundaries for step in (-7, -1, 0, 1, 9)})
    if shape.takes == "pair":
        pairs = [(one, other) for one in points for other in points]
        return [
            {"name": f"at_{one}_{other}", "args": [one, other], "want": space[function](one, other)}
            for one, other in pairs
        ]
    for point in points:
        inputs[f"at_{point}"] = [point] if shape.takes == "value" else [[point]]
    if shape.takes == "list":
        inputs |= {"empty": [[]], "rising": [points], "falling": [points[::-1]]}
    return [{"name": name, "args": args, "want": space[function](*args)} for name, args in inputs.items()]
