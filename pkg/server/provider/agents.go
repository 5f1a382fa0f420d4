// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

// AgentOptions are implemented by the options of a provider whose instances may run an
// agent (docs/server.md#agents).
type AgentOptions interface {
	// RunsAgent reports whether every instance runs an agent. Then an instance counts
	// as running when its agent has registered and reported.
	RunsAgent() bool
}

// RunsAgent reports whether the instances of a provider run an agent. Options that do not
// implement AgentOptions are of a provider whose instances run none.
func RunsAgent(o Options) bool {
	agents, ok := o.(AgentOptions)
	return ok && agents.RunsAgent()
}
