// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package agent contains the files of this folder, for programs that write them elsewhere.
package agent

import _ "embed"

var (
	// Unit is the systemd unit of the agent.
	//
	//go:embed nstance-agent.service
	Unit string
	// JoinSecret is the script that stores the secret with which machines join a cluster of
	// kubeadm.
	//
	//go:embed join-secret.sh
	JoinSecret string
)
