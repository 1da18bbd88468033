"""Content types by file name."""

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".txt": "text/plain"}


def content_type(path):
    for ending, name in TYPES.items():
        if path.lower().endswith(ending):
            return name
    return "application/octet-stream"
