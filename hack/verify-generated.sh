#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Generates everything in a copy of the tree and compares, so that a check never
# changes the tree it checks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Always the same folder: Go reuses what it has compiled in it.
copy=$PWD/.dev/generated
rm -rf "$copy"
mkdir -p "$copy"
generated=(pkg/apis pkg/generated proto manifests/crd manifests/marekvs/crd docs/api.md docs/marekvs-api.md docs/benchmarks.md)
tar -c --exclude=./.git --exclude=./.dev --exclude=./bin --exclude=./e2e . | tar -x -C "$copy"
"$copy"/codegen.sh
for path in "${generated[@]}"; do
	if ! diff -Nru "$path" "$copy/$path"; then
		echo "generated code is out of date, run: make generate" >&2
		exit 1
	fi
done
