// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package registry lists the instance providers. No other package imports all of them: all
// code uses the provider that the configuration names.
//
// The build tag noaws leaves out AWS here, and in the backends of storage and secrets. The
// SDK is a sixth of the code that has to compile before a developer can run a cluster.
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
