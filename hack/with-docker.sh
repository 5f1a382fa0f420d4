#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Runs a command with NSTANCE_TEST_DOCKER set to the address of a Docker daemon: the one that
# Docker's clients use by default, or else a private one, which only root can start. It
# keeps everything in a temporary folder and is stopped after the command.
set -euo pipefail

responds() { curl -fsS --max-time 5 --unix-socket "$1" http://docker/_ping >/dev/null 2>&1; }

host=${NSTANCE_TEST_DOCKER:-${DOCKER_HOST:-unix:///var/run/docker.sock}}
if [[ $host != unix://* ]] || responds "${host#unix://}"; then
	NSTANCE_TEST_DOCKER=$host exec "$@"
fi
if ! command -v dockerd >/dev/null; then
	echo "no Docker daemon responds at $host, and there is no dockerd to start (Debian: apt-get install docker.io iptables)" >&2
	exit 1
fi
if ((EUID != 0)); then
	echo "no Docker daemon responds at $host, and only root can start a private one" >&2
	exit 1
fi

dir=$(mktemp -d)
socket=$dir/docker.sock
stop() {
	if [[ -n ${daemon:-} ]]; then
		kill "$daemon" 2>/dev/null || true
		wait "$daemon" 2>/dev/null || true
	fi
	rm -rf "$dir"
}
trap stop EXIT
dockerd --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/docker.pid" -H "unix://$socket" >"$dir/log" 2>&1 &
daemon=$!
for ((i = 0; i < 300; i++)); do
	if responds "$socket"; then
		NSTANCE_TEST_DOCKER=unix://$socket "$@"
		exit
	fi
	if ! kill -0 "$daemon" 2>/dev/null; then
		break
	fi
	sleep 0.1
done
echo "the private Docker daemon did not start:" >&2
tail -n 20 "$dir/log" >&2
exit 1
