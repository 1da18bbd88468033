import sqlite3

import pytest
from notes import Keeper


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "notes.db")


def reopened(keeper, path):
    keeper.close()
    return Keeper(path)


def test_notes_survive_a_restart(path):
    keeper = Keeper(path)
    note = keeper.add("milk", "buy some", "2024-03-01", tags=["shop"])
    keeper = reopened(keeper, path)
    assert keeper.get(note) == {"title": "milk", "body": "buy some", "created": "2024-03-01"}
    assert keeper.tags() == {"shop": 1}


def test_everything_else_survives_too(path):
    keeper = Keeper(path)
    first, second = keeper.add("a", ""), keeper.add("b", "")
    keeper.tag(first, "late")
    keeper.delete(second)
    keeper = reopened(keeper, path)
    assert keeper.tags() == {"late": 1}
    with pytest.raises(KeyError):
        keeper.get(second)


def test_search_is_plain_text(path):
    keeper = Keeper(path)
    plain = keeper.add("it's", "100% sure")
    other = keeper.add("snake_case", "C:\\dir")
    assert keeper.search("it's") == [plain]
    assert keeper.search("%") == [plain]
    assert keeper.search("_") == [other]
    assert keeper.search("\\") == [other]
    assert keeper.search("x' OR '1'='1") == []


def test_search_ignores_case(path):
    keeper = Keeper(path)
    note = keeper.add("Shopping", "MILK and honey")
    keeper.add("other", "nothing")
    assert keeper.search("shop") == [note]
    assert keeper.search("Milk") == [note]


def test_deleting_takes_the_tags(path):
    keeper = Keeper(path)
    note = keeper.add("a", "", tags=["x", "y"])
    keeper.add("b", "", tags=["y"])
    keeper.delete(note)
    assert keeper.tags() == {"y": 1}


def test_ids_used_again_have_no_old_tags(path):
    keeper = Keeper(path)
    keeper.delete(keeper.add("a", "", tags=["x"]))
    keeper.add("b", "")
    assert keeper.tags() == {}


def test_tagging_twice(path):
    keeper = Keeper(path)
    note = keeper.add("a", "", tags=["x", "x"])
    keeper.tag(note, "x")
    other = keeper.add("b", "")
    keeper.tag(other, "x")
    assert keeper.tags() == {"x": 2}


def test_unknown_notes(path):
    keeper = Keeper(path)
    for action in (keeper.get, keeper.delete, lambda note: keeper.tag(note, "x")):
        with pytest.raises(KeyError):
            action(99)


def first_release(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, title TEXT NOT NULL, body TEXT NOT NULL)")
    db.execute("CREATE TABLE tags (note INTEGER NOT NULL, name TEXT NOT NULL)")
    db.execute("INSERT INTO notes VALUES (5, 'old', 'from before')")
    db.execute("INSERT INTO tags VALUES (5, 'relic')")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()


def test_upgrade(path):
    first_release(path)
    keeper = Keeper(path)
    assert keeper.get(5) == {"title": "old", "body": "from before", "created": ""}
    assert keeper.tags() == {"relic": 1}
    new = keeper.add("new", "", "2024-03-01")
    keeper = reopened(keeper, path)
    assert keeper.get(new)["created"] == "2024-03-01"
    assert keeper.search("o") == [5]


def test_upgraded_tags_behave(path):
    first_release(path)
    keeper = Keeper(path)
    keeper.tag(5, "relic")
    assert keeper.tags() == {"relic": 1}
    keeper.delete(5)
    assert reopened(keeper, path).tags() == {}
