// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage/file"
)

// Environment variables of a process that runs as a server instead of the tests.
const (
	machineEnv = "NETWORK_TEST_MACHINE"
	dirEnv     = "NETWORK_TEST_DIR"
	cloudEnv   = "NETWORK_TEST_CLOUD"
)

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

// remoteOptions are the options of kwok, for a machine in a cloud.
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
		Shard: leaderShard, ID: machine, Storage: store, CacheDir: filepath.Join(dir, "cache-"+machine),
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
