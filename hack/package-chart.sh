#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# package-chart.sh CHART VERSION IMAGE DIR: writes DIR/CHART-VERSION.tgz, the Helm chart of
# manifests/helm/CHART for a release. IMAGE is where the image of the release is, with its digest.
# If it is empty, the chart has the name in values.yaml and the tag VERSION. The same files give
# the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
chart=$1 version=$2 image=$3 dir=$4

if [[ -n $image && ! $image =~ ^[a-z0-9][a-z0-9./:_-]*@sha256:[0-9a-f]{64}$ ]]; then
	echo "image $image of chart $chart: must be NAME@sha256:DIGEST, because a tag can be moved to another image" >&2
	exit 1
fi
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

# edit FILE EXPRESSION...: every expression of sed must change a line of the file.
edit() {
	local file=$1 before
	shift
	for expression; do
		before=$(<"$file")
		sed -i "$expression" "$file"
		if [[ $before == "$(<"$file")" ]]; then
			echo "$file: \"$expression\" changes nothing" >&2
			exit 1
		fi
	done
}

# The links to the manifests become files.
cp -rL "manifests/helm/$chart" "$temporary/$chart"
# The version of a chart has no v (https://helm.sh/docs/topics/charts/#charts-and-versioning).
edit "$temporary/$chart/Chart.yaml" "s|^version: .*|version: ${version#v}|" "s|^appVersion: .*|appVersion: $version|"
if [[ -n $image ]]; then
	edit "$temporary/$chart/values.yaml" "s|^  repository: .*|  repository: ${image%@*}|" "s|^  digest: .*|  digest: ${image#*@}|"
fi
mkdir -p "$dir"
archive=$dir/$chart-${version#v}.tgz
tar --sort=name --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' --mtime=@0 -C "$temporary" -c "$chart" | gzip -n >"$archive"
echo "$archive"
