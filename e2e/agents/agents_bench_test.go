// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// Limits that fail the benchmark.
const (
	// maxMemory is the most resident memory that the leader may have, in MiB.
	maxMemory = 120
	// maxPush is how long 99 % of the agents may take to apply a change.
	maxPush = 10 * time.Second
	// idleReports is how many reports of each agent the idle server is measured for.
	idleReports = 5
	// pushes is how many changes are pushed.
	pushes = 5
)

// BenchmarkAgents measures the leader of a shard with 200 agents: what their registration
// at once, their reports and a change of their files cost, and how long it takes until all
// have applied a change.
func BenchmarkAgents(b *testing.B) {
	for b.Loop() {
		sh := startAgents(b, pushSettings(), fullAgents, fullInterval)
		sh.addPushed()
		b.ReportMetric(sh.memory(), "MiB-before")
		cpu, begin := sh.processorTime(), time.Now()
		sh.registrations.Heal()
		testcluster.EventuallyEvery(b, 50*time.Millisecond, timeout, "all agents are registered", func(context.Context) error {
			for _, record := range sh.records() {
				if record.Registration == nil {
					return errors.New(record.ID + " is not")
				}
			}
			return nil
		})
		b.ReportMetric(time.Since(begin).Seconds(), "storm-s")
		sh.untilSettled(begin)
		sh.untilApplied(sh.cloud.Existing())
		b.ReportMetric(sh.processorTime()-cpu, "storm-cpu-s")

		cpu, begin = sh.processorTime(), time.Now()
		// The test calls nothing while it measures.
		<-time.After(idleReports * fullInterval)
		used := sh.processorTime() - cpu
		b.ReportMetric(used/time.Since(begin).Seconds()*100, "idle-cpu-%")
		b.ReportMetric(used/(fullAgents*idleReports)*1000, "cpu-ms/report")
		sh.untilSettled(begin.Add((idleReports - 1) * fullInterval))
		memory := sh.memory()
		b.ReportMetric(memory, "MiB-agents")
		if memory > maxMemory {
			b.Errorf("%.0f MiB are resident, want at most %d", memory, maxMemory)
		}

		cpu = sh.processorTime()
		took := sh.push(pushes)
		b.ReportMetric((sh.processorTime()-cpu)/pushes, "push-cpu-s")
		slices.Sort(took)
		b.ReportMetric(took[len(took)/2].Seconds(), "push-median-s")
		p99 := took[len(took)*99/100]
		b.ReportMetric(p99.Seconds(), "push-p99-s")
		if p99 > maxPush {
			b.Errorf("99 %% of the agents have applied a change after %s, want at most %s", p99, maxPush)
		}
		sh.checkMade(fullAgents)
	}
}

// memory returns the resident memory of the leader, in MiB.
func (s *shard) memory() float64 {
	s.t.Helper()
	leader, err := s.leader()
	require.NoError(s.t, err)
	resident, _, err := leader.Memory()
	require.NoError(s.t, err)
	return resident
}

// processorTime returns how many seconds of processor time the leader has used.
func (s *shard) processorTime() float64 {
	s.t.Helper()
	leader, err := s.leader()
	require.NoError(s.t, err)
	url := "http://" + net.JoinHostPort(leader.host, strconv.Itoa(s.ports.health))
	seconds, err := installation.Metric(s.t.Context(), url, "process_cpu_seconds_total", nil)
	require.NoError(s.t, err)
	return seconds
}
