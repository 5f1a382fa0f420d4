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
# Packages for tests, whose names end in "test", may depend on anything.
never() {
	local packages found
	packages=$(go list "$1" | grep -v 'test$' || true)
	[[ -n "$packages" ]] || return 0
	# shellcheck disable=SC2086 # one argument a package
	found=$(go list -f '{{join .Deps "\n"}}' $packages | sort -u | grep -E "$2" || true)
	if [[ -n "$found" ]]; then
		echo "$1 must not depend on:" >&2
		sed 's/^/  /' <<<"$found" >&2
		failed=1
	fi
}

# Only tests end tests.
never ./cmd/... '^github\.com/stretchr/testify(/|$)'
# The operator is written with plain client-go.
never ./cmd/nstance-operator '^sigs\.k8s\.io/controller-runtime(/|$)'
never ./cmd/nstance-operator "^$module/pkg/server(/|\$)"
# The marekvs operator shares the machinery of operators with it, and nothing of Nstance.
never ./cmd/marekvs-operator '^sigs\.k8s\.io/(controller-runtime|cluster-api)(/|$)'
never ./cmd/marekvs-operator "^$module/(proto|pkg/(server|agent|operator|nstance|shard|capi|admission|controller/.*))(/|\$)"
never ./pkg/marekvs/scale '^k8s\.io/client-go(/|$)'
never ./cmd/nstance-operator "^$module/pkg/marekvs(/|\$)"
# The server does not depend on the operator or on its kinds.
never ./cmd/nstance-server "^$module/pkg/(operator|controller|shard|capi|apis|generated)(/|\$)"
# The agent is small, and knows no Kubernetes.
never ./cmd/nstance-agent '^(k8s\.io/(api|client-go|component-base|utils)|sigs\.k8s\.io/)'
never ./cmd/nstance-agent "^$module/pkg/(server|operator|controller|shard|capi|apis|generated)(/|\$)"
# The plugin of kubectl uses objects only, and what it shows does not depend on how they
# are read.
never ./pkg/plugin/... "^$module/(proto|pkg/(operator|server|agent|shard|controller|nstance|admission)(/|\$))"
for pure in objects drains status why dashboard; do
	never "./pkg/plugin/$pure" "^$module/pkg/plugin/(gather|command)\$"
done
# Packages of pure functions import nothing of this module.
never ./pkg/distribute "^$module/"
never ./pkg/providerid "^$module/"
never ./pkg/identifier "^$module/"
never ./pkg/apis/... "^$module/pkg/(generated|capi|controller|operator|shard|server)(/|\$)"
never ./pkg/generated/... "^$module/pkg/(capi|controller|operator|shard|server)(/|\$)"
never ./pkg/capi "^$module/pkg/(controller|operator|shard|server)(/|\$)"
# The shard packages use gRPC and no Kubernetes objects.
never ./pkg/shard/... "^$module/pkg/(apis|generated|capi|controller|operator|server)(/|\$)"
never ./pkg/shard/... '^k8s\.io/(api|client-go)(/|$)'
# The webhook decides from caches of Kubernetes alone.
never ./pkg/admission/... "^$module/pkg/(operator|server|shard/.*|controller/.*)(/|\$)"
# Metrics of the state are read from caches alone.
never ./pkg/statemetrics "^$module/pkg/(operator|server|shard/.*|controller/.*)(/|\$)"
# What every operator shares knows no kind and no shard.
never ./pkg/controller "^$module/"
never ./pkg/election "^$module/"
never ./pkg/serving "^$module/"
# Controllers use the shards through interfaces, and never import each other.
never ./pkg/nstance "^$module/pkg/(operator|server|shard/.*|controller/.*)(/|\$)"
never ./pkg/controller/... "^$module/pkg/(operator|server|shard/.*)(/|\$)"
for controller in pkg/controller/*/; do
	never "./$controller" "^$module/pkg/controller/"
done
# An instance provider reads its options and does not import the configuration.
# Only the registry imports providers. Test packages may use their test helpers.
for provider in pkg/server/provider/*/; do
	name=$(basename "$provider")
	[[ $name == registry || $name == providertest ]] && continue
	never "./$provider" "^$module/pkg/server/(config|groups|provision|reconciler|provider/registry)$"
	# What several providers use.
	[[ $name == machines || $name == nocloud || $name == iso9660 ]] && continue
	found=$(go list -f '{{$path := .ImportPath}}{{range .Imports}}{{$path}} {{.}}{{"\n"}}{{end}}' ./... |
		grep -E " $module/pkg/server/provider/$name(/|\$)" |
		grep -vE "^$module/pkg/server/(provider/$name(/[a-z0-9]+)?|provider/registry|servertest) " || true)
	if [[ -n "$found" ]]; then
		echo "only pkg/server/provider/registry may import provider $name:" >&2
		sed 's/^/  /' <<<"$found" >&2
		failed=1
	fi
done
# The SDK of AWS would take a third of the time until a dev cluster is built.
GOFLAGS="${GOFLAGS:-} -tags=noaws" never ./cmd/nstance-server '^github\.com/aws/'
cd e2e
never ./cmd/devcluster '^github\.com/aws/'
# It is built by a program that compiles in seconds.
never ./cmd/devbuild '^(([a-z]+\.)*k8s\.io|([a-z]+\.)*golang\.org|github\.com)/'
exit $failed
