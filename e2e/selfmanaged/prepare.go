// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/e2e/podroutes"
)

// zones are the zones of the shards, whose ids are unique to the checkout of the repository.
var zones = []string{"self-a", "self-b", "self-c"}

// Prepare builds the programs and the image of the nodes, opens Docker, and removes the machines that a
// killed program has left. It returns the options of a cluster with its state in dir, and a function that
// releases what it holds.
func Prepare(ctx context.Context, root, dir string, progress io.Writer) (o Options, release func() error, err error) {
	o = Options{Root: root, Dir: dir}
	var lock *os.File
	var network *podroutes.Network
	release = func() error {
		errs := []error{network.Close(), o.Docker.Close()}
		if lock != nil {
			errs = append(errs, lock.Close())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, release())
		}
	}()
	// Two clusters of a checkout would remove each other's machines.
	cache := filepath.Join(root, "e2e", ".cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return o, release, err
	}
	if lock, err = os.OpenFile(filepath.Join(cache, "selfmanaged.lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return o, release, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return o, release, fmt.Errorf("lock %s, maybe such a cluster runs already: %w", lock.Name(), err)
	}
	builder := controlplane.Builder{Root: root, Progress: progress}
	binaries, err := builder.ControlPlane(ctx)
	if err != nil {
		return o, release, err
	}
	o.Kube, o.CAPIModule = binaries.Kube, binaries.CAPIModule
	if o.Version, err = kubernetesVersion(ctx, o.Kube); err != nil {
		return o, release, err
	}
	if _, o.Server, err = builder.Product(ctx); err != nil {
		return o, release, err
	}
	if o.Admin, err = builder.Admin(ctx); err != nil {
		return o, release, err
	}
	if o.Docker, err = dockerhost.Open(ctx, filepath.Join(cache, "docker")); err != nil {
		return o, release, err
	}
	if o.Image, err = o.Docker.NodeImage(ctx, root, "selfmanaged", progress, "KUBEADM=1"); err != nil {
		return o, release, err
	}
	if network, err = podroutes.Claim(root + "/selfmanaged"); err != nil {
		return o, release, err
	}
	if err := network.AddDNSAddress(); err != nil {
		return o, release, err
	}
	o.PodNetwork, o.DNS = network.String(), network.DNSAddress()
	for _, zone := range zones {
		o.Shards = append(o.Shards, zone+"-"+dockerhost.Suffix(root))
	}
	_, err = o.Docker.RemoveNodes(ctx, o.Shards...)
	return o, release, err
}
