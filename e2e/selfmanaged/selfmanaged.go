// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package selfmanaged runs a cluster that manages itself, from an empty bucket: shard servers create the
// machine of the control plane, which is initialized by kubeadm, and the machines that join it. Cluster
// API and the operator are Pods of the cluster, and manage its machines. Machines are containers.
package selfmanaged

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"nstance.dev/operator/e2e/clusterdns"
	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/podroutes"
)

// Static groups of the configuration.
const (
	// ControlPlaneGroup has the control plane, on the first shard or on each shard.
	ControlPlaneGroup = "control-plane"
	// SystemGroup has the Nodes of Cluster API and of the operator, on the other shards.
	SystemGroup = "system"
)

// Options of a cluster.
type Options struct {
	// Root is the repository, and Dir the folder of the state.
	Root, Dir string
	// Shards are the ids of the shards, at least two.
	Shards []string
	// Replicated means that the control plane has a machine on each shard, which have no volumes, instead of
	// one machine, whose volumes its replacement gets.
	Replicated bool
	Docker     *dockerhost.Host
	// Image is the image of the nodes, with kubeadm.
	Image string
	// PodNetwork is the range of the addresses of Pods, and DNS the address of this machine at which they
	// reach the DNS of the cluster.
	PodNetwork string
	DNS        net.IP
	// Version is the version of Kubernetes, which kubeadm would look up on the internet.
	Version string
	// Server, Admin and Kube are the paths of nstance-server, of nstance-admin and of command kube.
	Server, Admin, Kube string
	// CAPIModule is the folder of the source of Cluster API.
	CAPIModule string
	// WithoutOperator leaves the operator out of the seed: it is installed later.
	WithoutOperator bool
	// Registry is a registry without TLS, HOST:PORT, from which the nodes may pull images. Empty: none.
	Registry string
}

// Cluster is a cluster that manages itself.
type Cluster struct {
	// Kube is a client of an administrator, and Config its configuration.
	Kube   kubernetes.Interface
	Config *rest.Config

	options   Options
	authority *authority
	balancer  *balancer
	shards    []*shard
	// close ends what connects this machine with the Pods.
	close func() error
}

// shard is the server of a shard, with its ports.
type shard struct {
	id                                                        string
	health, election, registration, operator, agent, metadata int
	server                                                    *controlplane.Component
}

func (s *shard) ports() []*int {
	return []*int{&s.health, &s.election, &s.registration, &s.operator, &s.agent, &s.metadata}
}

// Start creates keys, CA and configurations in an empty bucket, and starts the servers. The cluster is
// ready some time after it returns.
func Start(ctx context.Context, o Options) (c *Cluster, err error) {
	c = &Cluster{options: o, close: func() error { return nil }}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close(ctx))
		}
	}()
	for _, id := range o.Shards {
		c.shards = append(c.shards, &shard{id: id})
	}
	var ports []*int
	for _, s := range c.shards {
		ports = append(ports, s.ports()...)
	}
	if err := controlplane.FillInPorts(ports); err != nil {
		return c, err
	}
	if c.authority, err = newAuthority(filepath.Join(o.Dir, "pki"), "kubernetes", authorityName); err != nil {
		return c, err
	}
	if c.balancer, err = startBalancer(ctx, o.Docker, c.authority, o.Shards); err != nil {
		return c, err
	}
	if c.Config, err = c.authority.administrator(c.balancer.address()); err != nil {
		return c, err
	}
	if c.Kube, err = kubernetes.NewForConfig(c.Config); err != nil {
		return c, fmt.Errorf("make a client of the cluster: %w", err)
	}
	if err := c.writeSeed(); err != nil {
		return c, err
	}
	for _, name := range []string{"etcd", "pki", auditVolume} {
		if err := os.MkdirAll(c.volume(name), 0o700); err != nil {
			return c, fmt.Errorf("create a volume of the control plane: %w", err)
		}
	}
	if err := c.fillBucket(ctx); err != nil {
		return c, err
	}
	c.connect(ctx)
	for _, s := range c.shards {
		if err := c.startServer(ctx, s); err != nil {
			return c, err
		}
	}
	return c, nil
}

// WriteKubeconfig writes a kubeconfig of an administrator.
func (c *Cluster) WriteKubeconfig(path string) error {
	config := clientcmdapi.NewConfig()
	const name = "kubernetes"
	config.Clusters[name] = &clientcmdapi.Cluster{Server: c.Config.Host, CertificateAuthorityData: c.Config.CAData}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: c.Config.CertData, ClientKeyData: c.Config.KeyData}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: installation.Namespace}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write the kubeconfig of an administrator: %w", err)
	}
	return nil
}

// Close stops the servers and removes the machines, even if ctx is done.
func (c *Cluster) Close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for _, s := range c.shards {
		if s.server != nil {
			errs = append(errs, s.server.Stop(ctx))
		}
	}
	_, err := c.options.Docker.RemoveNodes(ctx, c.options.Shards...)
	errs = append(errs, err, c.close())
	if c.balancer != nil {
		errs = append(errs, c.balancer.close())
	}
	return errors.Join(errs...)
}

// connect routes this machine to the Pods, and serves the names of Services to them, until Close.
func (c *Cluster) connect(ctx context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	var routes, dns error
	group.Go(func() { routes = podroutes.Run(ctx, c.Kube) })
	group.Go(func() { dns = clusterdns.Run(ctx, c.Kube, c.options.DNS) })
	c.close = func() error {
		cancel()
		group.Wait()
		return errors.Join(routes, dns)
	}
}

func (c *Cluster) bucket() string { return filepath.Join(c.options.Dir, "bucket") }

// storage are the flags of nstance-admin for the bucket.
func (c *Cluster) storage() []string {
	return []string{
		"--storage", "file", "--storage-bucket", c.bucket(),
		"--key-provider", "file", "--key", c.encryptionKey(),
	}
}

func (c *Cluster) encryptionKey() string { return filepath.Join(c.options.Dir, "encryption.key") }

// fillBucket does what an administrator does before the first server starts.
func (c *Cluster) fillBucket(ctx context.Context) error {
	command := append([]string{"cluster", "init", "--cluster-id", installation.ClusterID, "--nonce-secret", nonceSecret}, c.storage()...)
	for _, s := range c.shards {
		path, err := c.writeConfiguration(s)
		if err != nil {
			return err
		}
		command = append(command, "--config", path)
	}
	if err := c.admin(ctx, command...); err != nil {
		return err
	}
	secrets := map[string]string{authorityFile: c.authority.certificateFile(), authorityKeyFile: c.authority.keyFile()}
	if c.options.Replicated {
		shared, err := writeSharedKeys(filepath.Join(c.options.Dir, "pki"))
		if err != nil {
			return err
		}
		maps.Copy(secrets, shared)
	}
	for name, path := range secrets {
		if err := c.admin(ctx, append([]string{"secret", "set", name, "--from-file", path}, c.storage()...)...); err != nil {
			return err
		}
	}
	return nil
}

// admin runs nstance-admin.
func (c *Cluster) admin(ctx context.Context, args ...string) error {
	output, err := exec.CommandContext(ctx, c.options.Admin, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("nstance-admin %s: %w: %s", args[0], err, output)
	}
	return nil
}

func (c *Cluster) startServer(ctx context.Context, s *shard) error {
	s.server = controlplane.NewComponent(c.options.Dir, controlplane.Spec{
		Name: "shard-" + s.id,
		Argv: []string{
			c.options.Server, "--shard", s.id, "--id", "1", "--storage", "file", "--bucket", c.bucket(),
			"--cache-dir", filepath.Join(c.options.Dir, "cache", s.id), "--v", "2",
		},
		Ports: []int{s.health, s.election, s.registration, s.operator, s.agent, s.metadata},
		Ready: controlplane.Probe{URL: "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(s.health)) + "/health"},
	})
	return s.server.Start(ctx)
}

// writeFile writes a file and its folder. Only its owner may read it.
func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}
