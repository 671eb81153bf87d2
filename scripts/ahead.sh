#!/usr/bin/env bash
# Builds what later stages of `make test` need, with the processors that nobody else wants (SCHED_IDLE): most tests wait for
# events, and processors with them. Ends with the process MAKER; target/ahead.log has what was said.
# Usage: scripts/ahead.sh MAKER
set -euo pipefail
cd "$(dirname "$0")/.."

maker=$1
mkdir -p target
exec >target/ahead.log 2>&1 </dev/null
# Later stages wait for this.
exec 9>target/ahead
flock 9
chrt --idle --pid 0 $BASHPID

# What does not build is told by the stage that needs it.
# A group of its own, to be ended as a whole, and no session: sessions share processors by halves whatever their policy (autogroups).
set -m
make --no-print-directory ahead &
set +m
builds=$!
trap 'kill -- -$builds 2>/dev/null || true' EXIT
while kill -0 "$maker" 2>/dev/null && kill -0 "$builds" 2>/dev/null; do
    sleep 1
done
