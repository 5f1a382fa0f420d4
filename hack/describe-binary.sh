#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# hack/describe-binary.sh BINARY VERSION LICENSES SBOM writes what is distributed with a binary: the
# folder LICENSES with the license of this project and those of the modules in the binary, and the
# file SBOM, its bill of materials in the format CycloneDX.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
binary=$(realpath "$1") version=$2 licenses=$3 sbom=$(realpath -m "$4")

mkdir -p "$licenses" "$(dirname "$sbom")"
cp "$root/LICENSE" "$licenses"
notices=$(realpath "$licenses")/THIRD_PARTY_NOTICES
cd "$root/hack/supplychain"
go run ./notices -binary "$binary" >"$notices"
# A serial number and a time would differ in each run.
go tool cyclonedx-gomod bin -json -std -noserial -notimestamp -version "$version" -output "$sbom" "$binary"
