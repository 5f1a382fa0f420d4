#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Installs the packages of Debian that the tests on machines (make test-machines), of the
# alerts (make verify-alerts, make test-monitoring), in a browser (make test-browser) and with
# moto (make test-moto) need, if they are missing: Docker, QEMU, what builds the image of nodes,
# Prometheus, Chromium with the fonts of the screenshots, and virtual environments of Python; and what
# starts the programs of a release for another architecture.
set -euo pipefail
packages=(chromium curl docker.io fonts-inter fonts-liberation iproute2 iptables mmdebstrap prometheus qemu-system-x86 qemu-user-static qemu-utils)
# Any Python with virtual environments is as good as Debian's.
if ! python3 -c 'import ensurepip' 2>/dev/null; then
	packages+=(python3-venv)
fi

missing=()
for package in "${packages[@]}"; do
	if [[ $(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
		missing+=("$package")
	fi
done
# The kernel of virtual machines is downloaded later, which needs the lists too.
if ((${#missing[@]} == 0)) && apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1; then
	exit
fi
if ((EUID != 0)); then
	echo "only root can install packages: apt-get install ${missing[*]}" >&2
	exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${missing[@]}"
