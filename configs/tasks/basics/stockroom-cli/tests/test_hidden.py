import json
import os
import subprocess
import sys

import pytest
from stockroom.store import StockError, Store


def run(path, *words):
    env = {"PATH": os.defpath, "PYTHONPATH": os.environ["APP"], "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "stockroom", "--file", str(path), *words]
    return subprocess.run(command, env=env, cwd=path.parent, capture_output=True, text=True)


@pytest.fixture
def stock(tmp_path):
    path = tmp_path / "stock.json"
    assert run(path, "add", "screws", "100", "--location", "shelf-3").returncode == 0
    assert run(path, "add", "nails", "7").returncode == 0
    return path


def refused(path, *words):
    before = path.read_bytes()
    result = run(path, *words)
    assert result.returncode == 1
    assert result.stderr.strip() and not result.stdout.strip()
    assert "Traceback" not in result.stderr
    assert path.read_bytes() == before
    return result


def test_location_is_kept(stock):
    assert "screws\t100\tshelf-3\n" in run(stock, "list").stdout


def test_adding_adds(stock):
    run(stock, "add", "screws", "20")
    assert "screws\t120\tshelf-3\n" in run(stock, "list").stdout
    run(stock, "add", "screws", "1", "--location", "shelf-4")
    assert "screws\t121\tshelf-4\n" in run(stock, "list").stdout


def test_removing(stock):
    assert run(stock, "remove", "nails", "7").returncode == 0
    assert "nails\t0\t\n" in run(stock, "list").stdout


def test_removing_too_much(stock):
    assert "7" in refused(stock, "remove", "nails", "8").stderr


def test_unknown_item(stock):
    assert "bolts" in refused(stock, "remove", "bolts", "1").stderr


def test_quantity_must_be_positive(stock):
    refused(stock, "add", "nails", "0")


def test_wrong_usage(stock):
    assert run(stock, "add", "nails", "many").returncode == 2
    assert run(stock, "paint").returncode == 2


def test_low_includes_the_limit(stock):
    assert run(stock, "list", "--low", "7").stdout == "nails\t7\t\n"
    assert run(stock, "list", "--low", "6").stdout == ""
    assert run(stock, "list", "--low", "100").stdout.count("\n") == 2


def test_files_from_before_still_load(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"items": [{"name": "glue", "quantity": 2}]}))
    assert run(path, "list").stdout == "glue\t2\t\n"


def test_saving_is_one_step(stock, monkeypatch):
    store = Store(str(stock))
    before = stock.read_bytes()
    store.add("paint", 3)

    def broken(*args, **kwargs):
        target = args[1] if len(args) > 1 else kwargs.get("fp")
        if target is not None:
            target.write("{")
        raise OSError("disk full")

    monkeypatch.setattr(json, "dump", broken)
    monkeypatch.setattr(json, "dumps", broken)
    with pytest.raises(OSError):
        store.save()
    assert stock.read_bytes() == before


def test_failed_removal_leaves_the_store_alone(stock):
    store = Store(str(stock))
    with pytest.raises(StockError):
        store.remove("nails", 8)
    assert store.items["nails"].quantity == 7
