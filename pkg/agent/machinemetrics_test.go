// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// proc is a folder such as /proc.
type proc struct {
	t      *testing.T
	folder string
}

func newProc(t *testing.T) proc {
	t.Helper()
	p := proc{t, t.TempDir()}
	p.write("stat", "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 50 0 50 400 0 0 0 0 0 0\ncpu1 50 0 50 400 0 0 0 0 0 0\nbtime 1\n")
	p.write("meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 250 kB\n")
	p.write("net/dev", "Inter-|   Receive                                                |  Transmit\n"+
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"+
		"  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n")
	return p
}

func (p proc) write(name, content string) {
	p.t.Helper()
	path := filepath.Join(p.folder, name)
	require.NoError(p.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(p.t, os.WriteFile(path, []byte(content), 0o644))
}

func TestMetricsAreThoseOfTheMachine(t *testing.T) {
	p := newProc(t)
	p.write("sys/net/netfilter/nf_conntrack_count", "7\n")
	p.write("sys/net/netfilter/nf_conntrack_max", "262144\n")
	c, err := newCollector(p.folder, "eth0", false)
	require.NoError(t, err)
	m := c.Collect()
	assert.Nil(t, m.CpuUsage, "no time has passed")
	assert.InDelta(t, 75, m.GetMemoryUsage(), 1e-9)
	network := m.GetNetworkInterface()
	assert.Equal(t, "eth0", network.GetInterfaceName())
	assert.Equal(t, []uint64{1, 2, 4, 9, 10, 12}, []uint64{
		network.GetRxBytes(), network.GetRxPackets(), network.GetRxDrops(), network.GetTxBytes(), network.GetTxPackets(), network.GetTxDrops(),
	})
	assert.EqualValues(t, 7, m.GetConntrackCount())
	assert.EqualValues(t, 262144, m.GetConntrackMax())
	assert.Nil(t, m.ConntrackError)
	assert.Nil(t, m.NetworkInterfaceError)
	assert.Nil(t, m.EbpfError)

	// 200 ticks have passed: 20 user (guest is part of user), 30 irq, softirq and steal, 150
	// idle and iowait. A core was added.
	p.write("stat", "cpu  120 0 100 900 50 10 10 10 20 0\ncpu0 70 0 50 480 0 0 0 0 0 0\ncpu1 50 0 50 400 0 0 0 0 0 0\ncpu2 9 0 0 9 0 0 0 0 0 0\n")
	m = c.Collect()
	assert.InDelta(t, 25, m.GetCpuUsage(), 1e-9)
	assert.InDeltaSlice(t, []float64{20, 0, 0}, m.GetCpuCoreUsage(), 1e-9)
}

func TestWhatCannotBeMeasuredIsMissingWithAReason(t *testing.T) {
	p := newProc(t)
	c, err := newCollector(p.folder, "eth7", true)
	require.NoError(t, err)
	m := c.Collect()
	assert.Nil(t, m.NetworkInterface)
	assert.Equal(t, `there is no interface "eth7"`, m.GetNetworkInterfaceError())
	assert.Nil(t, m.ConntrackCount)
	assert.Equal(t, "connection tracking is not loaded", m.GetConntrackError())
	assert.NotEmpty(t, m.GetEbpfError())

	p.write("sys/net/netfilter/nf_conntrack_count", "many\n")
	for _, name := range []string{"stat", "meminfo", "net/dev"} {
		p.write(name, "x y z\n")
	}
	m = c.Collect()
	assert.Nil(t, m.CpuUsage)
	assert.Nil(t, m.MemoryUsage)
	assert.NotEmpty(t, m.GetNetworkInterfaceError())
	assert.NotEmpty(t, m.GetConntrackError())

	c, err = newCollector(p.folder, "", false)
	require.NoError(t, err)
	m = c.Collect()
	assert.Nil(t, m.NetworkInterface)
	assert.Nil(t, m.NetworkInterfaceError, "no interface is configured")
}

// The real /proc has what is needed.
func TestThisMachine(t *testing.T) {
	c, err := newCollector("/proc", "lo", false)
	require.NoError(t, err)
	m := c.Collect()
	assert.Greater(t, m.GetMemoryUsage(), 0.0)
	assert.Less(t, m.GetMemoryUsage(), 100.0)
	assert.Equal(t, "lo", m.GetNetworkInterface().GetInterfaceName())
	stat, err := c.proc.Stat()
	require.NoError(t, err)
	assert.NotEmpty(t, maps.Collect(maps.All(stat.CPU)))
}
