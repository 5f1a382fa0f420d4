// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/runtest"
	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage/file"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Environment variables of a process that runs as a server instead of the tests.
const (
	machineEnv = "NETWORK_TEST_MACHINE"
	dirEnv     = "NETWORK_TEST_DIR"
	cloudEnv   = "NETWORK_TEST_CLOUD"
)

// leaderAddress is the address of the leader. Only the certificate of the servers has it:
// the network of the test leads to the machine that has it in the cloud.
const leaderAddress = "192.0.2.10"

func TestMain(m *testing.M) {
	if machine := os.Getenv(machineEnv); machine != "" {
		if err := runMachine(machine, os.Getenv(dirEnv), os.Getenv(cloudEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// remoteOptions are those of kwok, for a machine in a cloud.
type remoteOptions struct {
	providertest.NetworkOptions
	cloud string
}

func (o remoteOptions) NewLeaderNetwork(provider.Shard) (provider.LeaderNetwork, error) {
	return providertest.RemoteMachine(o.cloud, o.Name, 100*time.Millisecond), nil
}

// runMachine is a server that runs until its standard input is closed. It prints the
// address for operators.
func runMachine(machine, dir, cloud string) error {
	store, err := file.Open(filepath.Join(dir, "bucket"))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	kubernetes := kwoktest.NewClientset()
	s := &server.Server{
		Shard: "us-west-2a", ID: machine, Storage: store, CacheDir: filepath.Join(dir, "cache-"+machine),
		Providers: provider.Registry{kwoktest.Name: func(o *jsonc.Object) provider.Options {
			options := kwoktest.Providers(kubernetes)[kwoktest.Name](o)
			return remoteOptions{providertest.NetworkOptions{Options: options, Name: machine}, cloud}
		}},
		Listen: func(ctx context.Context, address string) (net.Listener, error) {
			listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
			if err == nil && strings.HasSuffix(address, ":8993") {
				fmt.Println(listener.Addr())
			}
			return listener, err
		},
	}
	return s.Run(ctx)
}

// machine is a server that runs in its own process.
type machine struct {
	cmd   *exec.Cmd
	stdin io.Closer
	log   *safeBuffer
	// addr is the address for operators.
	addr string
}

// safeBuffer is a buffer that is written and read at the same time.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func startMachine(t *testing.T, name, dir, cloud string) *machine {
	t.Helper()
	m := &machine{cmd: exec.Command(os.Args[0]), log: &safeBuffer{}}
	m.cmd.Env = append(os.Environ(), machineEnv+"="+name, dirEnv+"="+dir, cloudEnv+"="+cloud)
	m.cmd.Stderr = m.log
	var err error
	m.stdin, err = m.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := m.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, m.cmd.Start())
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		if t.Failed() {
			t.Logf("machine %s has logged:\n%s", name, m.log)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err, "the address of machine %s", name)
	m.addr = strings.TrimSpace(line)
	return m
}

func (m *machine) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	require.NoError(t, m.cmd.Process.Signal(signal))
}

// ipNetwork carries the connections to the address of the leader to the machine that has
// it. When another machine gets it, the connections to the one before break.
type ipNetwork struct {
	t        *testing.T
	cloud    *providertest.NetworkCloud
	machines map[string]*machine
	// dials counts the connections of clients.
	dials atomic.Int32
}

func (n *ipNetwork) dial(ctx context.Context, _ string) (net.Conn, error) { //nolint:contextcheck // the connection outlives ctx
	n.dials.Add(1)
	owner := ""
	for owner == "" {
		// Packets are lost while no machine has the address.
		if owner = n.cloud.Owner(); owner == "" {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", n.machines[owner].addr)
	if err != nil {
		return nil, err
	}
	done := n.t.Context()
	go func() {
		for done.Err() == nil {
			if now := n.cloud.Owner(); now != "" && now != owner {
				_ = conn.Close()
				return
			}
			select {
			case <-done.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return conn, nil
}

// TestTheAddressFollowsTheLeader pauses the leader of two servers. The other one gets the
// address, and the client's stream follows with one connection. When the first one
// continues, it takes nothing back.
func TestTheAddressFollowsTheLeader(t *testing.T) {
	prepared := servertest.Prepare(t, servertest.Options{
		HealthAddr: "127.0.0.1:8990", RegistrationAddr: "0.0.0.0:8992", Addr: "0.0.0.0:8993",
		LeaderNetwork: `{"ip": "` + leaderAddress + `", "interface_id": "eni-1"}`,
		Groups:        `{"default": {"main": {"template": "worker", "size": 0}}}`,
	})
	text, err := os.ReadFile(prepared.ConfigPath())
	require.NoError(t, err)
	election := `"leader_election": {"interval": "1s", "timeout": "6s"}, "default_drain_timeout"`
	require.NoError(t, os.WriteFile(prepared.ConfigPath(), bytes.Replace(text, []byte(`"default_drain_timeout"`), []byte(election), 1), 0o600))

	cloud := providertest.NewNetworkCloud()
	api := httptest.NewServer(cloud)
	defer api.Close()
	network := &ipNetwork{t: t, cloud: cloud, machines: map[string]*machine{}}
	for _, name := range []string{"a", "b"} {
		network.machines[name] = startMachine(t, name, prepared.DataDir, api.URL)
		runtest.Eventually(t, "a machine has the address", func() bool { return cloud.Owner() == "a" })
	}

	certificate, key, err := prepared.Authority.IssueClient(pki.Client{ID: "client", Tenant: "default", Role: pki.RoleOperator}, time.Hour)
	require.NoError(t, err)
	connection, err := grpc.NewClient("passthrough:///"+leaderAddress+":8993", grpc.WithContextDialer(network.dial),
		grpc.WithTransportCredentials(credentials.NewTLS(clientTLS(t, prepared.Authority, certificate, key))))
	require.NoError(t, err)
	defer connection.Close()
	operator := nstancev1.NewOperatorServiceClient(connection)
	var stream grpc.ServerStreamingClient[nstancev1.GroupEvent]
	follow := func() {
		t.Helper()
		runtest.Eventually(t, "the leader serves a stream", func() bool {
			var err error
			if stream, err = operator.WatchGroups(t.Context(), &emptypb.Empty{}, grpc.WaitForReady(true)); err == nil {
				_, err = stream.Recv()
			}
			return err == nil
		})
	}
	follow()
	require.EqualValues(t, 1, network.dials.Load())

	a, b := network.machines["a"], network.machines["b"]
	pauseWithoutLock(t, prepared, a)
	_, err = stream.Recv()
	require.Error(t, err, "the stream of the leader before")
	follow()
	assert.EqualValues(t, 2, network.dials.Load(), "connections of the client")
	assert.Equal(t, []string{"a", "b"}, cloud.Owners())

	cloud.Changes()
	var tried atomic.Int32
	cloud.Changing = func() { tried.Add(1) }
	a.signal(t, syscall.SIGCONT)
	runtest.Eventually(t, "the first leader has noticed that it does not lead", func() bool {
		return strings.Contains(a.log.String(), "Released the address of the leader")
	})
	assert.Zero(t, tried.Load(), "calls for changes by the server that was paused")
	assert.Equal(t, "b", cloud.Owner())

	// An orderly end releases the address, and the other server gets it.
	require.NoError(t, b.stdin.Close())
	_, err = stream.Recv()
	require.Error(t, err)
	follow()
	assert.Equal(t, []string{"a", "b", "a"}, cloud.Owners())
	assert.Contains(t, b.log.String(), "Released the address of the leader")
	require.NoError(t, b.cmd.Wait())
}

// pauseWithoutLock pauses a server while it has no lock of the storage, whose folders no
// other server could write to.
func pauseWithoutLock(t *testing.T, s *servertest.Server, m *machine) {
	t.Helper()
	for attempt := range 20 {
		m.signal(t, syscall.SIGSTOP)
		free := true
		for _, folder := range []string{"", "leader/", "groups/", "accepted/", "instance/"} {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			_, err := s.Storage.Create(ctx, fmt.Sprintf("%sprobe-%d", folder, attempt), nil)
			cancel()
			free = free && err == nil
		}
		if free {
			return
		}
		m.signal(t, syscall.SIGCONT)
	}
	t.Fatal("the server could not be paused")
}

func clientTLS(t *testing.T, authority *pki.Authority, certificatePEM, keyPEM []byte) *tls.Config {
	t.Helper()
	pair, err := tls.X509KeyPair(certificatePEM, keyPEM)
	require.NoError(t, err)
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pkitest.Roots(authority), ServerName: leaderAddress, Certificates: []tls.Certificate{pair}}
}
