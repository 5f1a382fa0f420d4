// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package registry lists the instance providers. It is the only package that
// knows them all: everything else gets the one that the configuration names.
//
// The build tag noaws leaves AWS out of it, and out of the backends of storage and secrets:
// the SDK is a sixth of what compiles before a cluster runs on a machine of a developer.
package registry

import (
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/docker"
	"nstance.dev/operator/pkg/server/provider/google"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/proxmox"
	"nstance.dev/operator/pkg/server/provider/qemu"
)

// Providers are the providers that a configuration can name.
var Providers = provider.Registry{
	docker.Name:  docker.ReadOptions,
	google.Name:  google.ReadOptions,
	kwok.Name:    kwok.ReadOptions,
	proxmox.Name: proxmox.ReadOptions,
	qemu.Name:    qemu.ReadOptions,
}
