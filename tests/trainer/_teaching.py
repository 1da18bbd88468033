"""A supervised teaching that is killed in its third step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lego.config.schema import SftSection
from lego.trainer.sft import SftProgress, run_sft
from lego.trainer.step import Trainer


class _Killed(BaseException):
    """No handler of ours may hold it up."""


def teach_until_killed(trainer: Trainer, shown: Sequence[Any], plan: SftSection, keep: Path) -> None:
    def die(progress: SftProgress) -> None:
        if progress.step == 3:
            raise _Killed

    with pytest.raises(_Killed):
        run_sft(trainer, shown, plan, die, keep)
