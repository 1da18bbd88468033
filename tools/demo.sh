#!/bin/sh
# The whole circle on one machine, from nothing: `make demo` runs this. Safe to run again: what is done is not repeated.
set -eu
lego="$1"
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
# This policy is too small for more threads than one to pay.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
started=$(date +%s)

say "1/6  Check the machine, and the 24 basic tasks: nothing done must fail, the solution must pass, twice"
"$lego" check -c configs/basics.yaml
"$lego" verify --oracle -c configs/basics.yaml

say "2/6  mini-swe-agent, unmodified, plays three solutions"
"$lego" rollout -c configs/mini.yaml
"$lego" verify -c configs/mini.yaml

say "3/6  Build the images of the learning run; make a tiny policy and teach it the protocol from demonstrations"
"$lego" build-images -c configs/demo.yaml
"$lego" sft -c configs/demo.yaml

say "4/6  Evaluate on held-out tasks, learn from rewards for twelve rounds, evaluate again"
"$lego" loop -c configs/demo.yaml

say "5/6  One trial of the last evaluation"
"$lego" show last -c configs/demo.yaml

say "6/6  What happened"
"$lego" status -c configs/mini.yaml
"$lego" report -c configs/demo.yaml
"$lego" status -c configs/demo.yaml

cat <<END

The circle closed in $(( ($(date +%s) - started) / 60 )) min $(( ($(date +%s) - started) % 60 )) s.
  runs/demo/report.html                the learning run on one page
  runs/demo/run.db                     every trial, token, reward and weight of it, in one SQLite file
  lego monitor -c configs/demo.yaml    walk through it in the terminal
  lego show N -c configs/demo.yaml     why trial N was rewarded as it was
  lego try comparisons-2-0000 -c configs/demo.yaml     watch the policy work
Does it learn? This was one short run; docs/learn.md holds longer ones, with other seeds and a control.
Next: \`lego init\` writes a config for your own model, tasks and harness.
END
