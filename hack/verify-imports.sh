#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Checks the direction of imports: what a package must never depend on, however
# indirectly. Tests are free. The folders named internal need no rule: what is in
# pkg/operator/internal cannot be imported from outside of pkg/operator, and the same is
# true of the server and of the agent.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

module=nstance.dev/operator
failed=0

# never FROM PATTERN: no package of FROM depends on one that matches PATTERN.
# Packages for tests, whose names end in "test", may depend on anything.
never() {
	local packages found
	packages=$(go list "$1" | grep -v 'test$' || true)
	[[ -n "$packages" ]] || { echo "no package matches $1" >&2; failed=1; return; }
	# shellcheck disable=SC2086 # one argument a package
	found=$(go list -f '{{join .Deps "\n"}}' $packages | sort -u | grep -E "$2" || true)
	if [[ -n "$found" ]]; then
		echo "$1 must not depend on:" >&2
		sed 's/^/  /' <<<"$found" >&2
		failed=1
	fi
}

# Programs do not contain each other.
never ./pkg/operator/... "^$module/pkg/(server|agent|admin|plugin|marekvs)(/|\$)"
never ./pkg/server/... "^$module/pkg/(operator|agent|admin|plugin|marekvs|controller|apis|generated)(/|\$)"
never ./pkg/admin/... "^$module/pkg/(operator|agent|plugin|marekvs|controller|apis|generated)(/|\$)"
never ./pkg/agent/... "^$module/pkg/(operator|server|admin|plugin|marekvs|controller|apis|generated)(/|\$)"
never ./pkg/plugin/... "^$module/(proto|pkg/(operator|server|agent|admin|marekvs|controller))(/|\$)"
never ./pkg/marekvs/... "^$module/(proto|pkg/(operator|server|agent|admin|plugin))(/|\$)"
# What they share knows none of them, and what all share knows no operator.
never ./pkg/controller/... "^$module/(proto|pkg/(operator|server|agent|admin|plugin|marekvs|apis|generated))(/|\$)"
never ./pkg/base/... "^$module/(proto|pkg/(operator|server|agent|admin|plugin|marekvs|controller|generated))(/|\$)"
never ./pkg/apis/... "^$module/pkg/(operator|server|controller|generated|base/(audit|capi))(/|\$)"
never ./pkg/generated/... "^$module/pkg/(operator|server|controller|base/(audit|capi))(/|\$)"

# Only tests end tests.
never ./cmd/... '^github\.com/stretchr/testify(/|$)'
# The operators are written with plain client-go, and marekvs knows no Cluster API.
never ./cmd/nstance-operator '^sigs\.k8s\.io/controller-runtime(/|$)'
never ./cmd/marekvs-operator '^sigs\.k8s\.io/(controller-runtime|cluster-api)(/|$)'
# The agent is small, and knows no Kubernetes.
never ./cmd/nstance-agent '^(k8s\.io/(api|client-go|component-base|utils)|sigs\.k8s\.io/)'
# The clients of the shards use gRPC and no Kubernetes objects.
never ./pkg/operator/shard/... '^k8s\.io/(api|client-go)(/|$)'
never ./pkg/operator/shard/... "^$module/pkg/(apis|generated|base/capi|operator/internal)(/|\$)"
# Pure functions.
never ./pkg/base/distribute "^$module/"
never ./pkg/base/rotation "^$module/"
never ./pkg/base/remediation "^$module/"
never ./pkg/marekvs/scale '^k8s\.io/client-go(/|$)'
never ./pkg/base/providerid "^$module/"
never ./pkg/base/identifier "^$module/"
# Output of the plugin does not depend on the way in which the objects are read.
for pure in objects status why plan dashboard; do
	never "./pkg/plugin/$pure" "^$module/pkg/plugin/(gather|command)\$"
done
# Controllers use the shards through interfaces, and never import each other. The webhook
# and the metrics of the state decide from caches of Kubernetes alone.
internal=pkg/operator/internal
never ./$internal/... "^$module/pkg/operator(/shard/.*)?\$"
never ./$internal/controllers "^$module/$internal/"
never ./$internal/admission/... "^$module/$internal/controllers/"
never ./$internal/statemetrics "^$module/$internal/controllers/"
for controller in "$internal"/controllers/*/; do
	[[ $controller == */controllertest/ ]] && continue
	never "./$controller" "^$module/$internal/controllers/"
done
# An instance provider reads its options and does not import the configuration.
# Only the registry imports providers. Test packages may use their test helpers.
for provider in pkg/server/provider/*/; do
	name=$(basename "$provider")
	[[ $name == registry || $name == providertest ]] && continue
	never "./$provider" "^$module/pkg/server/(config|groups|provision|internal/reconciler|provider/registry)$"
	# What several providers use.
	[[ $name == cloud || $name == nocloud ]] && continue
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
