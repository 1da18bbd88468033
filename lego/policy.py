"""A policy: one version of the model's weights, as a folder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PolicyRef:
    """A policy as a Hugging Face folder: `version` counts from 0, `digest` is of the weights."""

    version: int
    path: str
    digest: str
