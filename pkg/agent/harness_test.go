// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/agent"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// withAgents has a static group "main" of one instance.
func withAgents() servertest.Options {
	return servertest.Options{Agents: true, Groups: `{"default": {"main": {"template": "worker", "size": 1}}}`}
}

// instanceOf returns the id of the only instance of a server, once it was created.
func instanceOf(t *testing.T, s *servertest.Server) string {
	t.Helper()
	var id string
	runtest.Eventually(t, "an instance was created", func() bool {
		for id = range s.Created() {
			return true
		}
		return false
	})
	return id
}

// again returns the options of a server that replaces the stopped server s, with its data
// and addresses.
func again(o servertest.Options, s *servertest.Server) servertest.Options {
	o.DataDir, o.Kubernetes, o.Authority = s.DataDir, s.Kubernetes, s.Authority
	o.AgentAddr, o.RegistrationAddr = s.AgentAddr, s.RegistrationAddr
	return o
}

// machine is the folders, the options and the log of an agent.
type machine struct {
	t       *testing.T
	folder  string
	nonce   string
	Options *agent.Options
	stop    func()
	log     ktesting.Buffer
}

// newMachine returns what userdata has prepared for the only instance of a server.
func newMachine(t *testing.T, s *servertest.Server) *machine {
	t.Helper()
	return newMachineFor(t, s, instanceOf(t, s))
}

// newMachineFor returns what userdata has prepared for an instance.
func newMachineFor(t *testing.T, s *servertest.Server, id string) *machine {
	t.Helper()
	m := &machine{t: t, folder: t.TempDir(), Options: agent.DefaultOptions(), stop: func() {}}
	m.Options.InstanceID = id
	m.Options.RegistrationAddress = s.RegistrationAddr
	m.Options.AgentAddress = s.AgentAddr
	m.Options.IdentityFolder = filepath.Join(m.folder, "identity")
	m.Options.KeysFolder = filepath.Join(m.folder, "keys")
	m.Options.ReceiveFolder = filepath.Join(m.folder, "recv")
	m.write("identity/ca.crt", s.Authority.CertificatePEM())
	m.nonce = s.Nonce(m.Options.InstanceID)
	m.write("identity/nonce.jwt", []byte(m.nonce))
	return m
}

func (m *machine) write(name string, content []byte) {
	m.t.Helper()
	path := filepath.Join(m.folder, name)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(m.t, os.WriteFile(path, content, 0o600))
}

func (m *machine) read(name string) []byte {
	m.t.Helper()
	content, err := os.ReadFile(filepath.Join(m.folder, name))
	require.NoError(m.t, err)
	return content
}

func (m *machine) has(name string) bool {
	_, err := os.Stat(filepath.Join(m.folder, name))
	return err == nil
}

// start runs the agent until stop, or the end of the test. Its log must not have secrets.
func (m *machine) start() {
	m.t.Helper()
	require.NoError(m.t, m.Options.Validate())
	logger := ktesting.NewLogger(m.t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	log := logger.GetSink().(ktesting.Underlier).GetBuffer()
	m.log = log
	m.stop = runtest.Start(m.t, func(ctx context.Context) {
		if err := agent.Run(klog.NewContext(ctx, logger), m.Options); err != nil {
			m.t.Errorf("agent: %v", err)
		}
	})
	m.t.Cleanup(func() {
		m.stop()
		for _, secret := range []string{m.nonce, "PRIVATE KEY"} {
			if strings.Contains(log.String(), secret) {
				m.t.Errorf("the log has %q", secret)
			}
		}
	})
}

// status returns the status of the instance at the server.
func (m *machine) status(s *servertest.Server) *nstancev1.InstanceStatusResponse {
	m.t.Helper()
	status, err := s.Operator("default").GetInstanceStatus(m.t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: m.Options.InstanceID})
	require.NoError(m.t, err)
	return status
}

// untilReport waits until a report has arrived after a time.
func (m *machine) untilReport(s *servertest.Server, after time.Time) {
	m.t.Helper()
	operator := s.Operator("default")
	runtest.Eventually(m.t, "the server receives a report", func() bool {
		status, err := operator.GetInstanceStatus(m.t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: m.Options.InstanceID})
		return err == nil && status.GetStatus() == "running" && status.GetLastSeen().AsTime().After(after)
	})
}

// registration returns the registration in the record of the instance, nil if it is not
// registered.
func (m *machine) registration(s *servertest.Server) *instance.Registration {
	m.t.Helper()
	id, err := puidv7.Parse(m.Options.InstanceID)
	require.NoError(m.t, err)
	var record instance.Record
	require.NoError(m.t, json.Unmarshal(s.ReadFile(storage.InstanceKey("us-west-2a", "default", id.StorageKey())), &record))
	return record.Registration
}

// relay forwards connections to an address. cut is called with the number of received
// bytes. When it first returns true, the relay forwards nothing more on that connection,
// and closes it when lost returns true.
type relay struct {
	cut    func(bytes int) bool
	lost   func() bool
	closed atomic.Bool
}

func (r *relay) listen(t *testing.T, target string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { r.forward(client, target) })
		}
	})
	return listener.Addr().String()
}

func (r *relay) forward(client net.Conn, target string) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := server.Read(buffer)
		if r.cut(n) && r.closed.CompareAndSwap(false, true) {
			for !r.lost() {
				runtime.Gosched()
			}
			return
		}
		if _, writeErr := io.Copy(client, bytes.NewReader(buffer[:n])); errors.Join(err, writeErr) != nil {
			return
		}
	}
}

// freeAddress returns an address that was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}
