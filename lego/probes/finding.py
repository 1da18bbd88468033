"""What a probe found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of `lego check`. `ok` False means that a run would fail; `hint` says what to do."""

    subject: str
    ok: bool
    text: str
    hint: str = ""
