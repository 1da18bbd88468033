"""Pick lines by level."""

from logview.tail import tail

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def recent(path, n, level="INFO"):
    """Those of the last `n` lines whose second word is `level` or worse."""
    wanted = LEVELS[LEVELS.index(level) :]
    return [line for line in tail(path, n) if len(line.split()) > 1 and line.split()[1] in wanted]
