#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Runs the tests that need neither Docker nor QEMU: make test, and with NSTANCE_TEST_FULL=1 a
# part of make test-full. Every program is built once, before the tests. The unit tests
# compute and the end-to-end tests mostly wait: they run at the same time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
rm -rf .dev/test
mkdir -p .dev/test
failed=0

# Suites of end-to-end tests at the same time.
lanes=${NSTANCE_TEST_LANES:-3}
longest=(./operator ./faults ./autoscaler ./ondemand ./scale ./drains)

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
	local failed=0 fresh=()
	[[ -z ${NSTANCE_TEST_FULL:-} ]] || fresh=(-count=1)
	nice -n 5 hack/gotest.sh unit -timeout 60m "${fresh[@]}" ./... || failed=1
	(cd hack/tools && nice -n 5 "$root/hack/gotest.sh" tools ./image ./crdcompat) || failed=1
	(cd hack/supplychain && nice -n 5 "$root/hack/gotest.sh" supplychain ./...) || failed=1
	return "$failed"
}

end_to_end() {
	local flags packages
	mapfile -t flags <.dev/test/flags
	# A tree without a history has no previous version to upgrade from.
	if ! git rev-parse --quiet --verify HEAD^ >/dev/null 2>&1; then
		echo 'NOT TESTED: e2e/upgrade. This tree has no history.' >&2
		without=./upgrade
	fi
	cd e2e
	# The tests on machines have targets of their own. The longest suites begin first.
	mapfile -t packages < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}.{{slice .ImportPath (len .Module.Path)}}{{end}}' ./... |
		grep -vxFf <(printf '%s\n' ./machines "${longest[@]}" ${without:-}))
	export NSTANCE_E2E_RIGHTS=$PWD/.cache/rights
	if [[ -z ${NSTANCE_TEST_FULL:-} ]]; then
		"$root/hack/gotest.sh" e2e -p "$lanes" -parallel 8 -timeout 40m "${flags[@]}" "${longest[@]}" "${packages[@]}"
		return
	fi
	local failed=0
	"$root/hack/gotest.sh" e2e -count=1 -p "$lanes" -parallel 8 -timeout 60m -skip '^TestManyPodsAtOnce$' \
		"${flags[@]}" "${longest[@]}" "${packages[@]}" || failed=1
	# It keeps the whole machine busy.
	"$root/hack/gotest.sh" manypods -count=1 -timeout 40m -run '^TestManyPodsAtOnce$' "${flags[@]}" ./ondemand || failed=1
	# The short resync period of the suites repairs what a handler has not seen. These two tests
	# are about the resync.
	NSTANCE_TEST_NO_RESYNC=1 "$root/hack/gotest.sh" noresync -count=1 -parallel 8 -timeout 40m \
		-skip '^(TestQuietWhenIdle|TestUnknownShard)$' "${flags[@]}" ./operator || failed=1
	# All clusters together must have used every right of the operator.
	GOGC=400 go run ./cmd/rights "$NSTANCE_E2E_RIGHTS" || failed=1
	return "$failed"
}

programs
unit &
units=$!
trap 'kill "$units"' INT TERM
(end_to_end) || failed=1
wait "$units" || failed=1
hack/test-report.sh || failed=1
exit "$failed"
