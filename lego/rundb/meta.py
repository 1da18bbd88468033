"""What a run is: its versions, its config, and which fields of it may change."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from lego.errors import ConfigError
from lego.rundb.blobs import to_json
from lego.rundb.store import Store, now


def get(store: Store, key: str) -> str | None:
    value = store.value("SELECT value FROM meta WHERE key = ?", (key,))
    return None if value is None else str(value)


def put(store: Store, key: str, value: str) -> None:
    store.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def event(store: Store, kind: str, text: str, **detail: Any) -> None:
    """One line of the run's history."""
    store.insert("events", {"at": now(), "kind": kind, "text": text, "detail": to_json(detail)})


def events(store: Store, limit: int = 50) -> list[dict[str, Any]]:
    return store.rows("SELECT * FROM events ORDER BY id DESC LIMIT ?", (limit,))


def settle_config(store: Store, config: Mapping[str, Any], tags: Mapping[str, str]) -> None:
    """Freeze the identity fields at first use; afterwards refuse a change of them and log a change of tunable ones.

    config: flat, dotted key -> value. tags: dotted key -> identity | tunable | machine.
    """
    with store.write():
        saved_text = get(store, "config")
        saved: dict[str, Any] = json.loads(saved_text) if saved_text else {}
        # Through JSON, so that tuples and numbers compare as they will when read back.
        current: dict[str, Any] = json.loads(to_json(dict(config)))
        if saved:
            # Config maps flatten to keys of their own, so a key's tag is that of its longest tagged prefix.
            changed = [key for key in sorted(saved.keys() | current.keys()) if saved.get(key) != current.get(key)]
            frozen = [key for key in changed if _tag(key, tags) == "identity"]
            if frozen:
                shown = ", ".join(f"{key}: {_change(saved.get(key), current.get(key))}" for key in frozen[:4])
                raise ConfigError(
                    f"this run was begun with other values: {shown}{' …' if len(frozen) > 4 else ''}",
                    hint="these fields are frozen at first use; change them back, or give the run another run.name",
                )
            for key in changed:
                if _tag(key, tags) == "tunable":
                    event(store, "config", f"{key}: {_change(saved.get(key), current.get(key))}")
        put(store, "config", to_json(current))


def _tag(key: str, tags: Mapping[str, str]) -> str:
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        tag = tags.get(".".join(parts[:end]))
        if tag:
            return tag
    return "identity"


def _change(before: Any, after: Any) -> str:
    """Both values as JSON; long ones around the place where they begin to differ."""
    texts = to_json(before), to_json(after)
    begin = max(0, len(os.path.commonprefix(texts)) - 24) if max(map(len, texts)) > 60 else 0
    return " -> ".join(
        ("…" if begin else "") + text[begin : begin + 60] + ("…" if len(text) > begin + 60 else "") for text in texts
    )


def settle_identity(store: Store, name: str, value: str, what: str) -> None:
    """Freeze one derived value (a digest of a harness spec, of the task set, of the chat template)."""
    key = f"identity.{name}"
    with store.write():
        saved = get(store, key)
        if saved is None:
            put(store, key, value)
        elif saved != value:
            raise ConfigError(f"{what} changed since this run began", hint="give the changed run another run.name")
