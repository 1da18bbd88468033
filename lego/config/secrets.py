"""Secrets never land in a config: it is stored in the run database, printed and shared."""

from __future__ import annotations

import re
from typing import Any

_NAMES = re.compile(
    r"(?:^|[_.-])(?:api[_-]?key|access[_-]?key|private[_-]?key|auth|secret|passwd|password|credentials?|"
    r"(?:api|auth|access|hf|hub|bearer)[_-]?token|token)$",
    re.IGNORECASE,
)
_VALUES = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"  # model providers
    r"|\bhf_[A-Za-z0-9]{16,}"
    r"|\b(?:gh[pousr]_|github_pat_|glpat-)[A-Za-z0-9_-]{16,}"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\bAKIA[A-Z0-9]{12,}"
    r"|\bpypi-[A-Za-z0-9_-]{32,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}"  # JSON web tokens
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\b[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s:@]+@"  # user:password in an address
)

ADVICE = "export it in the environment of the command instead, and take it out of the file's history"


def secret_name(name: str) -> bool:
    """Whether a key's name says that its value is a secret."""
    return _NAMES.search(name) is not None


def secret_value(value: Any) -> bool:
    """Whether a value has the shape of a secret: a provider's key, a token, a private key, a password in an address."""
    return isinstance(value, str) and _VALUES.search(value) is not None
