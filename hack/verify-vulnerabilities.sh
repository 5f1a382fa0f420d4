#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# hack/verify-vulnerabilities.sh BINARY... checks binaries for known vulnerabilities in their modules
# and in the standard library of Go. It uses the public database of Go if that is reached, or else
# the copy in the version of golang.org/x/vulndb that hack/supplychain/go.mod names, which knows
# nothing newer. Without either it checks nothing, says so, and succeeds.
#
# Environment: GOVULNDB, the URL of the database (https://vuln.go.dev).
# hack/supplychain/accepted.txt has the ids that are accepted, with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=$PWD
tools=$root/hack/supplychain
public=${GOVULNDB:-https://vuln.go.dev}
cache=$root/.dev/vulndb

loud() {
	printf '\n==== verify-vulnerabilities: %s ====\n\n' "$*" >&2
}

# make_offline makes the database in $cache from the module, unless it has that version.
make_offline() {
	local version folder
	cd "$tools"
	version=$(go list -m -f '{{.Version}}' golang.org/x/vulndb) || return
	[ "$(cat "$cache/version" 2>/dev/null)" != "$version" ] || return 0
	go mod download golang.org/x/vulndb || return
	folder=$(go list -m -f '{{.Dir}}' golang.org/x/vulndb) || return
	rm -rf "$cache"
	mkdir -p "$cache"
	go tool indexdb -vulns "$folder/data/osv" -out "$cache" || return
	echo "$version" >"$cache/version"
}

database=$public
if [[ $public != file://* ]] && ! curl --silent --fail --max-time 10 --output /dev/null "$public/index/db.json"; then
	if ! (make_offline) >&2; then
		loud "NOTHING WAS CHECKED: neither $public nor the module golang.org/x/vulndb is reached"
		exit 0
	fi
	database=file://$cache
	loud "$public is not reached: only vulnerabilities are known that golang.org/x/vulndb $(cat "$cache/version") has"
fi

failed=0
for binary in "$@"; do
	[ -f "$binary" ] || continue # a folder of other binaries
	path=$(realpath "$binary")
	cd "$tools"
	go tool govulncheck -mode=binary -format json -db "$database" "$path" |
		go run ./vulnerabilities -binary "$(basename "$path")" -accepted accepted.txt || failed=1
	cd "$root"
done
exit "$failed"
