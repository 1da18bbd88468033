"""Summaries of samples."""

import math


def mean(values):
    return sum(values) / len(values)


def median(values):
    values.sort()
    return values[len(values) // 2]


def spread(values):
    """Sample standard deviation; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def summary(values):
    """Count, mean, median, spread, smallest and largest. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values to summarise")
    return {
        "count": len(values),
        "mean": mean(values),
        "median": median(values),
        "spread": spread(values),
        "min": min(values),
        "max": max(values),
    }
