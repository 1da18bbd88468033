"""Half-open stretches of time [start, end), in hours."""


def merge(stretches):
    """The same busy time in as few stretches as possible, in order. Empty stretches vanish."""
    merged = []
    for start, end in stretches:
        if start >= end:
            continue
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
