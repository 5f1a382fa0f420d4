// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package metrics measures the machine of an agent.
package metrics

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/prometheus/procfs"
	"google.golang.org/protobuf/proto"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Collector measures by what /proc contains.
type Collector struct {
	proc procfs.FS
	// networkInterface is empty if none is measured.
	networkInterface string
	// counters is whether counters of connections are configured.
	counters bool
	before   procfs.Stat
}

// New returns a collector that reads a folder such as /proc. counters is whether counters
// of connections are configured, which this version does not read.
func New(folder, networkInterface string, counters bool) (*Collector, error) {
	proc, err := procfs.NewFS(folder)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", folder, err)
	}
	c := &Collector{proc: proc, networkInterface: networkInterface, counters: counters}
	// The first report covers the time from now on.
	c.before, _ = proc.Stat()
	return c, nil
}

// Collect returns what can be measured. Usage of processors is that since the call before.
func (c *Collector) Collect() *nstancev1.Metrics {
	m := &nstancev1.Metrics{}
	c.processors(m)
	if memory, err := c.proc.Meminfo(); err == nil && memory.MemTotal != nil && memory.MemAvailable != nil && *memory.MemTotal > 0 {
		m.MemoryUsage = proto.Float64(100 * (1 - float64(*memory.MemAvailable)/float64(*memory.MemTotal)))
	}
	if c.networkInterface != "" {
		c.network(m)
	}
	c.conntrack(m)
	if c.counters {
		m.EbpfError = proto.String("this agent does not read counters of connections")
	}
	return m
}

func (c *Collector) processors(m *nstancev1.Metrics) {
	now, err := c.proc.Stat()
	if err != nil {
		return
	}
	if usage, ok := usage(c.before.CPUTotal, now.CPUTotal); ok {
		m.CpuUsage = proto.Float64(usage)
		for _, core := range slices.Sorted(maps.Keys(now.CPU)) {
			// A core that was just added, or did not run, counts as idle.
			usage, _ := usageOfCore(c.before.CPU, now.CPU, core)
			m.CpuCoreUsage = append(m.CpuCoreUsage, usage)
		}
	}
	c.before = now
}

func usageOfCore(before, now map[int64]procfs.CPUStat, core int64) (float64, bool) {
	first, ok := before[core]
	if !ok {
		return 0, false
	}
	return usage(first, now[core])
}

// usage returns the percentage of the time between two measurements that was used, and
// whether any time passed.
func usage(before, now procfs.CPUStat) (float64, bool) {
	total := total(now) - total(before)
	if total <= 0 {
		return 0, false
	}
	idle := now.Idle + now.Iowait - before.Idle - before.Iowait
	// The kernel's counters of idle time may go back a little.
	return min(100, max(0, 100*(1-idle/total))), true
}

// total returns all time. That of guests is part of the user's.
func total(s procfs.CPUStat) float64 {
	return s.User + s.Nice + s.System + s.Idle + s.Iowait + s.IRQ + s.SoftIRQ + s.Steal
}

func (c *Collector) network(m *nstancev1.Metrics) {
	devices, err := c.proc.NetDev()
	line, ok := devices[c.networkInterface]
	switch {
	case err != nil:
		m.NetworkInterfaceError = proto.String(err.Error())
	case !ok:
		m.NetworkInterfaceError = proto.String(fmt.Sprintf("there is no interface %q", c.networkInterface))
	default:
		m.NetworkInterface = &nstancev1.InterfaceMetrics{
			InterfaceName: c.networkInterface,
			RxBytes:       line.RxBytes,
			TxBytes:       line.TxBytes,
			RxPackets:     line.RxPackets,
			TxPackets:     line.TxPackets,
			RxDrops:       line.RxDropped,
			TxDrops:       line.TxDropped,
		}
	}
}

func (c *Collector) conntrack(m *nstancev1.Metrics) {
	count, err := c.sysctl("net.netfilter.nf_conntrack_count")
	if errors.Is(err, fs.ErrNotExist) {
		m.ConntrackError = proto.String("connection tracking is not loaded")
		return
	}
	maximum, maximumErr := c.sysctl("net.netfilter.nf_conntrack_max")
	if err := errors.Join(err, maximumErr); err != nil {
		m.ConntrackError = proto.String(err.Error())
		return
	}
	m.ConntrackCount, m.ConntrackMax = proto.Uint64(count), proto.Uint64(maximum)
}

func (c *Collector) sysctl(name string) (uint64, error) {
	values, err := c.proc.SysctlInts(name)
	if err != nil {
		return 0, err
	}
	if len(values) != 1 || values[0] < 0 {
		return 0, fmt.Errorf("sysctl %s has the values %v, needs one", name, values)
	}
	return uint64(values[0]), nil
}
