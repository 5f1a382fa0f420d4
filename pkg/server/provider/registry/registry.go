// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package registry lists the instance providers. It is the only package that
// knows them all: everything else gets the one that the configuration names.
package registry

import (
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws"
	"nstance.dev/operator/pkg/server/provider/docker"
	"nstance.dev/operator/pkg/server/provider/google"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/proxmox"
	"nstance.dev/operator/pkg/server/provider/qemu"
)

// Providers are the providers that a configuration can name.
var Providers = provider.Registry{
	aws.Name:     aws.ReadOptions,
	docker.Name:  docker.ReadOptions,
	google.Name:  google.ReadOptions,
	kwok.Name:    kwok.ReadOptions,
	proxmox.Name: proxmox.ReadOptions,
	qemu.Name:    qemu.ReadOptions,
}
