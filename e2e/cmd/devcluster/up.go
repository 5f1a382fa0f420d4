// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
)

// up runs the cluster until ctx is done, and stops it.
func (d devcluster) up(ctx context.Context) (err error) {
	lock, err := acquire(d.dir)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := d.stopComponents(ctx); err != nil {
		return err
	}
	if err := d.removeLeftNodes(ctx); err != nil {
		// Its Docker may not run any more.
		fmt.Fprintf(d.out, "the nodes of an earlier cluster were not removed: %v\n", err)
	}
	// Checked before a build of minutes, and again afterwards.
	if err := controlplane.CheckPorts(portUses()); err != nil {
		return err
	}
	var nodes *machines
	if d.machines {
		if nodes, err = d.openMachines(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, nodes.close(context.WithoutCancel(ctx))) }()
	}

	begin := time.Now()
	programs, err := d.build(ctx)
	if err == nil {
		err = nodes.buildImage(ctx)
	}
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	if err := controlplane.CheckPorts(portUses()); err != nil {
		return err
	}
	cp, err := controlplane.Start(ctx, controlplane.Options{
		Dir:         d.dir,
		Binaries:    programs.controlPlane,
		Ports:       controlPlanePorts,
		NodeAddress: nodes.address(),
		PodNetwork:  nodes.podNetwork(),
		Without:     nodes.without(),
		Namespace:   installation.Namespace,
		Progress:    d.out,
		Exited:      d.reportExit,
	})
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	err = d.runNstance(ctx, cp, programs, nodes, begin)

	if ctx.Err() != nil {
		fmt.Fprintf(d.out, "\nstopping: %v\n", context.Cause(ctx))
	}
	return errors.Join(err, cp.Stop(context.WithoutCancel(ctx)))
}

// programs are the paths of the programs that a cluster runs.
type programs struct {
	controlPlane     controlplane.Binaries
	operator, server string
}

func (d devcluster) build(ctx context.Context) (programs, error) {
	builder := controlplane.Builder{Root: d.root, Progress: d.out}
	var p programs
	var plugin string
	// The longest package of the server compiles on one processor. The control plane uses the
	// other processors.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		p.controlPlane, err = builder.ControlPlaneWithInstalledKube(ctx)
		return err
	})
	group.Go(func() (err error) {
		p.operator, p.server, plugin, err = builder.DevProduct(ctx)
		return err
	})
	if err := group.Wait(); err != nil {
		return p, err
	}
	// kubectl is a name of the multi-call program. It finds its plugin in PATH.
	bin := filepath.Join(d.dir, "bin")
	return p, errors.Join(link(p.controlPlane.Kube, filepath.Join(bin, "kubectl")), link(plugin, filepath.Join(bin, "kubectl-nstance")))
}

// link makes path a name of a program.
func link(program, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(program, path)
}

// runNstance starts Nstance and its sample and returns when ctx is done, or when a
// required step fails.
func (d devcluster) runNstance(ctx context.Context, cp *controlplane.ControlPlane, p programs, nodes *machines, begin time.Time) (err error) {
	stopRoutes, err := nodes.connect(ctx, cp)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopRoutes()) }()
	err = d.startNstance(ctx, cp, p, nodes)
	if err == nil {
		err = d.waitForSample(ctx, cp.AdminConfig())
	}
	var unready notReadyError
	switch {
	case err == nil:
		d.printReady(time.Since(begin))
	case errors.As(err, &unready):
		// The cluster continues: it may still become ready, and its logs and objects show why it
		// is not.
		fmt.Fprintf(d.out, "\n%v\nlogs: %s\n", err, filepath.Join(d.dir, "logs"))
	default:
		return errors.Join(ctx.Err(), err)
	}
	<-ctx.Done()
	return nil
}

func (d devcluster) startNstance(ctx context.Context, cp *controlplane.ControlPlane, p programs, nodes *machines) error {
	manifests := filepath.Join(d.root, "manifests")
	instances, err := nodes.installation(cp)
	if err != nil {
		return err
	}
	n, err := installation.Install(ctx, cp, installation.Options{
		Manifests: manifests,
		Operator:  p.operator,
		Server:    p.server,
		Shards:    nodes.shards(),
		Machines:  instances,
	})
	if err != nil {
		return err
	}
	if err := n.StartShards(ctx); err != nil {
		return err
	}
	if _, err := n.StartOperator(ctx, operator); err != nil {
		return err
	}
	return n.Apply(ctx, filepath.Join(manifests, "samples"))
}

// reportExit reports a component that exited without being stopped. The cluster
// continues without it.
func (d devcluster) reportExit(c *controlplane.Component, how string) {
	fmt.Fprintf(d.out, "\n%s has exited (%s)\n  its log:  %s\n  to start: %s start %s\n",
		c.Name, how, c.LogPath(), os.Args[0], c.Name)
}

// downTimeout is how long down waits until an up has exited.
const downTimeout = 2 * time.Minute

// down stops the up that runs in the folder, and the components that an earlier up left running.
func (d devcluster) down(ctx context.Context) error {
	lock, err := acquire(d.dir)
	var locked lockedError
	if errors.As(err, &locked) {
		fmt.Fprintf(d.out, "stopping the dev cluster of process %d\n", locked.pid)
		lock, err = d.stopUp(ctx, locked.pid)
	}
	if err != nil {
		return err
	}
	defer lock.release()
	if err := d.stopComponents(ctx); err != nil {
		return err
	}
	return d.removeLeftNodes(ctx)
}

func (d devcluster) stopUp(ctx context.Context, pid int) (*lock, error) {
	up, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	if err := up.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, fmt.Errorf("stop process %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	lock, err := acquireWhenFree(ctx, d.dir)
	if err != nil {
		return nil, fmt.Errorf("wait for process %d to exit: %w", pid, err)
	}
	return lock, nil
}

// stopComponents stops the recorded components that still run. The folder must be
// locked.
func (d devcluster) stopComponents(ctx context.Context) error {
	components, err := controlplane.Components(d.dir)
	if err != nil {
		return err
	}
	for _, c := range slices.Backward(components) {
		pid, running := c.PID()
		if !running {
			continue
		}
		fmt.Fprintf(d.out, "stopping %s, left behind as process %d\n", c.Name, pid)
		if err := c.Stop(ctx); err != nil {
			return err
		}
	}
	return nil
}

// drainTimeout is how long the operator may take to drain a Node.
const drainTimeout = 5 * time.Minute

// All ports of the dev cluster. They are fixed, so that a kubeconfig in a
// user's shell stays right, and below 32768, from where the kernel hands out
// ports of its own choice.
var (
	controlPlanePorts = controlplane.Ports{
		Etcd:              26379,
		EtcdPeer:          26380,
		APIServer:         26443,
		ControllerManager: 26257,
		Scheduler:         26259,
		CAPIWebhook:       26943,
		CAPIHealth:        26944,
		CAPIDiagnostics:   26945,
		KWOK:              26247,
	}
	shards = []installation.Shard{
		{
			ID: "us-west-2a", OperatorPort: 28993, HealthPort: 28983, RegistrationPort: 28973, ElectionPort: 28963, AgentPort: 28953, MetadataPort: 28943,
			Groups:       map[string]installation.Group{"main": {Size: 2}},
			DrainTimeout: drainTimeout,
		},
		{
			ID: "us-west-2b", OperatorPort: 28994, HealthPort: 28984, RegistrationPort: 28974, ElectionPort: 28964, AgentPort: 28954, MetadataPort: 28944,
			Groups:       map[string]installation.Group{"main": {Size: 1}},
			DrainTimeout: drainTimeout,
		},
		{
			ID: "us-west-2c", OperatorPort: 28995, HealthPort: 28985, RegistrationPort: 28975, ElectionPort: 28965, AgentPort: 28955, MetadataPort: 28945,
			DrainTimeout: drainTimeout,
		},
	}
	operator = installation.Operator{Component: "operator", HTTPPort: 28080, Flags: []string{"--on-demand-namespaces=default"}}
)

// Ports of the marekvs operator, and of the metrics of its simulated nodes.
const (
	marekvsHTTPPort = 28081
	marekvsPort     = 28121
)

func portUses() []controlplane.PortUse {
	uses := controlPlanePorts.Uses()
	for _, shard := range shards {
		uses = append(uses, shard.PortUses()...)
	}
	return append(uses, controlplane.PortUse{Port: operator.HTTPPort, Component: operator.Component})
}
