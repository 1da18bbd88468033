"""The gate of a container whose service has to answer before anything else may begin.

A container has one command, so the gate is the beginning of that command: a shell that starts what the image starts by
itself (its ENTRYPOINT), asks until the answer is good, says so once, and becomes the command proper. The word by which
it says so is made up for each start and is gone from the container by then: nothing that runs later can have said it,
and before it was said nothing of the agent's has run.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from lego.tasks.task import Healthcheck, Stage

_SLACK = 30.0
# Needs only a shell, sleep and /proc. Seconds come from /proc/uptime, as hundredths. A check reports over /dev/shm,
# since a background job that has ended cannot be told from one that runs by every shell.
_SCRIPT = r"""
word=$1 check=$2 timeout=$3 interval=$4 retries=$5 grace=$6 early=$7 service=$8
shift 8
at=/dev/shm/lego-$word failed=0 shell=/bin/sh
if command -v bash > /dev/null 2>&1; then shell=bash; fi
now() { read -r up rest < /proc/uptime; now=${up%.*}${up#*.}; }
nap() { sleep "$1" 2> /dev/null || sleep 1; }
ask() {
  : > "$at.rc"
  { "$shell" -c "$check" < /dev/null > "$at.said" 2>&1; echo $? > "$at.rc"; } &
  now; end=$((now + timeout))
  while :; do
    if read -r rc < "$at.rc"; then wait $!; return "$rc"; fi
    now
    if [ "$now" -ge "$end" ]; then kill -9 $! 2> /dev/null; echo "no answer in time" >> "$at.said"; return 124; fi
    nap 0.05
  done
}
run=
while [ "$service" -gt 0 ]; do
  run="$run '$(printf '%s\n' "$1" | sed "s/'/'\\\\''/g")'"
  shift; service=$((service - 1))
done
if [ -n "$run" ]; then
  eval "$run /bin/sh -c 'while :; do sleep 3600; done'" < /dev/null > "$at.service" 2>&1 &
fi
now; grace=$((now + grace))
while :; do
  now; begun=$now
  if ask; then break; fi
  if [ "$begun" -lt "$grace" ]; then nap "$early"; continue; fi
  failed=$((failed + 1))
  if [ "$failed" -ge "$retries" ]; then
    cat "$at.service" "$at.said" 2> /dev/null
    exit 1
  fi
  nap "$interval"
done
rm -f "$at.rc" "$at.said"
printf '\n%s\n' "$word"
exec "$@"
"""


class Gate:
    """One start's gate. `passed`: the check was good and the command proper has begun. `limit`: seconds after which
    the host has waited for longer than any run of the check can take. `said`: what came before it passed."""

    what = "the health check of the environment"

    def __init__(self, check: Healthcheck, entrypoint: Sequence[str]) -> None:
        self._check, self._entrypoint = check, tuple(entrypoint)
        self._word = f"lego-{secrets.token_hex(12)}"
        self.passed = False
        self.said = b""
        one = max(check.interval, check.start_interval) + check.timeout
        self.limit = check.start_period + check.retries * one + one + _SLACK

    def argv(self, argv: Sequence[str]) -> list[str]:
        """The command that passes the gate and becomes `argv`."""
        check = self._check
        numbers = (
            f"{check.timeout * 100:.0f}",
            f"{check.interval:g}",
            str(check.retries),
            f"{check.start_period * 100:.0f}",
            f"{check.start_interval:g}",
            str(len(self._entrypoint)),
        )
        return ["/bin/sh", "-c", _SCRIPT, "lego-gate", self._word, check.command, *numbers, *self._entrypoint, *argv]

    def take(self, content: bytes) -> bytes:
        """What of a piece of standard output (whole lines) comes from behind the gate."""
        if self.passed:
            return content
        before, word, after = content.partition(self._word.encode() + b"\n")
        self.said += before
        self.passed = bool(word)
        return after


_SETUP = r"""
word=$1 script=$2
shift 2
at=/dev/shm/lego-$word shell=/bin/sh
if command -v bash > /dev/null 2>&1; then shell=bash; fi
if "$shell" "$script" < /dev/null > "$at" 2>&1; then
  rm -f "$at"
  printf '\n%s\n' "$word"
  exec "$@"
fi
cat "$at"
exit 1
"""
_SETUP_LIMIT = 600.0


class SetupGate(Gate):
    """A script that has to end well before anything else begins; what it started goes on."""

    what = "the step's setup.sh"

    def __init__(self, script: str) -> None:
        super().__init__(Healthcheck(""), ())
        self._path = script
        self.limit = _SETUP_LIMIT

    def argv(self, argv: Sequence[str]) -> list[str]:
        return ["/bin/sh", "-c", _SETUP, "lego-setup", self._word, self._path, *argv]


def gates(check: Healthcheck | None, stage: Stage | None, entrypoint: Sequence[str]) -> list[Gate]:
    """What a command has to pass: its environment's check, then its step's setup and check. The first check brings up
    what the image starts by itself."""
    found: list[Gate] = []
    if check is not None:
        found.append(Gate(check, entrypoint))
    if stage is not None and stage.setup:
        found.append(SetupGate(stage.setup))
    if stage is not None and stage.health is not None:
        found.append(Gate(stage.health, () if check else entrypoint))
    return found
