// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/tier"
)

// maxDelay is longer than QEMU takes to start.
const maxDelay = 500 * time.Millisecond

// TestServerIsKilledWithQEMU kills the server after each step from the request of an instance to
// its machine and when it starts QEMU, and then at random moments, at random steps in the
// storage, and when it starts QEMU, while the group grows and shrinks. QEMU was started for
// instances with a record only, once for each, and neither a process nor a folder is left.
func TestServerIsKilledWithQEMU(t *testing.T) {
	k, records := new(killer), new(recorded)
	host := newQEMUHost(t)
	s := newServer(t, options{
		cluster: "e2e", provider: "qemu", instanceType: "small", subnet: "local", userdata: userdata,
		providerOptions: host.options(object{"image": haltingImage(t), "agent": false, "shutdown_grace": "1s"}, "32Mi"),
		bindHost:        loopback, advertiseHost: guestHost, drainTimeout: "0s",
	}, &tap{killer: k, name: records.step, done: records.done})
	k.kill = s.kill
	o := newOperator(s)

	kills := killAtEachStep(t, s, o, k, []when{after}, []string{storeGroups, createRecord, storeProviderID}, 1)
	require.True(t, host.killAtStart(t, s, o, waitTimeout), "QEMU was not started")
	kills++
	random := rand.New(rand.NewPCG(tier.Seeds(t, 1)[0], 0))
	for ; kills < tier.Pick(6, 60); kills++ {
		switch random.IntN(3) {
		case 0:
			killAtStep(s, o, k, random, 6)
		case 1:
			host.killAtStart(t, s, o, pause)
		default:
			s.start()
			o.size.Store(int32(random.IntN(maxSize)))
			s.awaitExit(time.Duration(random.Int64N(int64(maxDelay))))
			s.kill()
		}
	}
	s.start()
	ids := o.scale(lastSize)
	assert.Equal(t, recordNames(t, ids), s.records(), "records")
	eventually(t, "only the machines of the group are left", func(context.Context) error { return host.expect(ids) })

	o.scale(0)
	assert.Empty(t, s.records(), "records")
	eventually(t, "no machine is left", func(context.Context) error { return host.expect(nil) })
	started := host.started(t)
	t.Logf("%d instances were recorded, QEMU was started for %d; steps: %v", len(records.list()), len(started), k.counts())
	assert.Subset(t, records.list(), recordNames(t, slices.Collect(maps.Keys(started))), "instances with a record, want all that had a machine")
	for id, count := range started {
		assert.Equal(t, 1, count, "starts of QEMU for instance %s", id)
	}
	assert.Greater(t, len(started), kills/10, "a test with few machines tests little")
}

// guestHost is the address of the host in the network of a guest
// (https://www.qemu.org/docs/master/system/devices/net.html).
const guestHost = "10.0.2.2"

// qemuHost has the machines of a server.
type qemuHost struct {
	dir string
	// starts is a file with the folder of each QEMU that was started. If the file kill exists, the
	// next start kills the server.
	starts, kill string
	binary       string
}

func newQEMUHost(t *testing.T) *qemuHost {
	t.Helper()
	skipUnlessEnabled(t)
	dir := t.TempDir()
	h := &qemuHost{dir: filepath.Join(dir, "machines"), starts: filepath.Join(dir, "starts"), kill: filepath.Join(dir, "kill"), binary: filepath.Join(dir, "qemu")}
	script := fmt.Sprintf("#!/bin/sh\necho \"$PWD\" >>'%s'\nif rm '%s' 2>/dev/null; then kill -9 $PPID; fi\nexec qemu-system-x86_64 \"$@\"\n",
		h.starts, h.kill)
	require.NoError(t, os.WriteFile(h.binary, []byte(script), 0o700))
	require.NoError(t, os.WriteFile(h.starts, nil, 0o600))
	t.Cleanup(func() {
		for _, process := range h.processes() {
			_ = process.Kill()
		}
	})
	return h
}

// options returns the options of the provider, and others.
func (h *qemuHost) options(others object, memory string) object {
	return merged(others, object{
		"dir": h.dir, "accel": "tcg", "binary": h.binary,
		"instance_types": object{"small": object{"cpu": "1", "memory": memory, "arch": "amd64"}},
	})
}

// folder returns the folder of an instance's machine.
func (h *qemuHost) folder(id string) string { return filepath.Join(h.dir, "e2e", shardID, id) }

// killAtStart lets the group grow and kills the server when it starts QEMU, or after a while. It
// reports whether QEMU was started: the group may have enough machines already.
func (h *qemuHost) killAtStart(t *testing.T, s *server, o *operator, limit time.Duration) bool {
	t.Helper()
	require.NoError(t, os.WriteFile(h.kill, nil, 0o600))
	s.start()
	o.size.Add(2)
	s.awaitExit(limit)
	s.kill()
	err := os.Remove(h.kill)
	if err != nil {
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	return err != nil
}

// expect returns an error unless exactly these instances have a machine: a folder and a
// process.
func (h *qemuHost) expect(ids []string) error {
	entries, err := os.ReadDir(h.folder(""))
	if err != nil {
		return err
	}
	var folders []string
	for _, entry := range entries {
		folders = append(folders, entry.Name())
	}
	slices.Sort(ids)
	running := slices.Sorted(maps.Keys(h.processes()))
	if !slices.Equal(folders, ids) || !slices.Equal(running, ids) {
		return fmt.Errorf("there are folders %v and processes of %v, want those of %v", folders, running, ids)
	}
	return nil
}

// processes returns the processes that run in the folders of machines, by the names of the
// folders.
func (h *qemuHost) processes() map[string]*os.Process {
	found := map[string]*os.Process{}
	paths, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is valid
	for _, path := range paths {
		folder, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(folder, h.dir+"/") {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d/cwd", &pid); err != nil {
			continue
		}
		if process, err := os.FindProcess(pid); err == nil {
			found[filepath.Base(folder)] = process
		}
	}
	return found
}

// started returns how often QEMU was started for each instance.
func (h *qemuHost) started(t *testing.T) map[string]int {
	t.Helper()
	data, err := os.ReadFile(h.starts)
	require.NoError(t, err)
	counts := map[string]int{}
	for folder := range strings.Lines(string(data)) {
		counts[filepath.Base(strings.TrimSpace(folder))]++
	}
	return counts
}

// haltingImage returns the image of a guest that halts its processor forever.
func haltingImage(t *testing.T) string {
	t.Helper()
	image := make([]byte, 2<<20)                // the BIOS boots no disk of less than a cylinder
	copy(image, []byte{0xfa, 0xf4, 0xeb, 0xfd}) // cli; hlt; jmp to hlt
	copy(image[510:], []byte{0x55, 0xaa})       // the signature of a boot sector
	path := filepath.Join(t.TempDir(), "halt.img")
	require.NoError(t, os.WriteFile(path, image, 0o600))
	return path
}
