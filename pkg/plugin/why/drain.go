// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package why

import (
	"fmt"
	"slices"

	"nstance.dev/operator/pkg/plugin/drains"
)

// Reasons of a shard to delete an instance (docs/protocol.md#drains).
const (
	scaleDown   = "scale-down"
	configDrift = "config-drift"
)

var meanings = map[string]string{
	scaleDown:      "the group has more instances than its size",
	configDrift:    "the configuration of the group has changed, and the instance is replaced",
	"expired":      "the instance is too old, and is replaced",
	"unhealthy":    "the instance is unhealthy, and is replaced",
	"requested":    "its deletion was requested",
	"spot":         "the provider has announced that it will terminate the instance",
	"unregistered": "its provider never created it, or its agent has not registered",
	"returned":     "it was deleted, and its provider lists it again",
}

// reasonDrainTimedOut is the reason of the event of a drain that was not finished in time.
const reasonDrainTimedOut = "DrainTimedOut"

// drain adds why the Node is being drained.
func (e *explainer) drain() {
	drain := e.result.Drain
	if drain == nil {
		return
	}
	node := Source{Kind: "Node", Name: drain.Node}
	if slices.Contains(drain.By, drains.ByShard) {
		reason := Reason{Type: DrainRequested, By: "shard " + drain.Shard, Source: node, At: drain.Since}
		meaning, known := meanings[drain.Reason]
		switch {
		case known:
			reason.Message = fmt.Sprintf("%s: %s", drain.Reason, meaning)
		case drain.Reason != "":
			reason.Message = drain.Reason
		default:
			reason.Message = "unknown: " + drain.ReasonUnknown
		}
		e.add(reason)
	}
	for _, event := range drains.EventsOf(e.Snapshot, e.subject.Node, reasonDrainTimedOut) {
		e.add(Reason{Type: DrainTimedOut, Message: event.Note, By: event.ReportingController, Source: node, At: drains.LastSeen(&event)})
		break
	}
}

// reasonIs reports whether the shard drains the Node for a reason, or for one that is not
// known.
func (e *explainer) reasonIs(reason string) bool {
	drain := e.result.Drain
	return drain != nil && slices.Contains(drain.By, drains.ByShard) && (drain.Reason == reason || drain.Reason == "")
}
