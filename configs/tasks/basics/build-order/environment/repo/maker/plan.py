"""What has to be built again."""

from maker.graph import order


def stale(needs, changed):
    """The targets to rebuild, in order, when those in `changed` have changed: they and all that need them."""
    result = []
    dirty = set(changed)
    for target in order(needs):
        if target in dirty or any(needed in dirty for needed in needs.get(target, [])):
            dirty.add(target)
            result.append(target)
    return result
