// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package controlplane runs a real Kubernetes control plane on one small
// machine, without containers: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, the Cluster API core manager with its webhooks, and kwok,
// which simulates the kubelets. Each is a child process that listens on 127.0.0.1
// only.
//
// All state of a running control plane is below one directory:
//
//	kubeconfig            administrator access
//	audit.log             every write that reached the API server
//	logs/COMPONENT.log    what the component printed
//	pids/COMPONENT        its process id
//	components/           how each was started, so that it can be started again
//	pki/, kubeconfigs/    keys, certificates and the components' own access
//	config/               files that components are configured by
//	etcd/                 the data
//
// Processes are identified through /proc and pidfds: the package needs Linux.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The names of the parts, in the order they start.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	CAPI              = "capi"
	KWOK              = "kwok"
)

// Options of a control plane.
type Options struct {
	// Dir is the folder of all state. The state of an earlier control plane is removed.
	Dir string
	// Binaries are the result of Builder.ControlPlane.
	Binaries Binaries
	// Ports that are zero are chosen.
	Ports Ports
	// NodeAddress is the address of this machine at which kubelets reach the API server;
	// they can join with BootstrapToken. Empty if no kubelet runs.
	NodeAddress string
	// PodNetwork is the range of the addresses of Pods on such nodes.
	PodNetwork string
	// Without names parts to leave out; etcd and kube-apiserver always run.
	Without []string
	// Namespace is the namespace in the administrator's kubeconfig; "" is "default".
	Namespace string
	// AuditReads are the users whose reads the audit log contains too.
	AuditReads []string
	// CAPIFlags are further flags of Cluster API's manager.
	CAPIFlags []string
	// Progress gets a line for every component that has started. Optional.
	Progress io.Writer
	// Exited is called, in a goroutine of its own, when a component exits that this
	// program has not stopped, with the state of its process ("signal: killed").
	// Optional.
	Exited func(component *Component, state string)
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	dir        string
	binaries   Binaries
	ports      Ports
	auditReads []string
	capiFlags  []string
	nodes      *nodes
	progress   io.Writer
	exited     func(*Component, string)
	authority  *authority
	config     *rest.Config
	components []*Component // in the order they started
}

// Start runs the parts one after the other, and waits until each is ready. If a part fails, the
// others are stopped again.
//
// A fixed port that is in use is an error before anything starts.
func Start(ctx context.Context, o Options) (*ControlPlane, error) {
	if err := checkWithout(o.Without); err != nil {
		return nil, err
	}
	if err := CheckPorts(o.Ports.Uses()); err != nil {
		return nil, err
	}
	if err := o.Ports.fillIn(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	cp := &ControlPlane{dir: dir, binaries: o.Binaries, ports: o.Ports, auditReads: o.AuditReads, capiFlags: o.CAPIFlags, progress: o.Progress, exited: o.Exited}
	if o.NodeAddress != "" {
		if cp.nodes, err = newNodes(o.NodeAddress, o.PodNetwork); err != nil {
			return nil, err
		}
	}
	if cp.progress == nil {
		cp.progress = io.Discard
	}
	if err := cp.start(ctx, o); err != nil {
		return nil, errors.Join(err, cp.Stop(context.WithoutCancel(ctx)))
	}
	return cp, nil
}

func checkWithout(names []string) error {
	optional := []string{ControllerManager, Scheduler, CAPI, KWOK}
	for _, name := range names {
		if !slices.Contains(optional, name) {
			return fmt.Errorf("cannot leave out %q; parts that can be: %v", name, optional)
		}
	}
	return nil
}

func (cp *ControlPlane) start(ctx context.Context, o Options) error {
	if err := cp.prepare(o.Namespace); err != nil {
		return err
	}
	for _, part := range []struct {
		name  string
		start func(context.Context) error
	}{
		{Etcd, cp.startEtcd},
		{APIServer, cp.startAPIServer},
		{ControllerManager, cp.startControllerManager},
		{Scheduler, cp.startScheduler},
		{CAPI, cp.startCAPI},
		{KWOK, cp.startKWOK},
	} {
		if slices.Contains(o.Without, part.name) {
			continue
		}
		if err := part.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepare clears the directory and creates the certificates and the administrator's
// kubeconfig.
func (cp *ControlPlane) prepare(namespace string) error {
	if err := removeState(cp.dir); err != nil {
		return err
	}
	var err error
	if cp.authority, err = newAuthority(filepath.Join(cp.dir, "pki")); err != nil {
		return err
	}
	if err := cp.writeAdminKubeconfig(namespace); err != nil {
		return err
	}
	cp.config, err = clientcmd.BuildConfigFromFlags("", cp.KubeconfigPath())
	if err != nil {
		return fmt.Errorf("read the administrator's kubeconfig: %w", err)
	}
	cp.config.QPS = -1 // API Priority and Fairness limits requests instead
	return nil
}

// removeState removes the state of an earlier control plane below dir. Without the
// record of a component, no control plane has used the directory, and its files must
// not be removed.
func removeState(dir string) error {
	components, err := Components(dir)
	if err != nil || len(components) == 0 {
		return err
	}
	for _, c := range components {
		if pid, running := c.PID(); running {
			return fmt.Errorf("%s of an earlier control plane in %s still runs (process %d)", c.Name, dir, pid)
		}
	}
	for _, name := range []string{
		"audit.log", "components", "config", "etcd", "kubeconfig", "kubeconfigs", "logs", "pids", "pki",
	} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove old state: %w", err)
		}
	}
	return nil
}

// Run starts one more component, after all others, and returns when it is
// ready. Stop stops it first.
func (cp *ControlPlane) Run(ctx context.Context, spec Spec) (*Component, error) {
	c := &Component{Spec: spec, dir: cp.dir, sequence: len(cp.components)}
	c.exited = func(how string) {
		if cp.exited != nil {
			cp.exited(c, how)
		}
	}
	begin := time.Now()
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(cp.progress, "started %s in %s\n", c.Name, time.Since(begin).Round(time.Second/10))
	cp.components = append(cp.components, c)
	return c, nil
}

// Stop stops all components, the last started first, and returns when all processes
// have exited.
func (cp *ControlPlane) Stop(ctx context.Context) error {
	var failed []error
	for _, c := range slices.Backward(cp.components) {
		if err := c.Stop(ctx); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Component returns the component of that name, or nil if there is no such component.
func (cp *ControlPlane) Component(name string) *Component {
	for _, c := range cp.components {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Components returns all components in the order they started.
func (cp *ControlPlane) Components() []*Component { return slices.Clone(cp.components) }

// Dir is the directory of all state, an absolute path.
func (cp *ControlPlane) Dir() string { return cp.dir }

// Server is the API server's URL.
func (cp *ControlPlane) Server() string { return "https://" + address(cp.ports.APIServer) }

// AdminConfig returns a client configuration of the administrator.
func (cp *ControlPlane) AdminConfig() *rest.Config { return rest.CopyConfig(cp.config) }

// KubeconfigPath is the administrator's kubeconfig file.
func (cp *ControlPlane) KubeconfigPath() string { return filepath.Join(cp.dir, "kubeconfig") }

// AuditLog is the record of the requests to the API server.
func (cp *ControlPlane) AuditLog() AuditLog { return AuditLog(filepath.Join(cp.dir, "audit.log")) }
