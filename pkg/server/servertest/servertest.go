// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package servertest runs real shard servers inside a test: with mutual TLS, the storage and
// the reconciler of the product. Instances are Nodes of a clientset in memory.
package servertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// ClusterID is the cluster of a server by default.
const ClusterID = "test"

// certificateTTL is longer than any test takes.
const certificateTTL = 24 * time.Hour

// Options configure a server. The zero value is valid.
type Options struct {
	// Cluster is the cluster's id. Default: ClusterID.
	Cluster string
	// Shard is the shard's id and zone. Default: us-west-2a.
	Shard string
	// ID is the id of the server. Default: 1. Servers of one cluster need different ids.
	ID string
	// Defaults is the value of this key of the configuration. Default: the userdata that
	// Nonce needs, with Agents.
	Defaults string
	// Advertise is the value of this key of the configuration. Default: nothing.
	Advertise string
	// Certificates has more entries of this key of the configuration, each with a comma.
	Certificates string
	// Templates, SubnetPools, DynamicSubnetPools, Groups, InstanceTypes and Quota
	// are the values of these keys of the configuration, in its own syntax.
	// Default: a template "worker", a pool "default", no limit on pools, no
	// groups, the built-in instance types and no quota.
	Templates          string
	SubnetPools        string
	DynamicSubnetPools string
	Groups             string
	InstanceTypes      string
	Quota              string
	// BootDelay is how long an instance is pending. Default: not at all.
	BootDelay time.Duration
	// DrainTimeout is the default of all groups, in the configuration's syntax.
	// Default: instances are deleted without a drain.
	DrainTimeout string
	// CertificateTTL is how long the certificates of operators are valid, in the
	// configuration's syntax. Default: a day.
	CertificateTTL string
	// Nameless leaves the shard out of the server's certificate.
	Nameless bool
	// Authority issues the certificates of the server and its clients. Default: a new
	// authority.
	Authority *pki.Authority
	// DataDir has storage and cache. Default: a new folder. To restart a server, pass its
	// own.
	DataDir string
	// SharedBucket is the Bucket of a server of another shard of the cluster. Default: a folder
	// in DataDir.
	SharedBucket string
	// Addr is the address for operators. Default: a free port. To restart a server,
	// pass its own.
	Addr string
	// HealthAddr is the address of /health, RegistrationAddr the address for clients without
	// a certificate, and AgentAddr the address for agents. Default: free ports.
	HealthAddr       string
	RegistrationAddr string
	AgentAddr        string
	// Agents makes instances run agents, which the test plays: an instance counts as running
	// when its agent has registered with Nonce, and reports. Default: instances run no
	// agents, and the server serves no agents.
	Agents bool
	// CheckSource makes agents register from the address of their machine, which is 10.0.0.7.
	CheckSource bool
	// VerifyIdentity makes agents register with a signed identity of their machine, and verifies it.
	VerifyIdentity func(identity []byte, audience string) error
	// Balancers are the load balancers of the provider, and LoadBalancers is the value of
	// this key of the configuration. Default: no load balancers.
	Balancers     *providertest.Balancers
	LoadBalancers string
	// LeaderNetwork is the value of this key of the configuration. Default: nothing.
	LeaderNetwork string
	// HealthCheckInterval is how often an agent reports, RegistrationTimeout how long an
	// instance without a registration is kept, and AgentCertificateTTL how long the
	// certificates of agents are valid, in the configuration's syntax. Default: the defaults
	// of the configuration, and a day.
	HealthCheckInterval string
	RegistrationTimeout string
	AgentCertificateTTL string
	// MaxCallsPerSecond is the value of this key of the configuration. Default: no test reaches it.
	MaxCallsPerSecond int
	// PollInterval is how often the server looks for changes in the storage. Default: the default of the
	// server. Without InMemory, the server reads its configuration only when a test requests it.
	PollInterval time.Duration
	// MinWriteInterval is the time that the storage needs between two writes of one object.
	MinWriteInterval time.Duration
	// InMemory keeps connections in memory, so that the server can run in a bubble of
	// synctest. It reads its configuration by the clock then.
	InMemory bool
	// Kubernetes has the Nodes. Default: a new clientset of kwoktest. To restart a server,
	// pass its own.
	Kubernetes kubernetes.Interface
	// Providers replaces the registry of the server, under the name of kwok. Default: kwok.
	Providers provider.Registry
	// Logger is the logger of the server. Default: a logger of the test.
	Logger *klog.Logger
}

// Server is a shard server that runs.
type Server struct {
	// Recorder has the calls that the server received.
	*Recorder
	// Addr is the address for operators, host:port.
	Addr string
	// HealthAddr is the address of /health and /metrics, host:port.
	HealthAddr string
	// RegistrationAddr is the address for clients without a certificate.
	RegistrationAddr string
	// AgentAddr is the address for agents, empty without them.
	AgentAddr string
	// ElectionAddr is the address for peers that query the leader.
	ElectionAddr string
	// Authority, DataDir and Kubernetes are the values of Options or their defaults.
	Authority  *pki.Authority
	DataDir    string
	Kubernetes kubernetes.Interface
	// Storage is the storage of the server.
	Storage storage.Store
	// Secrets are the secrets in the storage.
	Secrets secrets.Store

	t          testing.TB
	options    Options
	readConfig chan time.Time
	network    *network
	machines   *machines
	cancel     context.CancelFunc
	stopped    chan struct{}
	// err is the error that the server returned. It may be read once stopped is closed.
	err error
}

// Start starts a server and returns when it serves, and leads the cluster if it is the first of the
// cluster. It stops with the test.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := Prepare(t, o)
	s.Launch()
	s.UntilListening()
	s.UntilHealthy()
	if o.SharedBucket == "" {
		s.untilIssuing()
	}
	t.Cleanup(func() {
		s.Stop()
		if s.err != nil {
			t.Errorf("server: %v", s.err)
		}
	})
	return s
}

// Prepare returns a server that has its storage and its configuration and does
// not run.
func Prepare(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{
		Recorder:   &Recorder{},
		Authority:  o.Authority,
		DataDir:    cmp.Or(o.DataDir, t.TempDir()),
		Kubernetes: o.Kubernetes,
		t:          t,
		options:    o,
		readConfig: make(chan time.Time),
		network:    newNetwork(o.InMemory),
		machines:   &machines{userdata: map[string][]byte{}},
		cancel:     func() {},
		stopped:    make(chan struct{}),
	}
	if o.DataDir != "" {
		s.network.patience = time.Minute
	}
	if s.Kubernetes == nil {
		s.Kubernetes = kwoktest.NewClientset()
	}
	s.openStorage()
	s.writeFile(s.ConfigPath(), []byte(o.configuration(s.encryptionKeyPath())))
	return s
}

// Launch runs a prepared server, which stops with the test. Wait returns its
// error.
func (s *Server) Launch() {
	s.t.Helper()
	logger := ktesting.NewLogger(s.t, ktesting.NewConfig(ktesting.Verbosity(2)))
	if s.options.Logger != nil {
		logger = *s.options.Logger
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	s.cancel = cancel
	product := &server.Server{
		Shard:     s.options.shard(),
		ID:        cmp.Or(s.options.ID, "1"),
		Storage:   s.Storage,
		CacheDir:  filepath.Join(s.DataDir, "cache"),
		Providers: s.providers(),
		Listen:    s.network.listen,
		Nameless:  s.options.Nameless,

		MinWriteInterval: s.options.MinWriteInterval,
		PollInterval:     s.options.PollInterval,
		GRPCOptions: []grpc.ServerOption{
			grpc.ChainUnaryInterceptor(s.recordUnary),
			grpc.ChainStreamInterceptor(s.recordStream),
		},
	}
	if !s.options.InMemory {
		product.ReadConfig = s.readConfig
	}
	if s.options.Providers != nil {
		product.Providers = s.options.Providers
	}
	go func() {
		defer close(s.stopped)
		s.err = product.Run(ctx)
	}()
	s.t.Cleanup(s.Stop)
}

// Wait returns the error of the server when it has stopped.
func (s *Server) Wait() error {
	<-s.stopped
	return s.err
}

// UntilListening returns when the server has all its addresses. That is before
// it serves.
func (s *Server) UntilListening() {
	s.t.Helper()
	// In the order in which the server listens.
	addresses := []*string{&s.HealthAddr, &s.Addr, &s.RegistrationAddr}
	if s.options.Agents {
		addresses = append(addresses, &s.AgentAddr)
	}
	for _, address := range append(addresses, &s.ElectionAddr) {
		select {
		case *address = <-s.network.addresses:
		case <-s.stopped:
			s.t.Fatalf("the server stopped before it served: %v", s.err)
		}
	}
}

// UntilHealthy returns when the server leads and serves.
func (s *Server) UntilHealthy() {
	s.t.Helper()
	const timeout = time.Minute
	err := wait.PollUntilContextTimeout(context.Background(), 5*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		select {
		case <-s.stopped:
			return false, fmt.Errorf("the server stopped: %w", s.err)
		default:
		}
		code, _ := s.get(ctx, "/health")
		return code == http.StatusOK, nil
	})
	require.NoError(s.t, err, "waiting for the server")
}

// untilIssuing returns when the server leads the cluster, and so issues certificates of operators. A
// server is healthy when it leads its shard, which may be earlier.
func (s *Server) untilIssuing() {
	s.t.Helper()
	connection := s.connect(s.RegistrationAddr)
	defer func() { require.NoError(s.t, connection.Close()) }()
	client := nstancev1.NewRegistrationServiceClient(connection)
	err := wait.PollUntilContextTimeout(context.Background(), 5*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := client.RegisterOperator(metadata.AppendToOutgoingContext(ctx, unrecorded, "true"), &nstancev1.RegisterClientRequest{})
		return status.Code(err) == codes.Unauthenticated, nil
	})
	require.NoError(s.t, err, "waiting until the server leads the cluster")
}

// Get returns status code and body of a response of the health address, and 0 if it does not
// respond.
func (s *Server) Get(path string) (code int, body string) {
	s.t.Helper()
	return s.get(context.Background(), path)
}

func (s *Server) get(ctx context.Context, path string) (code int, body string) {
	s.t.Helper()
	// The connection is not kept.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: s.network.dial}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.HealthAddr+path, nil)
	require.NoError(s.t, err)
	response, err := client.Do(request)
	if err != nil {
		return 0, ""
	}
	data, readErr := io.ReadAll(response.Body)
	require.NoError(s.t, errors.Join(readErr, response.Body.Close()))
	return response.StatusCode, string(data)
}

// Stop stops the server as SIGTERM would and returns when it has stopped. It
// may be called again.
func (s *Server) Stop() {
	s.cancel()
	<-s.stopped
}

// Kill closes every connection at once, as if the process had died, and returns
// when the server has stopped.
func (s *Server) Kill() {
	s.network.drop()
	s.Stop()
}
