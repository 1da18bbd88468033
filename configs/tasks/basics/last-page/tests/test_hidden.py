import pytest

from shop.paging import page_count, paginate
from shop.views import category


def test_partial_last_page_counts():
    assert page_count(45, 20) == 3
    assert page_count(1, 20) == 1
    assert page_count(21, 20) == 2


def test_exact_multiple_has_no_extra_page():
    assert page_count(40, 20) == 2
    assert page_count(20, 20) == 1


def test_empty_is_one_page():
    assert page_count(0, 20) == 1
    page = paginate([], 3)
    assert (list(page.items), page.number, page.pages, page.has_next) == ([], 1, 1, False)


def test_every_item_is_on_exactly_one_page():
    for total in range(0, 50):
        items = list(range(total))
        seen = []
        for number in range(1, page_count(total, 7) + 1):
            seen += paginate(items, number, 7).items
        assert seen == items


def test_out_of_range_is_clamped():
    assert paginate(list(range(45)), 99).items == [40, 41, 42, 43, 44]
    assert paginate(list(range(45)), -1).number == 1


def test_bad_page_size():
    with pytest.raises(ValueError):
        page_count(5, 0)


def test_view_links():
    products = [{"name": f"p{i}"} for i in range(45)]
    second = category(products, {"page": "2"})
    assert (second["label"], second["next"], second["previous"]) == ("page 2 of 3", 3, 1)
    last = category(products, {"page": "3"})
    assert (last["names"], last["next"]) == (["p40", "p41", "p42", "p43", "p44"], None)
