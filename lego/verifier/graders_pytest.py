"""The grader `pytest-ids`: named pytest tests, reported by a plug-in to a parent out of the submission's reach."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lego.errors import VerifierError
from lego.tasks.task import File, Task
from lego.verifier.decoys import plant
from lego.verifier.graders import READ_CAP, Reward

_INSIDE = Path(__file__).with_name("ids_inside.py")
_SHOWN = 200
RESULTS = "/logs/verifier/results.json"


class PytestIdsGrader:
    """Brings its own test.sh, which runs ids_inside.py: pytest as another user, the repository's own settings and
    plug-ins left out, each test's outcome over a pipe to the parent."""

    trust = (
        "pytest-ids: the named tests are run by pytest as another user, without the repository's settings, and "
        "reported by a plug-in over a pipe to a process that this user cannot reach, sealed when pytest has ended. "
        "Each must be reported once, as passed; a canary and decoys made up for the run must end as is drawn for "
        "them. Code under test shares the process with pytest: one that takes pytest apart from inside and spares "
        "the decoys is not told by the report alone."
    )
    reads: tuple[str, ...] = (RESULTS,)

    def __init__(self, task: Task, app: str, limit: float) -> None:
        """`app`: absolute folder of the project; `limit`: seconds for the whole run of pytest."""
        if not task.grading.named:
            raise VerifierError(f"task {task.id}: pytest-ids: no test is named", fault="task")
        self._names = task.grading.named
        brought = {path[4:]: file for path, file in task.tests.items() if path.startswith("app/")}
        self._hidden, self._decoys = plant(brought, self._names)
        self._word = f"lego{secrets.token_hex(6)}"
        self._app, self._limit = app, limit

    @property
    def _canary(self) -> str:
        folder = self._names[0].partition("::")[0].rpartition("/")[0]
        return f"{folder}/test_{self._word}.py" if folder else f"test_{self._word}.py"

    def files(self) -> Mapping[str, File]:
        ask = {
            "app": self._app,
            "names": [*self._names, *self._decoys, f"{self._canary}::test_{self._word}"],
            "limit": self._limit,
            "results": RESULTS,
        }
        start = "#!/bin/sh\nexec python3 -I -B /tests/lego-ids.py /tests/lego-ids.json\n"
        return {
            **{f"{self._app}/{path}": file for path, file in self._hidden.items()},
            "/tests/test.sh": File(start.encode(), 0o755),
            "/tests/lego-ids.py": File(_INSIDE.read_bytes(), 0o644),
            "/tests/lego-ids.json": File(json.dumps(ask).encode(), 0o600),
            f"{self._app}/{self._canary}": File(f"def test_{self._word}():\n    assert False\n".encode(), 0o644),
        }

    def env(self) -> Mapping[str, str]:
        return {}

    def reward(self, files: Mapping[str, bytes | None], rc: int | None) -> Reward:
        outcomes = _outcomes(files.get(RESULTS))
        if outcomes is None:
            return Reward(None, "pytest did not report to its end")
        failed = {name: " and ".join(outcomes.get(name, ["missing"])) for name in self._names}
        failed = {name: how for name, how in failed.items() if how != "passed"}
        detail: dict[str, Any] = {"named": len(self._names), "named_passed": len(self._names) - len(failed)}
        if failed:
            detail["named_failed"] = dict(list(failed.items())[:_SHOWN])
        drawn = {**self._decoys, f"{self._canary}::test_{self._word}": "failed"}
        wrong = [name for name, outcome in drawn.items() if outcomes.get(name) != [outcome]]
        if wrong:
            detail["canary"] = why = (
                f"{len(wrong)} of {len(drawn)} canaries are not reported as they must end, so that nothing else counts"
            )
            return Reward(0.0, why, detail=detail)
        return Reward(float(not failed), detail=detail)


def _outcomes(data: bytes | None) -> dict[str, list[str]] | None:
    """Test id -> outcomes; None where the report is not whole."""
    if data is None or len(data) >= READ_CAP:
        return None
    try:
        found = json.loads(data)
        return {str(name): [str(one) for one in outcomes] for name, outcomes in found["outcomes"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
