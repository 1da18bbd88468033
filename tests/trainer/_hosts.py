"""Stand-ins for ssh and pdsh that run on this machine what was meant for another. Everything else is the real thing."""

from __future__ import annotations

import sys
from pathlib import Path

SSH = """#!/bin/sh
# ssh [-o OPTION] HOST COMMAND…
while [ "$1" = -o ]; do shift 2; done
echo "ssh $*" >> "{log}"
shift
case "$*" in "hostname -I") echo 127.0.0.1 ;; *) exec sh -c "$*" ;; esac
"""

PDSH = """#!{python}
# pdsh -S -f FAN_OUT -w HOST,HOST COMMAND…: all at once, %n the number of each; the worst of their exit codes
import subprocess, sys
at = sys.argv.index("-w")
hosts, words = sys.argv[at + 1].split(","), sys.argv[at + 2 :]
with open("{log}", "a") as log:
    print("pdsh", *hosts, file=log)
running = [subprocess.Popen(["bash", "-c", " ".join(words).replace("%n", str(n))]) for n in range(len(hosts))]
sys.exit(max(process.wait() for process in running))
"""


def stand_ins(folder: Path) -> Path:
    """Put `ssh` and `pdsh` into `folder`; returns the file that they tell of themselves in."""
    log = folder / "hosts.log"
    for name, text in (("ssh", SSH), ("pdsh", PDSH)):
        (folder / name).write_text(text.format(log=log, python=sys.executable))
        (folder / name).chmod(0o755)
    return log
