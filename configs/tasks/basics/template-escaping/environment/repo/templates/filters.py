"""What may stand after the bar in a tag."""


def raw(value):
    """Trusted markup, as it is."""
    return str(value)


def upper(value):
    return str(value).upper()


def length(value):
    return str(len(value))


FILTERS = {"raw": raw, "upper": upper, "length": length}
