"""What podman's store says of its images, read from its own files.

podman itself takes seconds to list some hundred images, and fails while another process removes one. containers/storage
replaces these files whole, so that a reader sees one state or the next.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Stored:
    """An image by one of its names. `bytes` counts all its layers; `created` is in seconds since the epoch."""

    tag: str
    id: str
    bytes: int
    created: float


def stored(graph: Path) -> list[Stored]:
    """Every named image under podman's graph root; none where its files are not as expected."""
    try:
        layers = {layer["id"]: layer for layer in _read(graph / "overlay-layers" / "layers.json")}
        found = []
        for image in _read(graph / "overlay-images" / "images.json"):
            size, created = _size(image.get("layer", ""), layers), _seconds(image.get("created", ""))
            found += [Stored(tag, image["id"], size, created) for tag in image.get("names") or ()]
        return found
    except (OSError, ValueError, KeyError, TypeError):
        return []


def labels(graph: Path, image: str) -> dict[str, str]:
    """The labels of the image with this id; none where it has gone meanwhile."""
    name = base64.b64encode(f"sha256:{image}".encode()).decode()
    try:
        body = json.loads((graph / "overlay-images" / image / f"={name}").read_text())
        return dict((body.get("config") or {}).get("Labels") or {})
    except (OSError, ValueError, AttributeError):
        return {}


def taken(graph: Path) -> int:
    """Bytes of all layers, each counted once; 0 where they cannot be read."""
    try:
        return sum(int(layer.get("diff-size") or 0) for layer in _read(graph / "overlay-layers" / "layers.json"))
    except (OSError, ValueError):
        return 0


def _read(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text()))


def _size(layer: str, layers: Mapping[str, dict[str, Any]]) -> int:
    total = 0
    while layer in layers:
        total += int(layers[layer].get("diff-size") or 0)
        layer = layers[layer].get("parent", "")
    return total


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text[:19] + "+00:00").timestamp()
