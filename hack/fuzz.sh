#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# hack/fuzz.sh verify checks that the table of CONTRIBUTING.md lists exactly the fuzz targets that
# exist. hack/fuzz.sh run TIME runs each of them for that time, such as 10m, one after another.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# targets prints a line "PACKAGE TARGET" for each fuzz target.
targets() {
	git grep --untracked -oE --no-color '^func Fuzz\w+' -- 'pkg/**_test.go' |
		sed -E 's|^(.*)/[^/]*:func (Fuzz\w+)$|\1 \2|' | sort
}

case ${1:-} in
verify)
	listed=$(sed -nE 's/^\|.*\| `(pkg[^`]*)` \| `(Fuzz.*)` \|$/\1 \2/p' CONTRIBUTING.md | sed -E 's/`, `/\n/g' |
		awk '/ / {package = $1; print; next} {print package, $1}' | sort)
	if ! diff <(targets) <(echo "$listed"); then
		echo "the table of fuzz targets in CONTRIBUTING.md must list exactly those that exist (<)" >&2
		exit 1
	fi
	;;
run)
	while read -r package target; do
		echo "$package $target"
		# By default the engine shortens each new input for up to a minute, and tries none meanwhile.
		go test -run '^$' -fuzz "^$target\$" -fuzztime "${2:?the time for each target, such as 10m}" -fuzzminimizetime 10x "./$package"
	done < <(targets)
	;;
*)
	echo "usage: hack/fuzz.sh verify | run TIME" >&2
	exit 2
	;;
esac
