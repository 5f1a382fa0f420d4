// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storetest

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// Node is a node of the store, in the Pod with its ordinal.
type Node struct {
	UID         int
	Ordinal     int32
	Terminating bool
	// Revision is the revision of the template that the Pod was created from.
	Revision string
	// Factor is the number of copies that the node was started with.
	Factor int
	// Silent is the number of seconds for which the node will not report metrics.
	Silent int
	// Commands is the number of executed commands.
	Commands float64
	// Rounds counts the rounds that have begun. Repaired counts the records that rounds have
	// brought to the node, Bootstraps the partitions that it has bootstrapped, BootstrapBytes
	// what it has sent to nodes that bootstrap.
	Rounds, Repaired, Bootstraps, BootstrapBytes int64

	// readyIn, endsIn and fresh are the seconds until the node has started, until it is
	// deleted, and until it first refreshes its metrics.
	readyIn, endsIn, fresh int
	roundIn                int
	// stuck is true if the node never starts, because its volume is lost.
	stuck bool

	volume *Volume
	// active is true when the node has joined. returning is true if its volume was in use
	// before.
	active, returning bool
	// bootstrapped has the partitions that were bootstrapped, which is not done twice.
	bootstrapped [Partitions]bool
}

// Moved returns a counter that rises while copies move to or from the node.
func (n *Node) Moved() int64 { return n.Repaired + n.Bootstraps + n.BootstrapBytes }

func (n *Node) activate() { n.active, n.volume.active = true, true }

// Active reports whether the node has joined.
func (n *Node) Active() bool { return n.active }

// Ready reports whether the node has started and joined.
func (n *Node) Ready() bool { return n.readyIn == 0 && n.active }

func (n *Node) started() bool { return n.readyIn == 0 && !n.Terminating }

func (n *Node) online() bool { return n.Ready() && !n.Terminating }

// Report has the metrics of a node.
type Report struct {
	Members, Underreplicated, EffectiveReplicas, Joining int64
	Rounds, Repaired, Bootstraps, BootstrapBytes         int64
}

// allPartitions is the number of partitions of the store.
const allPartitions = 4096

// Report returns the metrics of a node that sees members, of which some are active. Copies are
// counted by the active members, not by the data, and up to the factor of the node itself
// (marekvs-cluster/src/lib.rs:368-386).
func (d *Data) Report(n *Node, members, active int) Report {
	report := Report{
		Members: int64(members), EffectiveReplicas: int64(min(active, n.Factor)), Joining: d.joining(n),
		Rounds: n.Rounds, Repaired: n.Repaired, Bootstraps: n.Bootstraps, BootstrapBytes: n.BootstrapBytes,
	}
	if active < n.Factor {
		report.Underreplicated = allPartitions
	}
	return report
}

// Write writes the metrics in the text format of Prometheus. Every command name that a client
// has ever sent is a label of a counter of calls, of a counter of errors and of a histogram, also
// a name that is no command (marekvs-engine/src/metrics.rs:371).
func (r *Report) Write(w io.Writer, commands map[string]int64) {
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		_, _ = fmt.Fprintf(w, "marekvs_commands_total{cmd=%q} %d\n", name, commands[name])
		_, _ = fmt.Fprintf(w, "marekvs_command_errors_total{cmd=%q} 0\n", name)
		for _, bound := range []string{"0.001", "0.01", "0.1", "1", "+Inf"} {
			_, _ = fmt.Fprintf(w, "marekvs_command_duration_seconds_bucket{cmd=%q,le=%q} %d\n", name, bound, commands[name])
		}
	}
	for _, metric := range []struct {
		name  string
		value int64
	}{
		{"marekvs_cluster_members", r.Members},
		{"marekvs_cluster_underreplicated_partitions", r.Underreplicated},
		{"marekvs_cluster_effective_rf_min", r.EffectiveReplicas},
		{"marekvs_join_gate_pending_pids", r.Joining},
		{"marekvs_ae_rounds_total", r.Rounds},
		{"marekvs_ae_repair_ops_total", r.Repaired},
		{"marekvs_bootstraps_completed_total", r.Bootstraps},
		{"marekvs_bootstrap_bytes_sent_total", r.BootstrapBytes},
	} {
		_, _ = fmt.Fprintf(w, "%s %d\n", metric.name, metric.value)
	}
}
