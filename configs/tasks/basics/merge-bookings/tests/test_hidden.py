import random

from rooms.intervals import merge
from rooms.planner import can_book, free_times


def test_order_does_not_matter():
    assert merge([(14, 15), (9, 11), (10, 12)]) == [(9, 12), (14, 15)]


def test_contained_booking():
    assert merge([(9, 17), (10, 11)]) == [(9, 17)]


def test_meeting_bookings_become_one():
    assert merge([(9, 10), (10, 11)]) == [(9, 11)]


def test_empty_stretches_vanish():
    assert merge([(9, 9), (12, 10)]) == []
    assert merge([]) == []


def test_input_is_left_alone():
    bookings = [(14, 15), (9, 11)]
    merge(bookings)
    assert bookings == [(14, 15), (9, 11)]


def test_free_between_bookings():
    assert free_times([(12, 13), (9, 10)]) == [(8, 9), (10, 12), (13, 18)]
    assert free_times([]) == [(8, 18)]


def test_bookings_outside_opening_hours():
    assert free_times([(5, 6)]) == [(8, 18)]
    assert free_times([(6, 9), (17, 21)]) == [(9, 17)]
    assert free_times([(19, 20)]) == [(8, 18)]
    assert free_times([(7, 20)]) == []


def test_can_book():
    bookings = [(9, 17), (10, 11)]
    assert not can_book(bookings, 12, 13)
    assert can_book(bookings, 17, 18)
    assert not can_book(bookings, 17, 19)


def test_against_counting_hours():
    dice = random.Random(5)
    for _ in range(300):
        bookings = []
        for _ in range(dice.randint(0, 6)):
            start = dice.randint(0, 22)
            bookings.append((start, start + dice.randint(0, 5)))
        busy = {hour for start, end in bookings for hour in range(start, end)}
        free = {hour for start, end in free_times(bookings) for hour in range(start, end)}
        assert free == set(range(8, 18)) - busy
