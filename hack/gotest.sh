#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# gotest.sh NAME ARGUMENTS...: runs go test with ARGUMENTS in the current folder. It prints a
# line for each package and the output of tests that fail, and keeps all events and the time
# in .dev/test, for hack/test-report.sh.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
name=$1
shift
results=$root/.dev/test
mkdir -p "$results"
gotestsum=$(GOGC=400 go tool -modfile="$root/hack/tools/go.mod" -n gotestsum)
# The compilers collect garbage less often. Tests run with the collector as it is by default:
# a variable of the environment would be theirs too. go vet is part of the linter, and only
# debuggers need DWARF.
exec 3>&2
TIMEFORMAT='%R %U %S'
{
	time "$gotestsum" --format pkgname --hide-summary skipped --jsonfile "$results/$name.json" --raw-command -- \
		go test -json -vet=off -ldflags=-w -toolexec 'env GOGC=400' "$@" 2>&3
} 2>"$results/$name.time"
