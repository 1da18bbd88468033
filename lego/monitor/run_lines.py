"""The run's own page, and the page of keys, as lines."""

from __future__ import annotations

import json
import time

from lego.monitor.lines import Line
from lego.plain import neutral, one_line
from lego.report.change import change, told
from lego.report.curves import config_of
from lego.rundb import catalogue, meta, training, views
from lego.rundb.signatures import look
from lego.rundb.store import Store

HELP = """\
Everywhere
  arrows, j k, page up and down, home, end    move
  enter    open            /    search          esc, q    back
  ?        these keys      q on the first screen quits
First screen: rounds on the left, trials of the chosen round on the right
  tab      from rounds to trials and back       [ ]   older and newer round
  f        filter by state                      a     trials of all rounds
  /        part of a task, harness, ending or reason; a number opens a trial
  esc      show all again
  g        task grid       c    curves          i     the run: config, …
  A round: ▶ is open, ✓ closed, done in percent, slvd the fraction solved.
  A trial: s its sample in the group, trn its calls, tok the tokens it
  sampled, rwd its reward. The line below the list says why in full.
  Solved means reward 1 without a tamper finding.
A trial
  [ ]      previous and next turn or section    t     thinking on and off
  f        long messages whole or folded        l     harness and test output
  n N      next and previous match of a search
Task grid: a row a task, a column a round
  t        train, eval or demo rounds           [ ]   older and newer rounds
  2/4 is 2 of 4 graded trials solved; … is more to come
  enter    the trials of that cell
Curves: a dot is a recorded point, a bar its 95 % interval; nothing is drawn between points
  enter, v the numbers
Nothing here changes the run.
"""


def run_lines(store: Store) -> list[Line]:
    out = [Line("── what looks wrong ──", "title", mark=True)]
    wrong = look(store)
    out += [Line(f"! {one_line(text)}", "warn") for text in wrong] or [Line("nothing is recognised as wrong", "good")]
    if found := change(store):
        out += [Line("── held out ──", "title", mark=True), Line(one_line(told(found)))]
    out.append(Line("── events ──", "title", mark=True))
    events = meta.events(store, 200)
    out += [Line(one_line(f"{_at(event['at'])}  {event['kind']}: {event['text']}")) for event in events]
    out += [] if events else [Line("none", "soft")]
    out.append(Line("── steps ──", "title", mark=True))
    for step in reversed(training.steps(store)[-200:]):
        to = f"-> policy {step['policy_to']}" if step["policy_to"] is not None else step["reason"]
        out.append(Line(one_line(f"{step['step']:>4}  {step['kind']} {step['status']}  {to}")))
        if step["status"] == "refused":
            out += [Line(neutral(training.gap_words(gap)), margin="      ") for gap in step["worst"][:5]]
    out.append(Line("── policies ──", "title", mark=True))
    for policy in reversed(catalogue.policies(store)[-200:]):
        gone = "  (removed)" if policy["removed_at"] is not None else ""
        text = f"{policy['version']:>4}  by {policy['made_by']} {_at(policy['at'])}  {policy['path']}{gone}"
        out.append(Line(one_line(text)))
    out.append(Line("── images ──", "title", mark=True))
    for image in catalogue.images(store):
        failed = f"  {image['reason']} ({image['log_path']})" if image["status"] == "failed" else ""
        out.append(Line(one_line(f"{image['status']:<7} {image['kind']} {image['name']}{failed}")))
    out.append(Line("── made with ──", "title", mark=True))
    out += [Line(one_line(f"{name} {value}")) for name, value in views.provenance(store).items()]
    out.append(Line("── config ──", "title", mark=True))
    return out + [
        Line(neutral(f"{key} = {json.dumps(value, ensure_ascii=False)}")) for key, value in config_of(store).items()
    ]


def _at(seconds: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(seconds))
