#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Unpacks the kernel of Debian for cloud machines into a folder, unless it is there, for
# tests that boot virtual machines. The package is downloaded and not installed.
set -euo pipefail
folder=${1:?usage: guest-kernel.sh FOLDER}

[[ -n $(compgen -G "$folder/boot/vmlinuz-*") ]] && exit
if ! { command -v apt-get && command -v dpkg-deb; } >/dev/null; then
	echo "guest-kernel.sh needs Debian's apt-get and dpkg-deb, or a kernel in $folder/boot and its modules in $folder/lib/modules" >&2
	exit 1
fi
# linux-image-cloud-amd64 is an empty package that depends on the one with the kernel.
package=$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ {print $2; exit}')
if [[ -z $package ]]; then
	echo "apt-cache does not know linux-image-cloud-amd64: run apt-get update" >&2
	exit 1
fi
mkdir -p "$(dirname "$folder")"
temporary=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$temporary"' EXIT
(cd "$temporary" && apt-get download -qq "$package")
dpkg-deb -x "$temporary"/*.deb "$temporary/unpacked"
rm -rf "$folder"
mv "$temporary/unpacked" "$folder"
echo "$folder: $package"
