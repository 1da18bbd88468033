"""What an agent's image holds that it must not: more history than one commit, hidden tests, the solution."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lego.tasks.task import Task

_SMALLEST_SECRET = 32
"""Bytes. Shorter files (an empty __init__.py, a one-line shell script) are alike everywhere and prove nothing."""

# The system's own directories are left out of the file listing: nothing is put there by a task's recipe by accident,
# and hashing them would cost more than building most images.
SCRIPT = r"""
find / -xdev -type d -name objects 2>/dev/null | while read -r objects; do
  repository=${objects%/objects}
  if [ -f "$repository/HEAD" ] && [ -d "$repository/refs" ]; then
    commits='?'
    if command -v git >/dev/null; then
      commits=$(git -c safe.directory='*' --git-dir="$repository" cat-file --batch-all-objects \
        --batch-check='%(objecttype)' | grep -c '^commit')
    fi
    echo "repository $commits $repository"
  fi
done
for folder in /tests /solution; do
  if [ -n "$(ls -A $folder 2>/dev/null)" ]; then echo "folder $folder"; fi
done
find / -xdev \( -path /usr/bin -o -path /usr/lib -o -path /usr/lib64 -o -path /usr/sbin -o -path /usr/share \
  -o -path /usr/include -o -path /usr/libexec -o -path /bin -o -path /lib -o -path /sbin -o -path /proc -o -path /sys \
  -o -path /dev -o -path /var/lib/dpkg -o -path '*/.git/objects' \) -prune -o -type f -size -4096k \
  -exec sha256sum {} + 2>/dev/null
echo end
"""


@dataclass(frozen=True)
class Inspection:
    """`files`: sha256 hex -> a path with that content. `problems`: what is wrong whatever the task."""

    files: Mapping[str, str]
    problems: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps({"files": self.files, "problems": self.problems})

    @classmethod
    def from_json(cls, text: str) -> Inspection:
        raw = json.loads(text)
        return cls(raw["files"], tuple(raw["problems"]))


def parse(output: str) -> Inspection:
    """Read SCRIPT's output. Raises ValueError where the script did not come to its end."""
    lines = output.splitlines()
    if not lines or lines[-1] != "end":
        raise ValueError("the inspection of the image did not finish")
    found: dict[str, str] = {}
    problems: list[str] = []
    for line in lines[:-1]:
        word, _, rest = line.partition(" ")
        if word == "repository":
            commits, _, path = rest.partition(" ")
            if commits == "?":
                problems.append(f"{path} is a git repository, and there is no git in the image to look into it")
            elif int(commits) > 1:
                problems.append(f"{path} holds {commits} commits; one is allowed, since others may hold the solution")
        elif word == "folder":
            problems.append(f"{rest} is not empty; hidden tests and solutions are brought in only for verification")
        else:
            found[word] = rest.strip()
    return Inspection(found, tuple(problems))


def kept(store: Path, key: str) -> Inspection | None:
    """What was seen in the image of this key when it was proven; None where that was not written down."""
    try:
        return Inspection.from_json(record_path(store, key).read_text())
    except (OSError, ValueError, KeyError):
        return None


def record_path(store: Path, key: str) -> Path:
    """Where a store keeps what was seen in an image."""
    return store / "images" / f"{key}.json"


def fingerprints(made: Mapping[str, bytes]) -> dict[str, str]:
    """Path -> sha256 hex of what a solution makes, less what is too short to prove anything."""
    return {path: hashlib.sha256(data).hexdigest() for path, data in made.items() if len(data) >= _SMALLEST_SECRET}


def copies(inspection: Inspection, made: Mapping[str, str]) -> list[str]:
    """Files of the image that are what the solution makes already (`fingerprints`), in words."""
    return [
        f"{inspection.files[digest]} is {path} as the solution makes it"
        for path, digest in sorted(made.items())
        if digest in inspection.files
    ]


def leaks(inspection: Inspection, tasks: Iterable[Task]) -> list[str]:
    """Hidden files of `tasks` that lie in the image, in words."""
    found = []
    for task in tasks:
        for folder, tree in (("tests", task.tests), ("solution", task.solution)):
            for path, file in tree.items():
                if len(file.data) < _SMALLEST_SECRET:
                    continue
                place = inspection.files.get(hashlib.sha256(file.data).hexdigest())
                if place:
                    found.append(f"{place} is {folder}/{path} of task {task.id}")
    return found
