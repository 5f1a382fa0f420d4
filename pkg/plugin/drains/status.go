// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import "nstance.dev/operator/pkg/plugin/objects"

// Status is what "kubectl nstance drain-status" prints.
type Status struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Drains     []Drain `json:"drains"`
	// Unknown is what could not be read.
	Unknown []string `json:"unknown,omitempty"`
}

// Kind is the kind of Status.
const Kind = "DrainStatus"

// Build returns the drains of all Nodes in a snapshot.
func Build(s *objects.Snapshot) Status {
	status := Status{APIVersion: objects.APIVersion, Kind: Kind, Drains: []Drain{}, Unknown: s.Unknown()}
	status.Drains = append(status.Drains, Find(s)...)
	return status
}
