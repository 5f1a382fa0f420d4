#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Runs the tests that need neither Docker nor QEMU: make test. With NSTANCE_TEST_FULL=RUN it runs
# everything of make test-full but the benchmarks, without what has passed in the run RUN. Every program is built once, before the
# tests. The unit tests compute, and the end-to-end tests and machines mostly wait: they run
# at the same time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
rm -rf .dev/test
mkdir -p .dev/test
failed=0

# Suites of end-to-end tests at the same time.
lanes=${NSTANCE_TEST_LANES:-3}
longest=(./operator ./faults ./autoscaler ./ondemand ./scale ./drains)
if [[ -n ${NSTANCE_TEST_FULL:-} ]]; then
	longest=(./procedures ./scale ./operator ./attackers ./autoscaler ./faults ./monitoring ./drains ./ondemand)
fi

programs() {
	local begin=$SECONDS s3=.dev/versitygw/versitygw
	# A build would change the time of a program that is up to date, and with it the tests'
	# inputs.
	if [[ ! -e $s3 || hack/versitygw/go.mod -nt $s3 || hack/versitygw/go.sum -nt $s3 ]]; then
		(cd hack/versitygw && GOGC=400 GOWORK=off go build -ldflags='-s -w' -o "$root/$s3" github.com/versity/versitygw/cmd/versitygw)
	fi
	(cd e2e && GOGC=400 go run ./cmd/suites) >.dev/test/flags
	echo "$((SECONDS - begin)) 0 0" >.dev/test/programs.time
}

unit() {
	local failed=0
	nice -n 5 hack/gotest.sh unit -timeout 60m ./... || failed=1
	(cd hack/tools && nice -n 5 "$root/hack/gotest.sh" tools ./image ./crdcompat) || failed=1
	(cd hack/supplychain && nice -n 5 "$root/hack/gotest.sh" supplychain ./...) || failed=1
	# Every package is compiled again for the race detector, and its tests are several times slower.
	# Races need no further seeds to be found.
	[[ -z ${NSTANCE_TEST_FULL:-} ]] || env -u NSTANCE_TEST_FULL nice -n 5 make --no-print-directory test-race || failed=1
	return "$failed"
}

end_to_end() {
	local packages
	export NSTANCE_E2E_RIGHTS=$rights
	# A tree without a history has no previous version to upgrade from.
	if ! git rev-parse --quiet --verify HEAD^ >/dev/null 2>&1; then
		echo 'NOT TESTED: e2e/helm and e2e/upgrade. This tree has no history.' >&2
		without='./helm ./upgrade'
	fi
	cd e2e
	# The tests on machines have targets of their own. The longest suites begin first.
	mapfile -t packages < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}.{{slice .ImportPath (len .Module.Path)}}{{end}}' ./... |
		grep -vxFf <(printf '%s\n' ./machines "${longest[@]}" ${without:-}))
	if [[ -z ${NSTANCE_TEST_FULL:-} ]]; then
		"$root/hack/gotest.sh" e2e -p "$lanes" -parallel 8 -timeout 40m "${flags[@]}" "${longest[@]}" "${packages[@]}"
		return
	fi
	"$root/hack/gotest.sh" e2e -p "$lanes" -parallel 8 -timeout 60m -skip '^TestManyPodsAtOnce$' \
		"${flags[@]}" "${longest[@]}" "${packages[@]}"
}

# The short resync period of the suites repairs what a handler has not seen. Two tests are about the resync.
without_resync() {
	export NSTANCE_E2E_RIGHTS=$rights
	cd e2e
	NSTANCE_TEST_NO_RESYNC=1 "$root/hack/gotest.sh" noresync -parallel 8 -timeout 40m \
		-skip '^(TestQuietWhenIdle|TestUnknownShard)$' "${flags[@]}" ./operator
}

# Tests that keep the whole machine busy, and what all tests together must have done.
last() {
	local failed=0
	export NSTANCE_E2E_RIGHTS=$rights
	cd e2e
	"$root/hack/gotest.sh" manypods -timeout 40m -run '^TestManyPodsAtOnce$' "${flags[@]}" ./ondemand || failed=1
	# All clusters together must have used every right of the operator.
	GOGC=400 go run ./cmd/rights "$rights" || failed=1
	return "$failed"
}

programs
mapfile -t flags <.dev/test/flags
rights=$root/e2e/.cache/rights
unit &
units=$!
trap 'kill "$units"' INT TERM
(end_to_end) || failed=1
if [[ -n ${NSTANCE_TEST_FULL:-} ]]; then
	# Machines mostly boot and wait, as do benchmarks of counts and memory.
	{
		others=0
		(without_resync) || others=1
		make --no-print-directory bench-suites SUITES='./marekvs ./agents ./autoscaler ./shardserver' || others=1
		exit "$others"
	} &
	others=$!
	make --no-print-directory test-machines test-moto || failed=1
	wait "$others" || failed=1
fi
wait "$units" || failed=1
if [[ -n ${NSTANCE_TEST_FULL:-} ]]; then
	(last) || failed=1
fi
hack/test-report.sh || failed=1
exit "$failed"
