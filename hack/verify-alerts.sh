#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Tests the rules of manifests/monitoring and manifests/marekvs/monitoring with promtool, of Debian's
# package prometheus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v promtool >/dev/null; then
	echo "promtool is missing: install Debian's package prometheus, as 'make debian-packages' does" >&2
	exit 1
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for manifests in manifests/monitoring manifests/marekvs/monitoring; do
	# The spec of a PrometheusRule is what promtool calls a file of rules.
	sed -n '/^spec:$/,$ {/^spec:$/d; s/^  //; p}' "$manifests/prometheus_rule.yaml" >"$dir/rules.yaml"
	cp "$manifests/prometheus_rule_test.yaml" "$dir"
	promtool check rules "$dir/rules.yaml"
	promtool test rules "$dir/prometheus_rule_test.yaml"
done
