#!/bin/sh
# grade.py runs the hidden tests as another user and writes the reward itself.
exec python3 -I -B /tests/grade.py --app /app --out /logs/verifier --user 65534
