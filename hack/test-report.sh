#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# test-report.sh prints where the time of the tests in .dev/test went, and which were skipped.
# test-report.sh complete fails if a test was skipped, unless NSTANCE_TEST_MAY_SKIP, a regular
# expression, matches "PACKAGE TEST". test-report.sh packages prints the seconds of each package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
gotestsum=$(go tool -modfile=hack/tools/go.mod -n gotestsum)
events=(.dev/test/*.json)

# packages prints the seconds and the names of all packages.
packages() {
	grep -hE '"Action":"(pass|fail)"' "${events[@]}" | grep -v '"Test":' |
		sed -E 's|.*"Package":"nstance.dev/operator/([^"]*)".*"Elapsed":([0-9.]+).*|\2 \1|' | sort -rn
}
if [[ ${1:-} == packages ]]; then
	packages
	exit
fi

echo 'Steps: seconds, and seconds of all processors'
for file in .dev/test/*.time; do
	awk -v name="$(basename "$file" .time)" '{printf "%7d s %7d s  %s\n", $1, $2 + $3, name}' "$file"
done
echo 'The slowest tests:'
cat "${events[@]}" | "$gotestsum" tool slowest --jsonfile - --num 40 || true
echo 'The slowest packages:'
# head would end before sort has written everything, and sort would fail.
packages | awk 'NR <= 20 {printf "%7d s  %s\n", $1, $2}'

# tests ACTION prints the tests with an event, as "PACKAGE TEST".
tests() {
	grep -h "\"Action\":\"$1\"" "${events[@]}" | sed -nE 's|.*"Package":"nstance.dev/operator/([^"]*)","Test":"([^"]*)".*|\1 \2|p' | sort -u
}
# A test on machines is skipped by one step and run by another one.
skipped=$(comm -23 <(tests skip) <(tests pass))
if [[ -n $skipped ]]; then
	printf 'Skipped:\n%s\n' "$skipped"
fi
# The end of a log is what is read first.
while read -r package test; do
	printf 'FAILED: %s %s\n' "$package" "$test"
	grep -hF "\"Package\":\"nstance.dev/operator/$package\",\"Test\":\"$test\",\"Output\":" "${events[@]}" | tail -n 12 |
		sed -E 's|.*"Output":"(.*)"[^"]*("OutputType":"[a-z]+")?\}$|    \1|; s|\\n$||; s|\\t|    |g; s|\\"|"|g'
done < <(tests fail)
unexpected=$(grep -vE "${NSTANCE_TEST_MAY_SKIP:-^$}" <<<"$skipped" | grep . || true)
if [[ ${1:-} == complete && -n $unexpected ]]; then
	printf 'Skipped although everything was to be tested:\n%s\n' "$unexpected" >&2
	exit 1
fi
