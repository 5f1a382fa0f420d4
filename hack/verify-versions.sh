#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Checks that the programs of the control plane and ours are built from the same
# versions of the modules that both use. A module in two versions is compiled twice,
# and so is everything that imports it, which is most of Kubernetes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# modules DIR PACKAGE... prints the modules that packages of the module in DIR are built
# from, and where their source is.
modules() {
	(cd "$1" && go list -deps -f '{{with .Module}}{{.Path}} {{.Dir}}{{end}}' "${@:2}") | sort -u
}

controlplane=$(modules e2e/cmd/kube . sigs.k8s.io/cluster-api/core sigs.k8s.io/kwok/cmd/kwok)
ours=$( (modules . ./cmd/... && modules e2e ./cmd/devcluster) | sort -u)
different=$(join <(echo "$controlplane") <(echo "$ours") | awk '$2 != $3')
if [[ -n "$different" ]]; then
	printf 'give these modules one version in go.mod, e2e/go.mod and e2e/cmd/kube/go.mod:\n%s\n' "$different" >&2
	exit 1
fi
