"""What ended an attempt, in words for its row: whose fault it was, and why."""

from __future__ import annotations

import contextlib
import traceback
from datetime import UTC, datetime

from lego.errors import Fault, LegoError
from lego.rollout.run import Run

_LONGEST = 300


def blame(run: Run, what: str, error: Exception) -> tuple[Fault, str]:
    """The fault and the reason of an exception that ended `what` (a trial, a verification).

    One of our own says both itself. Any other is a defect that nobody foresaw: it closes this one attempt as
    infrastructure, under its type, and its traceback goes to `errors.log` among the run's logs.
    """
    if isinstance(error, LegoError):
        return error.fault, f"{error}" + (f" ({error.hint})" if error.hint else "")
    said = "".join(traceback.format_exception_only(error)).strip()[:_LONGEST]
    where = run.logs_dir / "errors.log"
    # A disk that is full must not make one lost attempt the end of all.
    with contextlib.suppress(OSError):
        where.parent.mkdir(parents=True, exist_ok=True)
        with where.open("a", errors="backslashreplace") as log:
            log.write(f"--- {datetime.now(UTC):%Y-%m-%d %H:%M:%S} {what}\n")
            log.write("".join(traceback.format_exception(error)))
    return "infra", f"unexpected {said} (traceback in {where})"
