// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package dashboard serves one page that shows pools, their shards, instances and Nodes,
// the drains in progress, and the last events (docs/kubectl-plugin.md#dashboard). It only
// reads.
package dashboard

import (
	"time"

	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/printing"
	"nstance.dev/operator/pkg/plugin/status"
)

// view is what the page shows. All texts are plain: the templates escape them.
type view struct {
	// Source names the cluster.
	Source string
	// Scope is the namespace of the objects.
	Scope string
	// ReadAt is when the objects were read, zero if they never were.
	ReadAt time.Time
	// Failure is why the last read has failed, empty if it has not. The objects are then
	// those of an earlier read.
	Failure string
	// Summary is one line that changes only when something other than an age does.
	Summary     string
	SummaryTone tone
	// Unknown are why something could not be read.
	Unknown []string

	Pools          []poolView
	Singles        []singleView
	SinglesUnknown string
	Drains         []drainView
	DrainsUnknown  string
	Events         []eventView
	// EventsOmitted is the number of earlier events that were read.
	EventsOmitted int
	EventsUnknown []string
}

// figure is a number or a word with its label.
type figure struct{ Label, Value string }

// newView returns the view of a snapshot.
func newView(s *objects.Snapshot) view {
	built := status.Build(s)
	options := printing.Options{Now: s.Now}
	v := view{
		Scope: "all namespaces", ReadAt: s.Now, Summary: summary(&built), SummaryTone: summaryTone(&built), Unknown: built.Unknown,
		Pools: poolViews(&built, options), Singles: singleViews(&built, options), SinglesUnknown: built.OnDemandUnknown,
		Drains: drainViews(built.Drains, options), DrainsUnknown: built.DrainsUnknown,
	}
	if s.Namespace != "" {
		v.Scope = "namespace " + s.Namespace
	}
	v.addEvents(s, options)
	return v
}
