// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"math"
	"time"
)

// hysteresis is the share of the target load that the nodes that remain may have at most
// when one is removed. It keeps the size from changing back.
const hysteresis = 0.6

// Autoscaler are the settings of a cluster that is sized by load.
type Autoscaler struct {
	MinNodes, MaxNodes, ReplicationFactor int32
	// OpsPerNode is how many commands per second a node is to execute.
	OpsPerNode int64
	// UpCooldown is how long the size must be unchanged before nodes are added,
	// DownStabilization how long it must be, and the load low, before one is removed.
	UpCooldown, DownStabilization time.Duration
	// DiskPercent is the used share of a volume above which a node is added; 0 for none.
	DiskPercent int32
}

// Load is what an autoscaler decides from.
type Load struct {
	// Rate is the number of commands per second of the nodes whose rate is known; nil if
	// there is none.
	Rate *float64
	// Complete is true when the rate of every node is known. Otherwise the rate is higher.
	Complete bool
	// Peak is the highest complete rate of the stabilization window; nil if the rate was
	// not complete all the time.
	Peak *float64
	// SinceScale is how long the size has been the same; nil if it never changed.
	SinceScale *time.Duration
	// DiskUsed and DiskAfterRemoval are the largest used shares of a volume in percent,
	// now and with one node less; nil if they are not known.
	DiskUsed, DiskAfterRemoval *float64
}

// Clamp returns the size nearest to nodes that the settings allow.
func (a *Autoscaler) Clamp(nodes int32) int32 {
	floor := max(a.MinNodes, Floor(a.ReplicationFactor))
	return min(max(nodes, floor), max(a.MaxNodes, floor))
}

// Target returns the size that the load needs. Without a signal it is the present one.
func (a *Autoscaler) Target(current int32, load *Load) int32 {
	if within := a.Clamp(current); within != current {
		return within
	}
	want := a.Clamp(max(a.ideal(load), a.diskIdeal(current, load)))
	switch {
	case want > current:
		if waited(load.SinceScale, a.UpCooldown) {
			return want
		}
	case a.mayRemove(current, load) && waited(load.SinceScale, a.DownStabilization):
		return a.Clamp(current - 1)
	}
	return current
}

// ideal returns the number of nodes that execute the commands. A rate that is not complete
// is a lower bound.
func (a *Autoscaler) ideal(load *Load) int32 {
	if load.Rate == nil {
		return 0
	}
	return int32(min(math.Ceil(*load.Rate/float64(a.OpsPerNode)), math.MaxInt32))
}

func (a *Autoscaler) diskIdeal(current int32, load *Load) int32 {
	if a.DiskPercent > 0 && load.DiskUsed != nil && *load.DiskUsed >= float64(a.DiskPercent) {
		return current + 1
	}
	return 0
}

// mayRemove reports whether the load was low for the whole window, and still would be with
// one node less.
func (a *Autoscaler) mayRemove(current int32, load *Load) bool {
	if !load.Complete || load.Rate == nil || load.Peak == nil {
		return false
	}
	if a.DiskPercent > 0 && load.DiskAfterRemoval != nil && *load.DiskAfterRemoval >= float64(a.DiskPercent) {
		return false
	}
	perNode := max(*load.Peak, *load.Rate) / float64(max(current-1, 1))
	return perNode < hysteresis*float64(a.OpsPerNode)
}

func waited(since *time.Duration, period time.Duration) bool { return since == nil || *since >= period }
