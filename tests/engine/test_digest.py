from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lego.engine.digest import folder_digest
from lego.errors import EngineError


@pytest.fixture
def copy(tiny_policy: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_policy, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_copy_has_the_same_digest_and_so_has_one_with_notes(tiny_policy: Path, copy: Path) -> None:
    (copy / "trainer.json").write_text("{}")
    (copy / "optimizer.pt").write_bytes(b"state")
    assert folder_digest(copy) == folder_digest(tiny_policy)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_one_byte_changes_it(tiny_policy: Path, copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[-1] ^= 1
    (copy / name).write_bytes(data)
    assert folder_digest(copy) != folder_digest(tiny_policy)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_what_is_not_a_policy_is_refused(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(EngineError, match="not a policy"):
        folder_digest(copy)
