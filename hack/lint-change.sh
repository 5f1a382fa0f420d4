#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Runs the linter on the packages whose files differ from origin/main, or from HEAD without
# such a branch. make lint runs it on everything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)
changed=$({ git diff --name-only --diff-filter=d "$base" -- '*.go'; git ls-files --others --exclude-standard '*.go'; } | xargs -r dirname | sort -u)

# lint MODULE FOLDER...: the folders are relative to the module.
lint() {
	(($# > 1)) || return 0
	(cd "$1" && go tool -modfile="$root/hack/tools/go.mod" golangci-lint run --config "$root/.golangci.yml" "${@:2}")
}

mapfile -t own < <(grep -vE '^(e2e|pkg/generated|hack/(tools|discovery|fakegcs|versitygw))(/|$)' <<<"$changed" | sed 's|^|./|' | grep -v '^./$')
mapfile -t ends < <(sed -n 's|^e2e/|./|p' <<<"$changed" | grep -v '^./cmd/kube')
lint . "${own[@]}"
if grep -q '^pkg/apis/' <<<"$changed"; then
	go tool -modfile=hack/tools/go.mod golangci-lint-kube-api-linter run --config .golangci-kal.yml ./pkg/apis/...
fi
lint e2e "${ends[@]}"
