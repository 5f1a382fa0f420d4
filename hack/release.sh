#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# release.sh PART...: writes parts of the release VERSION to the folder RELEASE_DIR.
#
#   programs   programs/VERSION/NAME_OS_ARCH.tar.gz with licenses, their bills of materials, and the
#              manifest of krew, whose archives are at RELEASE_URL
#   plugin     only the archives of the plugin of kubectl, and the manifest of krew
#   images     images/VERSION/NAME, OCI layouts with an image for amd64 and for arm64, and the file
#              images/VERSION/digests
#   starts     writes nothing: starts the program of each image, for another architecture with Debian's
#              qemu-user-static if it is installed
#   manifests  infrastructure-nstance/VERSION for clusterctl, charts, and manifests/VERSION. They name
#              the images in REGISTRY by their digests, or without REGISTRY by the tags of "make image".
#              The alerts have links to the documents at DOCS_URL, or without DOCS_URL their paths
#   checksums  SHA256SUMS of all files of the version but the images, whose names are digests
#   signature  SHA256SUMS.sig, the signature of SHA256SUMS with the key in the file SIGNING_KEY. Without it
#              nothing is signed
#   push       pushes images and charts to REGISTRY, where no tag may exist with another digest, and with
#              SIGNING_KEY their signatures
#
# The same commit gives the same bytes, in any folder, whatever "go env" says. RELEASE_PROGRAMS are the
# programs with an image: all if it is empty.
set -euo pipefail
shopt -s inherit_errexit nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

version=${VERSION:?}
release=${RELEASE_DIR:?}
registry=${REGISTRY:-}
docs=${DOCS_URL:-}
key=${SIGNING_KEY:+$(realpath -e "$SIGNING_KEY")}
if [[ ! $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]]; then
	echo "VERSION=$version: must be a semantic version with a v, such as v0.1.0" >&2
	exit 1
fi
if [[ -n $registry && ! $registry =~ ^[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*$ ]]; then
	echo "REGISTRY=$registry: must be a host with an optional port and path, such as registry.example.com/nstance" >&2
	exit 1
fi
if [[ -n $docs && ! $docs =~ ^https?://[A-Za-z0-9._~:/%@+-]*[A-Za-z0-9._~:%@+-]$ ]]; then
	echo "DOCS_URL=$docs: must be the URL of the folder docs without a slash at its end, such as https://example.com/nstance/docs" >&2
	exit 1
fi
# A tree with changes is no commit.
revision=$(git describe --always --abbrev=40 --exclude='*' --dirty 2>/dev/null || true)
ldflags="-s -w -X github.com/prometheus/common/version.Version=$version -X github.com/prometheus/common/version.Revision=$revision"

read -ra images <<<"${RELEASE_PROGRAMS:-nstance-operator nstance-server nstance-admin nstance-agent kubectl-nstance marekvs-operator}"
architectures=(amd64 arm64)
# Names of the architectures in the names of emulators.
declare -A machines=([amd64]=x86_64 [arm64]=aarch64)
# Programs that run outside of a cluster, and where.
machine_programs=(nstance-agent nstance-server)
client_programs=(kubectl-nstance nstance-admin)
# Bases that are applied as they are.
bases=(crd demo external marekvs marekvs/monitoring monitoring operator uninstall workload)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# binary NAME OS ARCH: builds a program and what is distributed with it, once, into the folder that it
# prints.
binary() {
	local name=$1 os=$2 arch=$3 folder=$work/$1/$2_$3
	if [[ ! -e $folder ]]; then
		GOFLAGS='' GOOS=$os GOARCH=$arch CGO_ENABLED=0 go build -trimpath -buildvcs=false -gcflags=all=-dwarf=false \
			-ldflags="$ldflags" -o "$folder/$name" "./cmd/$name" >&2
		hack/describe-binary.sh "$folder/$name" "$version" "$folder/licenses" "$folder/sbom.cdx.json" >&2
	fi
	echo "$folder"
}

# image COMMAND ARGUMENTS: runs the tool for images.
image() {
	(cd hack/tools && go run ./image "$@")
}

# archives NAME...: writes the archives of programs.
archives() {
	local name os arch folder archive output=$release/programs/$version
	mkdir -p "$output"
	for name; do
		# The archives of other programs stay: a release has them too.
		rm -f "$output/${name}"_*
		for os in linux darwin; do
			if [[ $os == darwin && " ${machine_programs[*]} " == *" $name "* ]]; then
				continue
			fi
			for arch in "${architectures[@]}"; do
				folder=$(binary "$name" "$os" "$arch")
				archive=$output/${name}_${os}_$arch.tar.gz
				tar --sort=name --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' --mtime=@0 \
					-C "$folder" -c "$name" -C licenses LICENSE THIRD_PARTY_NOTICES | gzip -n >"$archive"
				cp "$folder/sbom.cdx.json" "$output/${name}_${os}_$arch.cdx.json"
			done
		done
	done
	sed -e "s|VERSION|$version|; s|URL/|${RELEASE_URL:-https://example.com/nstance}/|" manifests/krew/nstance.yaml >"$output/nstance.yaml"
	for archive in "$output"/kubectl-nstance_*.tar.gz; do
		name=${archive##*/kubectl-nstance_} name=${name%.tar.gz}
		sed -i "s|SHA256_${name^^}|$(sha256sum "$archive" | cut -d' ' -f1)|" "$output/nstance.yaml"
	done
	if grep -n SHA256_ "$output/nstance.yaml" >&2; then
		echo "$output/nstance.yaml has an archive that was not built" >&2
		exit 1
	fi
	echo "$output"
}

plugin() {
	archives kubectl-nstance
}

programs() {
	archives "${client_programs[@]}" "${machine_programs[@]}"
}

images() {
	local name arch folder digest output=$release/images/$version
	rm -rf "$output"
	mkdir -p "$output"
	for name in "${images[@]}"; do
		local folders=()
		for arch in "${architectures[@]}"; do
			folder=$(binary "$name" linux "$arch")
			folders+=("$arch=$folder")
		done
		digest=$(image layout -name "$name" -version "$version" -revision "$revision" -output "$(realpath "$output")/$name" "${folders[@]}")
		echo "$name $digest" >>"$output/digests"
	done
	cat "$output/digests"
}

starts() {
	local name arch folder printed host emulator
	host=$(go env GOHOSTARCH)
	for arch in "${architectures[@]}"; do
		emulator=()
		if [[ $arch != "$host" ]]; then
			emulator=("qemu-${machines[$arch]}-static")
			if ! command -v "${emulator[0]}" >/dev/null; then
				echo "the programs for $arch were not started: ${emulator[0]} is not installed" >&2
				continue
			fi
		fi
		for name in "${images[@]}"; do
			folder=$(binary "$name" linux "$arch")
			printed=$("${emulator[@]}" "$folder/$name" --version)
			if [[ $printed != "$name, version $version "*" linux/$arch)" ]]; then
				echo "$name for $arch prints \"$printed\" for --version" >&2
				exit 1
			fi
		done
	done
}

# reference NAME: prints the name of an image for manifests.
reference() {
	local name=$1 digests=$release/images/$version/digests digest
	if [[ -z $registry ]]; then
		echo "docker.io/library/$name:$version"
		return
	fi
	digest=$([[ ! -e $digests ]] || awk -v name="$name" '$1 == name {print $2}' "$digests")
	if [[ ! $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
		echo "$digests has no digest of $name: the images are built before manifests can name them" >&2
		exit 1
	fi
	echo "$registry/$name@$digest"
}

manifests() {
	local base name expressions=() value chart
	go run ./hack/releaseseries "$version" manifests/release/metadata.yaml
	if [[ -z $registry ]]; then
		echo "the manifests name images by the tags of make image: for a release set REGISTRY, where make push pushes the images" >&2
	fi
	for name in "${images[@]}"; do
		value=$(reference "$name")
		expressions+=(-e "s#image: (docker\.io/library/)?$name(:[A-Za-z0-9._-]+)?\$#image: $value#")
	done
	if [[ -n $docs ]]; then
		expressions+=(-e "s#^( *runbook_url: )docs/#\\1$docs/#")
	fi
	# build BASE FILE: writes a kustomization with the names of the images.
	build() {
		mkdir -p "$(dirname "$2")"
		go tool -modfile="$root/hack/tools/go.mod" kustomize build "$1" | sed -E "${expressions[@]}" >"$2"
	}
	build manifests/release "$release/infrastructure-nstance/$version/infrastructure-components.yaml"
	cp manifests/release/metadata.yaml manifests/release/cluster-template.yaml "$release/infrastructure-nstance/$version"
	echo "$release/infrastructure-nstance/$version"
	for base in "${bases[@]}"; do
		build "manifests/$base" "$release/manifests/$version/${base//\//-}.yaml"
	done
	echo "$release/manifests/$version"
	for chart in manifests/helm/*/Chart.yaml; do
		name=$(basename "$(dirname "$chart")")
		value=
		[[ -z $registry ]] || value=$(reference "$name")
		hack/package-chart.sh "$name" "$version" "$value" "$release/charts"
	done
}

checksums() {
	local folder paths
	(
		cd "$release"
		paths=(charts/*-"${version#v}".tgz)
		for folder in {infrastructure-nstance,manifests,programs}/"$version"; do
			[[ ! -e $folder ]] || paths+=("$folder")
		done
		find "${paths[@]:?nothing of $version was written}" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
	) >"$release/SHA256SUMS"
	echo "$release/SHA256SUMS"
}

signature() {
	# A signature of another release would be wrong.
	rm -f "$release/SHA256SUMS.sig"
	if [[ -z $key ]]; then
		echo "the release is not signed: SIGNING_KEY names no key" >&2
		return
	fi
	image sign -key "$key" "$(realpath -e "$release/SHA256SUMS")" >"$work/signature"
	mv "$work/signature" "$release/SHA256SUMS.sig"
	echo "$release/SHA256SUMS.sig"
}

push() {
	local name path sources=()
	if [[ -z $registry ]]; then
		echo "REGISTRY must be set, such as REGISTRY=registry.example.com/nstance" >&2
		exit 1
	fi
	for name in "${images[@]}"; do
		sources+=("$(realpath "$release/images/$version/$name")")
	done
	for path in "$release"/charts/*-"${version#v}".tgz; do
		sources+=("$(realpath "$path")")
	done
	image push -registry "$registry" -version "$version" ${key:+-key "$key"} "${sources[@]}"
}

for part; do
	case $part in
	programs | plugin | images | starts | manifests | checksums | signature | push) "$part" ;;
	*)
		echo "unknown part $part" >&2
		exit 1
		;;
	esac
done
