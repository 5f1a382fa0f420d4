// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

var workers = instance.GroupKey{Tenant: "default", Group: "workers"}

// startMonitor returns the path of a socket on which every QEMU of a test answers that its
// guest runs. It is started outside of bubbles, whose time does not pass while it accepts.
func startMonitor(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "qmp")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answer(conn)
		}
	}()
	return path
}

func answer(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write([]byte(`{"QMP": {}}` + "\n"))
	var command struct{ Execute string }
	for decoder := json.NewDecoder(conn); decoder.Decode(&command) == nil; {
		_, _ = conn.Write([]byte(`{"return": {"status": "running"}}` + "\n"))
	}
}

// host has the calls for machines without QEMU: their folders are locked by the test, as if
// QEMU ran.
type host struct {
	*API
	t       *testing.T
	monitor string
	locks   map[string]*os.File
	made    atomic.Int32
	writes  atomic.Int32
}

// Launch writes the files of a machine that runs.
func (h *host) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	h.writes.Add(1)
	f := h.folders.of(r.ID)
	lock, _, err := h.claim(ctx, f)
	if err != nil {
		return cloud.VM{}, err
	}
	require.NoError(h.t, h.reserve(f, r.Spec))
	require.NoError(h.t, os.Symlink(h.monitor, f.file(socketFile)))
	require.NoError(h.t, f.writeLaunched())
	h.locks[r.ID] = lock
	h.made.Add(1)
	m, _, err := h.inspect(ctx, f)
	return m, err
}

func (h *host) Terminate(ctx context.Context, list []cloud.VM) map[string]error {
	h.writes.Add(1)
	return h.API.Terminate(ctx, list)
}

// Limits allows one launch at a time.
func (h *host) Limits() cloud.Limits {
	limits := h.API.Limits()
	limits.Launches = 1
	return limits
}

// takeWrites returns how many launches and terminations there were since the last time.
func (h *host) takeWrites() map[string]int {
	if writes := h.writes.Swap(0); writes > 0 {
		return map[string]int{"launch or terminate": int(writes)}
	}
	return nil
}

// remove deletes a machine, like an administrator.
func (h *host) remove(id string) {
	require.NoError(h.t, h.locks[id].Close())
	require.NoError(h.t, h.folders.of(id).remove())
}

// inHost runs a test in a bubble of synctest.
func inHost(t *testing.T, test func(*testing.T, *host)) {
	monitor := startMonitor(t)
	dir := filepath.Join(t.TempDir(), "machines")
	require.NoError(t, os.Mkdir(dir, 0o700))
	synctest.Test(t, func(t *testing.T) {
		h := &host{API: NewAPI(&Options{Dir: dir}, testShard), t: t, monitor: monitor, locks: map[string]*os.File{}}
		test(t, h)
		for _, lock := range h.locks {
			_ = lock.Close()
		}
	})
}

func (h *host) startProvider() *providertest.Harness {
	return providertest.Start(h.t, func(callContext provider.CallContextFunc) provider.Provider {
		return cloud.New(h, cloud.Options{CallContext: callContext})
	})
}

func hostSpec() provider.Spec {
	return provider.Spec{Group: workers, Kind: "knd", Type: testType, Subnet: "subnet", CreatedAt: time.Now(), Userdata: []byte("userdata")}
}

// TestAnOutage: for ten minutes the folders cannot be read. No instance changes its state or
// is terminated. Afterwards an instance that has vanished is missing. There is no service
// that could respond wrongly: if QEMU does not respond, its VM hangs.
func TestAnOutage(t *testing.T) {
	for name, fault := range map[string]func(h *host) (end func()){
		"the file system is missing": func(h *host) func() {
			away := h.folders.root + ".away"
			require.NoError(h.t, os.Rename(h.folders.root, away))
			return func() { require.NoError(h.t, os.Rename(away, h.folders.root)) }
		},
		"the folders are no folders": func(h *host) func() {
			away := h.folders.path + ".away"
			require.NoError(h.t, os.Rename(h.folders.path, away))
			require.NoError(h.t, os.WriteFile(h.folders.path, nil, 0o600))
			return func() {
				require.NoError(h.t, os.Remove(h.folders.path))
				require.NoError(h.t, os.Rename(away, h.folders.path))
			}
		},
		"the identities are damaged": func(h *host) func() {
			identities := map[string][]byte{}
			for id := range h.locks {
				file := h.folders.of(id).file(identityFile)
				content, err := os.ReadFile(file)
				require.NoError(h.t, err)
				identities[file] = content
				require.NoError(h.t, os.WriteFile(file, content[:10], 0o600))
			}
			return func() {
				for file, content := range identities {
					if _, err := os.Stat(file); err == nil {
						require.NoError(h.t, os.WriteFile(file, content, 0o600))
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inHost(t, func(t *testing.T, h *host) {
				var end func()
				var vanished string
				cloudtest.Outage{
					Start: h.startProvider,
					Spec:  hostSpec(),
					Begin: func() {
						end = fault(h)
						list, err := h.List(t.Context())
						require.True(t, err != nil || len(list) == len(h.locks), "a list that is not complete")
						for _, vm := range list {
							assert.NotEmpty(t, vm.Unidentified)
						}
					},
					Delete: func(id string) { vanished = id },
					End: func() {
						end()
						h.remove(vanished)
					},
					Calls:  h.takeWrites,
					IsRead: func(string) bool { return false },
					Made:   func() int { return int(h.made.Load()) },
				}.Test(t)
			})
		})
	}
}

// TestNothingIsKnownWithoutTheFileSystem: a machine is not missing, and a launch does not
// create the folder of all machines again.
func TestNothingIsKnownWithoutTheFileSystem(t *testing.T) {
	api := NewAPI(&Options{Dir: filepath.Join(t.TempDir(), "missing"), Boot: Boot{Image: os.DevNull}}, testShard)
	_, _, err := api.Find(t.Context(), request(t).ID)
	require.ErrorIs(t, err, syscall.ENOENT)
	_, err = api.Launch(t.Context(), request(t))
	require.ErrorIs(t, err, syscall.ENOENT)
	_, err = os.Stat(api.folders.root)
	assert.ErrorIs(t, err, syscall.ENOENT)
}

// TestADeletionThatFindsNoFolder proves nothing.
func TestADeletionThatFindsNoFolder(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id := providertest.NewID(t)
		require.ErrorIs(t, h.Terminate(t.Context(), []cloud.VM{{ID: id}})[id], cloud.ErrNotFound)
		p := h.startProvider()
		id = p.MustRun(hostSpec())
		away := h.folders.root + ".away"
		require.NoError(t, os.Rename(h.folders.root, away))
		p.MustDelete(id)
		time.Sleep(10 * time.Minute)
		assert.Equal(t, map[string]instance.State{id: instance.Terminating}, p.States(workers))
		require.NoError(t, os.Rename(away, h.folders.root))
		time.Sleep(5 * time.Minute)
		_, err := os.Stat(h.folders.of(id).file(deletionFile))
		assert.NoError(t, err, "the deletion is stored")
	})
}
