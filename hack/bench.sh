#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Runs the benchmarks whose names match a pattern, all without one, at full size, and
# writes their figures into docs/benchmarks.md. A benchmark that fails does not stop the
# others; it keeps its figures.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
pattern=${1:-.}
failed=0
matched=0

# bench FOLDER FLAGS...: only packages that have a matching benchmark, because every
# other package of e2e would start its cluster in vain. Go runs one at a time. -v prints
# a result in one line, whatever the benchmark prints before.
bench() {
	local module packages
	module=$(cd "$1" && go list -m)
	mapfile -t packages < <(cd "$1" && grep -rlE --include='*_test.go' --exclude-dir=e2e "^func Benchmark\w*(${pattern%%/*})" . |
		xargs -r dirname | sort -u | sed "s|^\.|$module|")
	[[ ${#packages[@]} -gt 0 ]] || return 0
	matched=1
	(cd "$1" && NSTANCE_TEST_FULL=1 go test -v -run '^$' -bench "$pattern" "${@:2}" "${packages[@]}") |
		go run ./hack/benchtables -record || failed=1
}

bench . -count 5
bench e2e -benchtime 1x -timeout 40m
if ((!matched)); then
	echo "no benchmark matches $pattern" >&2
	exit 1
fi
go run ./hack/benchtables || failed=1
exit $failed
