import pytest
from ledger import Book, LedgerError


def book():
    result = Book()
    result.open("ann", 100)
    result.open("bob", 50, overdraft=20)
    result.open("cid")
    return result


def state(one):
    return {name: one.balance(name) for name in one.accounts}, list(one.journal)


def refuses(one, action):
    before = state(one)
    with pytest.raises(LedgerError):
        action(one)
    assert state(one) == before


def test_too_much_money():
    refuses(book(), lambda one: one.transfer("ann", "bob", 101))


def test_unknown_receiver_and_sender():
    refuses(book(), lambda one: one.transfer("ann", "dan", 10))
    refuses(book(), lambda one: one.transfer("dan", "ann", 10))


def test_amounts_must_be_positive():
    refuses(book(), lambda one: one.transfer("ann", "bob", 0))
    refuses(book(), lambda one: one.transfer("ann", "bob", -5))


def test_batch_is_undone():
    refuses(book(), lambda one: one.transfer_all([("ann", "bob", 60), ("bob", "cid", 110), ("ann", "cid", 41)]))


def test_batch_with_unknown_account_is_undone():
    refuses(book(), lambda one: one.transfer_all([("ann", "bob", 60), ("bob", "dan", 1)]))


def test_batch_keeps_earlier_history():
    one = book()
    one.transfer("ann", "cid", 5, memo="tea")
    refuses(one, lambda it: it.transfer_all([("ann", "cid", 5), ("cid", "ann", 999)]))
    assert one.journal == [("ann", "cid", 5, "tea")]


def test_broken_batch_from_an_iterator():
    def transfers():
        yield ("ann", "bob", 30)
        raise RuntimeError("source went away")

    one = book()
    before = state(one)
    with pytest.raises(RuntimeError):
        one.transfer_all(transfers())
    assert state(one) == before


def test_good_batch():
    one = book()
    one.transfer_all([("ann", "bob", 60), ("bob", "cid", 110)])
    assert state(one)[0] == {"ann": 40, "bob": 0, "cid": 110}
    assert [entry[3] for entry in one.journal] == ["batch", "batch"]
    assert one.total() == 150


def test_overdraft_still_works():
    one = book()
    one.transfer("bob", "ann", 70)
    assert one.balance("bob") == -20
    refuses(one, lambda it: it.transfer("bob", "ann", 1))


def test_to_oneself():
    one = book()
    one.transfer("ann", "ann", 100)
    assert one.balance("ann") == 100
