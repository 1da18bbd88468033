"""The grader `swebench`: named tests in the log of the published test command, read on the host."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from lego.tasks.task import Canary, File, Grading
from lego.verifier.graders import READ_CAP, TEST_LOG, Reward
from lego.verifier.logs import frameworks
from lego.verifier.logs.named import NamedResults, results, test_output

_SHOWN = 200
_TRUST = (
    "swebench: the published test command in a fresh container without network, its log read on the host by the "
    "published parser. Every named test must be reported as passed; one that is not mentioned has failed."
)
_CANARY = (
    " A canary, a test made up for this run that must fail, must be reported as failed. Code under test shares the "
    "test process: one that rewrites the results of chosen tests and lets the canary fail is not told by the log alone."
)
_NO_CANARY = (
    " This framework has no canary: code under test that prints passed lines of its own is not told by the log alone."
)


class SwebenchGrader:
    """`task.tests` hold test.sh, which gets LEGO_WORD (to be written behind the two markers around the test command)
    and LEGO_CANARY (an argument for the test command, empty without a canary)."""

    reads: tuple[str, ...] = (TEST_LOG,)

    def __init__(self, grading: Grading) -> None:
        self._grading = grading
        self._word = f"lego{secrets.token_hex(6)}"
        self._canary: Canary | None = grading.canary and grading.canary.named(self._word)
        self.trust = _TRUST + (_CANARY if self._canary else _NO_CANARY)

    def files(self) -> Mapping[str, File]:
        return {self._canary.path: File(self._canary.code.encode())} if self._canary else {}

    def env(self) -> Mapping[str, str]:
        return {"LEGO_WORD": self._word, "LEGO_CANARY": self._canary.argument if self._canary else ""}

    def reward(self, files: Mapping[str, bytes | None], rc: int | None) -> Reward:
        data = files.get(TEST_LOG)
        if data is None or len(data) >= READ_CAP:
            return Reward(None, "there is no test log" if data is None else "the test log is too long to be read")
        output = test_output(data.decode(errors="replace"), self._word)
        if output is None:
            return Reward(None, "the test command did not run to its end")
        grading = self._grading
        found = results(output, grading.parser, grading.fail_to_pass, grading.pass_to_pass)
        if not found.reported:
            return Reward(None, "no test is reported", detail=self._detail(found))
        if self._canary and not self._sound(found):
            why = "the canary is not reported as failed, so that nothing else that is reported counts"
            return Reward(0.0, why, detail={**self._detail(found), "canary": why})
        return Reward(float(found.resolved), detail=self._detail(found))

    def _sound(self, found: NamedResults) -> bool:
        statuses = {status for test, status in found.reported.items() if self._word in test}
        return statuses == {frameworks.FAILED}

    def _detail(self, found: NamedResults) -> dict[str, Any]:
        detail: dict[str, Any] = {"named": len(found.passed) + len(found.failed), "named_passed": len(found.passed)}
        if found.failed:
            detail["named_failed"] = dict(list(found.failed.items())[:_SHOWN])
        return detail
