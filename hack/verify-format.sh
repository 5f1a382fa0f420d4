#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Checks that Go files are formatted and carry the license header.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.go')
unformatted=$(gofmt -l "${files[@]}")
if [[ -n "$unformatted" ]]; then
	printf 'not formatted, run gofmt -w:\n%s\n' "$unformatted" >&2
	exit 1
fi
# Code generated from .proto files carries the header of its source.
unlicensed=$(grep -L 'SPDX-License-Identifier: Apache-2.0' "${files[@]}" || true)
if [[ -n "$unlicensed" ]]; then
	printf 'without the header of hack/boilerplate.go.txt:\n%s\n' "$unlicensed" >&2
	exit 1
fi
