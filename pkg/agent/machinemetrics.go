// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent

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

// collector measures the machine by reading /proc.
type collector struct {
	proc procfs.FS
	// networkInterface is the measured interface, or empty.
	networkInterface string
	// counters is true if --ebpf-counters-path is set.
	counters bool
	before   procfs.Stat
}

// newCollector returns a collector that reads a folder such as /proc. counters is true if
// counters of connections are configured, which this agent does not read.
func newCollector(folder, networkInterface string, counters bool) (*collector, error) {
	proc, err := procfs.NewFS(folder)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", folder, err)
	}
	c := &collector{proc: proc, networkInterface: networkInterface, counters: counters}
	// The first report covers the time since the start of the process.
	c.before, _ = proc.Stat()
	return c, nil
}

// Collect returns every metric that can be measured. The usage of processors is an average
// since the previous call.
func (c *collector) Collect() *nstancev1.Metrics {
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

func (c *collector) processors(m *nstancev1.Metrics) {
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

// usage returns which percentage of the processor time between two measurements was not
// idle, and whether any time passed.
func usage(before, now procfs.CPUStat) (float64, bool) {
	total := total(now) - total(before)
	if total <= 0 {
		return 0, false
	}
	idle := now.Idle + now.Iowait - before.Idle - before.Iowait
	// The iowait counter may decrease (https://docs.kernel.org/filesystems/proc.html).
	return min(100, max(0, 100*(1-idle/total))), true
}

// total returns the sum of all states. User already contains Guest, and Nice contains
// GuestNice (https://man7.org/linux/man-pages/man5/proc_stat.5.html).
func total(s procfs.CPUStat) float64 {
	return s.User + s.Nice + s.System + s.Idle + s.Iowait + s.IRQ + s.SoftIRQ + s.Steal
}

func (c *collector) network(m *nstancev1.Metrics) {
	devices, err := c.proc.NetDev()
	line, ok := devices[c.networkInterface]
	switch {
	case err != nil:
		m.NetworkInterfaceError = proto.String(validText(err.Error()))
	case !ok:
		m.NetworkInterfaceError = proto.String(fmt.Sprintf("there is no interface %q", c.networkInterface))
	default:
		m.NetworkInterface = &nstancev1.InterfaceMetrics{
			InterfaceName: validText(c.networkInterface),
			RxBytes:       line.RxBytes,
			TxBytes:       line.TxBytes,
			RxPackets:     line.RxPackets,
			TxPackets:     line.TxPackets,
			RxDrops:       line.RxDropped,
			TxDrops:       line.TxDropped,
		}
	}
}

func (c *collector) conntrack(m *nstancev1.Metrics) {
	count, err := c.sysctl("net.netfilter.nf_conntrack_count")
	if errors.Is(err, fs.ErrNotExist) {
		m.ConntrackError = proto.String("connection tracking is not loaded")
		return
	}
	maximum, maximumErr := c.sysctl("net.netfilter.nf_conntrack_max")
	if err := errors.Join(err, maximumErr); err != nil {
		m.ConntrackError = proto.String(validText(err.Error()))
		return
	}
	m.ConntrackCount, m.ConntrackMax = proto.Uint64(count), proto.Uint64(maximum)
}

func (c *collector) sysctl(name string) (uint64, error) {
	values, err := c.proc.SysctlInts(name)
	if err != nil {
		return 0, err
	}
	if len(values) != 1 || values[0] < 0 {
		return 0, fmt.Errorf("sysctl %s has the values %v, needs one", name, values)
	}
	return uint64(values[0]), nil
}
