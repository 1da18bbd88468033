"""Runs inside the build of a runtime image: a copy of its dynamic loader that finds the image's own libraries.

    loader.py LOADER LIBRARIES COPY

A native program that names the copy as its loader runs on LIBRARIES, a folder's later place, whatever the system it is
started in holds, and starts other programs without a variable that they would inherit. Standard library only.
"""

import re
import sys
from pathlib import Path

_FOLDER = re.compile(rb"/lib/[a-z0-9_]+-linux-[a-z0-9]+/")
"""The folder that Debian's loaders look into first."""
_CACHE = b"/etc/ld.so.cache"


def edited(loader: bytes, libraries: str) -> bytes:
    """The loader with its folder replaced, and without the system's cache, which would go before it.

    Texts in a program cannot grow: `libraries` must not be longer than the folder. Raises ValueError where it is, or
    where the loader names none.
    """
    folders = set(_FOLDER.findall(loader))
    if not folders or any(len(libraries) + 1 > len(folder) for folder in folders):
        raise ValueError(f"{libraries} cannot take the place of this loader's folders: {folders or 'none'}")
    for folder in folders:
        loader = loader.replace(folder, libraries.encode().ljust(len(folder), b"/"))
    return loader.replace(_CACHE, b"/".ljust(len(_CACHE), b"-"))


if __name__ == "__main__":
    source, libraries, copy = sys.argv[1:]
    Path(copy).write_bytes(edited(Path(source).read_bytes(), libraries))
    Path(copy).chmod(0o755)
