#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Checks the direction of imports: what a package must never depend on, however
# indirectly. Tests are free.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

module=nstance.dev/operator
failed=0

# never FROM PATTERN: no package of FROM depends on one that matches PATTERN.
never() {
	local found
	found=$(go list -f '{{join .Deps "\n"}}' "$1" | sort -u | grep -E "$2" || true)
	if [[ -n "$found" ]]; then
		echo "$1 must not depend on:" >&2
		sed 's/^/  /' <<<"$found" >&2
		failed=1
	fi
}

# The operator is written with plain client-go.
never ./cmd/nstance-operator '^sigs\.k8s\.io/controller-runtime(/|$)'
never ./cmd/nstance-operator "^$module/pkg/server(/|\$)"
# The server knows nothing of the operator or of its kinds.
never ./cmd/nstance-server "^$module/pkg/(operator|controller|shard|capi|apis|generated)(/|\$)"
# Pure rules import nothing of ours.
never ./pkg/distribute "^$module/"
never ./pkg/providerid "^$module/"
never ./pkg/identifier "^$module/"
never ./pkg/apis/... "^$module/pkg/(generated|capi|controller|operator|shard|server)(/|\$)"
never ./pkg/generated/... "^$module/pkg/(capi|controller|operator|shard|server)(/|\$)"
never ./pkg/capi "^$module/pkg/(controller|operator|shard|server)(/|\$)"
# The shard room speaks gRPC and knows no Kubernetes objects.
never ./pkg/shard/... "^$module/pkg/(apis|generated|capi|controller|operator|server)(/|\$)"
never ./pkg/shard/... '^k8s\.io/(api|client-go)(/|$)'
# The webhook decides from caches of Kubernetes alone.
never ./pkg/admission/... "^$module/pkg/(operator|server|shard/.*|controller/.*)(/|\$)"
# Controllers see the shards through interfaces of their own, and never each
# other.
never ./pkg/controller/... "^$module/pkg/(operator|server|shard/.*)(/|\$)"
for controller in pkg/controller/*/; do
	never "./$controller" "^$module/pkg/controller/"
done
exit $failed
