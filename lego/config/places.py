"""Where the configs and harness specs that lego ships are found: in a checkout, or inside the installed package."""

from __future__ import annotations

from pathlib import Path

import lego


def _shipped(name: str) -> Path:
    package = Path(lego.__file__).resolve().parent
    checkout = package.parent / name
    return checkout if checkout.is_dir() else package / "shipped" / name


def harness_specs_dir() -> Path:
    """The folder of the harness specs that lego ships."""
    return _shipped("harness_specs")


def locate(path: str | Path) -> Path:
    """A path a person wrote. Relative ones count from the current folder; where nothing is there, `configs/...`
    and `harness_specs/...` name what lego ships, so that an installed lego finds its own configs anywhere.
    """
    written = Path(path)
    if written.is_absolute() or written.exists():
        return written
    parts = written.parts
    if parts and parts[0] in ("configs", "harness_specs"):
        shipped = _shipped(parts[0]).joinpath(*parts[1:])
        if shipped.exists():
            return shipped
    return written
