from __future__ import annotations

import pytest

from lego.errors import ConfigError
from lego.rundb import meta
from lego.rundb.store import Store


def test_a_frozen_setting_that_changed_is_shown_where_it_changed(store: Store) -> None:
    tags = {"tasks.train": "identity"}
    sources = [{"source": "family", "path": "", "name": "off-by-one", "count": 64, "seed": 1}]
    meta.settle_config(store, {"tasks.train": sources}, tags)
    meta.settle_config(store, {"tasks.train": sources}, tags)
    with pytest.raises(ConfigError, match=r'"seed":1.* -> .*"seed":9'):
        meta.settle_config(store, {"tasks.train": [sources[0] | {"seed": 9}]}, tags)


def test_short_values_are_shown_whole(store: Store) -> None:
    meta.settle_config(store, {"run.seed": 1}, {"run.seed": "identity"})
    with pytest.raises(ConfigError, match=r"run\.seed: 1 -> 2"):
        meta.settle_config(store, {"run.seed": 2}, {"run.seed": "identity"})
