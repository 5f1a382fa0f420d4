// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storetest

import (
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/marekvs/scale"
)

// Node is one Pod of the model.
type Node struct {
	UID         int
	Ordinal     int32
	Terminating bool
	// Silent is for how many seconds the node does not report its metrics.
	Silent int
	// Commands is how many commands it has executed, Rounds how many times it has compared
	// its copies.
	Commands float64
	Rounds   int64

	// readyIn and endsIn count the seconds until it is ready, and until it is deleted, fresh
	// those until the first refresh of its metrics.
	readyIn, endsIn, fresh int
	// owned are the partitions that the present round compares, which began with it.
	owned   [Partitions]bool
	roundIn int
}

// Ready reports whether the node has started.
func (n *Node) Ready() bool { return n.readyIn == 0 }

func (n *Node) online() bool { return n.Ready() && !n.Terminating }

// Sample returns what a node reports, nil for nothing. Like the store, it counts a partition
// as having too few owners only while it sees fewer nodes than there are to be copies.
func (m *Model) Sample(n *Node) *scale.Sample {
	switch online := int64(len(m.Online())); {
	case !n.Ready() || n.Silent > 0:
		return nil
	case n.fresh > 0:
		return &scale.Sample{Underreplicated: ptr.To[int64](0), Members: ptr.To[int64](0)}
	case online < Copies:
		return &scale.Sample{Underreplicated: ptr.To[int64](4096), Members: &online, EffectiveReplicas: ptr.To[int64](1)}
	default:
		return &scale.Sample{Underreplicated: ptr.To[int64](0), Members: &online, EffectiveReplicas: ptr.To[int64](Copies)}
	}
}
