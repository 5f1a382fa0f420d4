#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# gotest.sh NAME ARGUMENTS...: runs go test with ARGUMENTS in the current folder. It prints a
# line for each package and the output of tests that fail, and keeps all events and the time
# in .dev/test, for hack/test-report.sh.
set -euo pipefail

# events ARGUMENTS... prints the events of go test. A benchmark that ends well has no last event:
# gotestsum would report it as failed.
if [[ ${1:-} == events ]]; then
	shift
	go test -json -vet=off -ldflags=-w -toolexec 'env GOGC=400' "$@" | awk '
		match($0, /"Package":"[^"]*","Test":"Benchmark[^"]*"/) {
			benchmark = substr($0, RSTART, RLENGTH)
			if (/"Action":"(fail|skip)"/) delete running[benchmark]; else running[benchmark]
		}
		match($0, /"Action":"pass","Package":"[^"]*"/) && !/"Test":/ {
			package = substr($0, RSTART + 16, RLENGTH - 16)
			for (benchmark in running) if (index(benchmark, package) == 1) {
				printf "{\"Action\":\"pass\",%s,\"Elapsed\":0}\n", benchmark
				delete running[benchmark]
			}
		}
		{ print; fflush() }'
	exit
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
name=$1
shift
results=$root/.dev/test
mkdir -p "$results"
# make test-full goes on with a run: a step that has passed in it is kept while nothing has changed
# but the tests of other packages.
kept=
if [[ -n ${NSTANCE_TEST_KEEP:-} ]] && tree=$(git ls-tree -r --full-tree HEAD) && [[ -z $(git status --porcelain) ]]; then
	# Packages begin with a dot; the dot alone is a pattern, such as the value of -bench.
	packages=()
	for argument; do
		[[ $argument != ./* ]] || packages+=("${argument%/...}")
	done
	own=$(git ls-tree -r HEAD -- "${packages[@]}")
	kept=$NSTANCE_TEST_KEEP/$({ grep -v '_test\.go$' <<<"$tree"; echo "$own"; } | sha256sum | cut -c 1-16)
	if [[ -e $kept/$name.time ]]; then
		echo "✓  $name has passed in this run"
		cp "$kept/$name".* "$results"
		exit
	fi
fi
gotestsum=$(GOGC=400 go tool -modfile="$root/hack/tools/go.mod" -n gotestsum)
# The compilers collect garbage less often. Tests run with the collector as it is by default:
# a variable of the environment would be theirs too. go vet is part of the linter, and only
# debuggers need DWARF.
exec 3>&2
TIMEFORMAT='%R %U %S'
{
	time "$gotestsum" --format pkgname --hide-summary skipped --jsonfile "$results/$name.json" --raw-command -- \
		"${BASH_SOURCE[0]}" events "$@" 2>&3
} 2>"$results/$name.time"
if [[ -n $kept ]]; then
	mkdir -p "$kept"
	cp "$results/$name".{json,time} "$kept"
fi
