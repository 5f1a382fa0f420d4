#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Builds the image of a node that is a container, for the provider docker, and imports it
# into Docker as nstance-node:TAG: Debian packages, the kubelet of the Kubernetes of the
# tests, nstance-agent, and images for Pods. What has not changed is not built again.
#
# Environment: TAG (dev), DOCKER_HOST, CACHE (e2e/.cache/node), SUITE (bookworm), and KUBEADM: if it is not
# empty, the nodes are configured by kubeadm, and have the images of a control plane, of kube-proxy, of
# Cluster API and of the operator. The image that had the tag before is removed unless it is in use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tag=nstance-node:${TAG:-dev}
suite=${SUITE:-bookworm}
kubeadm=${KUBEADM:-}
cache=${CACHE:-$PWD/e2e/.cache/node${kubeadm:+-kubeadm}}
root=$cache/root
packages=iproute2,iptables,kmod,mount,containerd,runc,containernetworking-plugins,procps,ethtool,conntrack,ca-certificates${kubeadm:+,nftables}

for program in mmdebstrap docker; do
	if ! command -v "$program" >/dev/null; then
		echo "node-image needs $program (Debian: apt-get install mmdebstrap docker.io)" >&2
		exit 1
	fi
done
if [ "$(id -u)" != 0 ]; then
	echo "node-image needs root, which installs the Debian packages" >&2
	exit 1
fi

begin=$SECONDS
report() { printf '%4d s  %s\n' $((SECONDS - begin)) "$1"; }

# Without documentation the packages need 280 MB.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ "$(cat "$cache/packages" 2>/dev/null)" != "$suite $packages" ]; then
	report "installing Debian packages"
	rm -rf "$root" "$cache/packages"
	mmdebstrap --quiet --mode=root --variant=essential --include="$packages" \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' --aptopt='Apt::Install-Recommends "false"' \
		"$suite" "$root"
	echo "$suite $packages" >"$cache/packages"
	report "Debian packages: $(du -sm "$root" | cut -f1) MB"
fi

# The control plane sets the same variables (e2e/controlplane/programs.go).
build() { # MODULE PACKAGE OUTPUT [VARIABLE...]
	local module=$1 package=$2 output=$3 flags='-s -w' variable
	shift 3
	for variable in "$@"; do flags+=" -X $variable"; done
	(cd "$module" && CGO_ENABLED=0 go build -buildvcs=false -gcflags=all=-dwarf=false -ldflags="$flags" -o "$output" "$package")
}
version=$(cd e2e/cmd/kube && go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v*.}
versions=("k8s.io/component-base/version.gitVersion=$version" "k8s.io/client-go/pkg/version.gitVersion=$version"
	"k8s.io/component-base/version.gitMajor=1" "k8s.io/component-base/version.gitMinor=${minor%%.*}")
report "building the kubelet (the first time takes some minutes)"
build e2e/cmd/kube ./kubelet "$root/usr/local/bin/kubelet" "${versions[@]}"
report "kubelet $version: $(du -m "$root/usr/local/bin/kubelet" | cut -f1) MB"
if [ -d cmd/nstance-agent ]; then
	build . ./cmd/nstance-agent "$root/usr/local/bin/nstance-agent"
	report "nstance-agent: $(du -m "$root/usr/local/bin/nstance-agent" | cut -f1) MB"
fi

mkdir -p "$root/images"
pod_image() { # NAME TAG
	build e2e "./cmd/$1" "$cache/$1" "main.version=$2"
	(cd hack/tools && CGO_ENABLED=0 go run ./image -binary "$cache/$1" -tag "localhost/$1:$2" -output "$root/images/$1-$2.tar")
}
rm -rf "$root"/images/*
for image in pause:1 web:1 store:1 store:2 store:broken; do
	pod_image "${image%:*}" "${image#*:}"
done
report "images for Pods"

# system_images writes what kubeadm, Cluster API and the operator need: the names are those of kubeadm with
# the registry localhost/kubernetes.
system_images() {
	local etcd capi part folder
	build e2e/cmd/kube ./kubeadm "$root/usr/local/bin/kubeadm" "${versions[@]}"
	etcd=$("$root/usr/local/bin/kubeadm" config images list --kubernetes-version "$version" --image-repository R 2>/dev/null | sed -n 's|^R/etcd:||p')
	capi=$(cd e2e/cmd/kube && go list -m -f '{{.Version}}' sigs.k8s.io/cluster-api)

	# Only nodes of the control plane import these, because it takes some seconds.
	folder=$cache/control-plane
	rm -rf "$folder" "$root/images/control-plane"
	mkdir -p "$folder/usr/local/bin"
	build e2e/cmd/kube . "$folder/usr/local/bin/kube" "${versions[@]}"
	for part in kube-apiserver kube-controller-manager kube-scheduler etcd; do ln -s kube "$folder/usr/local/bin/$part"; done
	pack archive -folder "$folder" -output "$root/images/control-plane/control-plane.tar" "localhost/kubernetes/etcd:$etcd" \
		localhost/kubernetes/kube-{apiserver,controller-manager,scheduler}:"$version"

	# kube-proxy calls nft and conntrack, which have libraries.
	folder=$cache/kube-proxy
	rm -rf "$folder"
	mkdir -p "$folder/usr/local/bin"
	cp "$root/usr/local/bin/kubeadm" "$folder/usr/local/bin/kube-proxy"
	for part in /usr/sbin/nft /usr/sbin/conntrack; do
		chroot "$root" ldd "$part" | sed -nE 's/^.*[[:space:]](\/[^ ]+) \(0x.*$/\1/p'
		echo "$part"
	done | sort -u | while read -r part; do
		mkdir -p "$folder/$(dirname "$part")"
		cp -L "$root$part" "$folder$part"
	done
	pack archive -folder "$folder" -output "$root/images/kube-proxy.tar" "localhost/kubernetes/kube-proxy:$version"

	build e2e/cmd/kube sigs.k8s.io/cluster-api/core "$cache/manager"
	pack -binary "$cache/manager" -tag "localhost/cluster-api:$capi" -output "$root/images/cluster-api.tar"
	build . ./cmd/nstance-operator "$cache/nstance-operator"
	pack -binary "$cache/nstance-operator" -tag "nstance-operator:selfmanaged" -output "$root/images/nstance-operator.tar"
}
pack() { (cd hack/tools && CGO_ENABLED=0 go run ./image "$@"); }
if [ -n "$kubeadm" ]; then
	system_images
	report "images of the control plane, kube-proxy, Cluster API and the operator"
fi

cp -a hack/node/. "$root/"
# The packages are not in the digest, which their list represents.
digest=$(cd "$root" && {
	cat "$cache/packages"
	find usr/local/bin images etc/containerd -type f -print0 | sort -z | xargs -0 sha256sum
} | sha256sum | cut -c1-16)
previous=$(docker image inspect -f '{{.Id}}' "$tag" 2>/dev/null || true)
image=$(docker image ls --no-trunc --quiet --filter "label=nstance.dev/node-image=$digest" nstance-node | sed -n 1p)
if [ -z "$image" ]; then
	image=$(tar -C "$root" -c . | docker import -c 'ENTRYPOINT ["/usr/local/bin/entrypoint"]' \
		-c "LABEL nstance.dev/node-image=$digest" - "$tag")
else
	docker tag "$image" "$tag"
fi
if [ -n "$previous" ] && [ "$previous" != "$image" ]; then
	docker image rm "$previous" >/dev/null 2>&1 || true # it has containers or another tag
fi
report "$tag: $(($(docker image inspect -f '{{.Size}}' "$tag") / 1000000)) MB"
