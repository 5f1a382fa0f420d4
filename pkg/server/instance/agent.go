// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instance

import "time"

// AgentState is what the server knows of the agent of an instance.
type AgentState int

const (
	// AgentNone means that nothing is expected: the instance runs no agent, is not listed
	// by its provider, or is not going to run.
	AgentNone AgentState = iota
	// AgentAwaited means that the agent has not registered, or not reported since: the
	// instance is coming up.
	AgentAwaited
	// AgentUnknown means that the agent has registered, and has not reported since this
	// server leads.
	AgentUnknown
	// AgentReporting means that the agent reports.
	AgentReporting
	// AgentLost means that the agent does not report any more, which makes the instance
	// impaired.
	AgentLost
)

// Agent is what the server knows of the agent of an instance. It is kept in memory only:
// a server that begins to lead starts with nothing.
type Agent struct {
	State AgentState
	// Since is when the state began, or when this server began to lead. It is zero for an
	// instance that does not run yet.
	Since time.Time
	// Reason is why the agent counts as lost, for people.
	Reason string
	// Notice is the termination that the provider has announced, nil if there is none.
	Notice *Notice
}

// Notice announces that the provider will terminate an instance.
type Notice struct {
	// Action is what the provider will do, in its own words.
	Action string
	// Deadline is when, zero if the provider has not announced a time.
	Deadline time.Time
}
