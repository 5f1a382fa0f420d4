// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package testcluster gives the tests of one package a control plane with an
// installation of Nstance that they share, and the helpers that all such tests
// need: polling, the audit log, the operator's process, and fixtures.
package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/rights"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// NoResyncVariable is the environment variable with which no operator resyncs during a test. The
// short resync period of most suites repairs what a handler has not seen.
const NoResyncVariable = "NSTANCE_TEST_NO_RESYNC"

// Options of a cluster.
type Options struct {
	// Without names parts of the control plane to leave out.
	Without []string
	// External puts the Nodes and Pods into a second control plane, the workload cluster. The
	// first control plane then has neither kubelets nor a scheduler.
	External bool
	// Target makes the workload cluster a second management cluster, with Cluster API and an
	// installation of the same operator, which the tests start (Cluster.Target).
	Target bool
	// AuditReads are the users besides the operator whose reads the audit log contains too.
	AuditReads []string
	// Shards are the shards of the installation. Main starts their servers.
	Shards []installation.Shard
	// PoolSettings changes the spec of every pool that CreatePool creates. Optional.
	PoolSettings func(*v1beta1.NstanceMachinePoolSpec)
	// Prepare is called with the cluster set, before an operator is started. Optional.
	Prepare func(context.Context) error
	// Machines is the Docker in which each instance is a container that runs a kubelet. Nil means
	// that kwok simulates the kubelets.
	Machines *dockerhost.Host
	// PodNetwork is the range of the addresses of Pods on such nodes, and ClusterDNS the address
	// of their DNS. Optional.
	PodNetwork, ClusterDNS string
	// MachineVolumes are mounted in the containers, as the provider docker has them.
	MachineVolumes []string
	// Closed is called after all processes have exited. Optional.
	Closed func() error
	// Clocks builds programs of Nstance whose clocks controlplane.Clock sets.
	Clocks bool
	// CAPIFlags are further flags of Cluster API's manager.
	CAPIFlags []string
	// OperatorFlags are the flags of the operator that Main starts; nil means that it starts no
	// operator.
	OperatorFlags []string
	// NoOperator is set if the tests run no operator: they do not depend on its program then.
	NoOperator bool
}

// Cluster is the control plane with Nstance that the tests of a package share.
type Cluster struct {
	*controlplane.ControlPlane
	Clients
	// Workload is the control plane of the Nodes and Pods if Options.External is set.
	Workload *controlplane.ControlPlane
	// Target is the workload cluster as a management cluster if Options.Target is set. Its shards
	// are the components of this cluster.
	Target       *Cluster
	Installation *installation.Installation
	// ShardIDs are the shards, in the order in which pools list them.
	ShardIDs []string
	// Operator is the operator that StartOperator has started.
	Operator     installation.Operator
	kubectl      []string
	poolSettings func(*v1beta1.NstanceMachinePoolSpec)
}

// Main is the body of TestMain: it starts the cluster and sets env to it, runs the tests
// and exits. The logs of a failed run are kept.
func Main(m *testing.M, env **Cluster, o Options) {
	ctx, cancel := context.WithCancel(context.Background())
	code, err := run(ctx, m, env, o)
	cancel()
	if o.Closed != nil {
		err = errors.Join(err, o.Closed())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M, env **Cluster, o Options) (code int, err error) {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return 1, err
	}
	builder := controlplane.Builder{Root: root, Progress: os.Stderr}
	binaries, err := builder.ControlPlane(ctx)
	if err != nil {
		return 1, err
	}
	operator, server, err := o.programs(ctx, builder)
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "nstance-e2e-")
	if err != nil {
		return 1, err
	}
	var image string
	options := controlplane.Options{
		Dir: dir, Binaries: binaries, Namespace: installation.Namespace, Without: o.Without,
		AuditReads: append(slices.Clone(o.AuditReads), installation.OperatorUser), CAPIFlags: o.CAPIFlags,
	}
	if o.Machines != nil {
		options.NodeAddress, options.PodNetwork = o.Machines.Bridge, o.PodNetwork
		if image, err = o.Machines.NodeImage(ctx, root, "e2e", os.Stderr); err != nil {
			return 1, err
		}
	}
	var workload *controlplane.ControlPlane
	if o.External {
		if workload, err = startWorkload(ctx, &options, o.Target); err != nil {
			return 1, err
		}
	}
	cp, err := controlplane.Start(ctx, options)
	if err != nil {
		return 1, errors.Join(err, stopWorkload(ctx, workload))
	}
	defer func() {
		stopErr := errors.Join(cp.Stop(context.WithoutCancel(ctx)), stopWorkload(ctx, workload))
		if err == nil {
			err = stopErr
		}
		if code == 0 && err == nil {
			err = os.RemoveAll(dir)
			return
		}
		fmt.Fprintln(os.Stderr, "logs of the cluster:", filepath.Join(dir, "logs"))
	}()

	cluster, err := newCluster(cp, binaries)
	if err != nil {
		return 1, err
	}
	if workload != nil {
		cluster.Workload = workload
		if cluster.NodeKube, err = kubernetes.NewForConfig(workload.AdminConfig()); err != nil {
			return 1, err
		}
	}
	cluster.poolSettings = o.PoolSettings
	for _, shard := range o.Shards {
		cluster.ShardIDs = append(cluster.ShardIDs, shard.ID)
	}
	machines, err := o.Machines.Installation(cp, image)
	if err != nil {
		return 1, err
	}
	if machines != nil {
		machines.DNS, machines.Volumes = o.ClusterDNS, o.MachineVolumes
	}
	cluster.Installation, err = installation.Install(ctx, cp, installation.Options{
		Manifests: filepath.Join(root, "manifests"),
		Operator:  operator,
		Server:    server,
		Shards:    o.Shards,
		Workload:  workload,
		Machines:  machines,
	})
	if err != nil {
		return 1, err
	}
	if err := cluster.Installation.StartShards(ctx); err != nil {
		return 1, err
	}
	if o.Target {
		if err := cluster.installTarget(ctx, binaries); err != nil {
			return 1, err
		}
	}
	*env = cluster
	if o.Prepare != nil {
		if err := o.Prepare(ctx); err != nil {
			return 1, err
		}
	}
	if o.OperatorFlags != nil {
		flags := o.OperatorFlags
		if os.Getenv(NoResyncVariable) != "" {
			flags = append(slices.Clone(flags), "--resync-period", "24h")
		}
		if err := cluster.StartOperator(ctx, flags...); err != nil {
			return 1, err
		}
	}
	code = m.Run()
	manifests := filepath.Join(root, "manifests")
	suite := strings.TrimSuffix(filepath.Base(os.Args[0]), ".test")
	err = rights.Record(suite, cp.AuditLog(), installation.OperatorUser, manifests)
	if workload != nil {
		err = errors.Join(err, rights.Record(suite+"-workload", workload.AuditLog(), installation.OperatorUser, manifests))
	}
	return code, err
}

// newCluster returns a cluster without an installation.
func newCluster(cp *controlplane.ControlPlane, binaries controlplane.Binaries) (*Cluster, error) {
	clients, err := newClients(cp.AdminConfig())
	return &Cluster{
		ControlPlane: cp,
		Clients:      clients,
		kubectl:      []string{binaries.Kube, "kubectl", "--kubeconfig", cp.KubeconfigPath(), "--namespace", installation.Namespace},
	}, err
}

// installTarget sets c.Target.
func (c *Cluster) installTarget(ctx context.Context, binaries controlplane.Binaries) error {
	target, err := newCluster(c.Workload, binaries)
	if err != nil {
		return err
	}
	target.ShardIDs = c.ShardIDs
	if target.Installation, err = c.Installation.InstallTarget(ctx, c.Workload); err != nil {
		return err
	}
	c.Target = target
	return nil
}

// programs returns the paths of the programs that the cluster needs.
func (o Options) programs(ctx context.Context, builder controlplane.Builder) (operator, server string, err error) {
	switch {
	case o.Clocks:
		return builder.ProductWithClock(ctx)
	case o.NoOperator:
		server, err = builder.Server(ctx)
		return "", server, err
	default:
		return builder.Product(ctx)
	}
}

// startWorkload starts the control plane of the Nodes and Pods, and leaves their parts out of
// options, the options of the other control plane. It has Cluster API if it is a target.
func startWorkload(ctx context.Context, options *controlplane.Options, target bool) (*controlplane.ControlPlane, error) {
	own := *options
	own.Dir = filepath.Join(options.Dir, "workload")
	if !target {
		own.Without = append([]string{controlplane.CAPI}, options.Without...)
	}
	options.Without = append([]string{controlplane.Scheduler, controlplane.KWOK}, options.Without...)
	return controlplane.Start(ctx, own)
}

// stopWorkload stops the control plane of the Nodes and Pods if there is one.
func stopWorkload(ctx context.Context, workload *controlplane.ControlPlane) error {
	if workload == nil {
		return nil
	}
	return workload.Stop(context.WithoutCancel(ctx))
}
