"""Targets and what they need."""


class CycleError(Exception):
    def __init__(self, path):
        super().__init__(" -> ".join(path))
        self.path = path


def order(needs):
    """All targets, each after those it needs. `needs` maps a target to a list of targets."""
    seen, result = set(), []

    def visit(target):
        if target in seen:
            raise CycleError([target])
        seen.add(target)
        for needed in needs[target]:
            if needed != target and needed in needs:
                visit(needed)
        result.append(target)

    for target in needs:
        if target not in seen:
            visit(target)
    return result
