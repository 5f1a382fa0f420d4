// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import "time"

// Limits of clients (docs/server.md#limits).
const (
	// maxOperatorConnections is the maximum number of connections of operators. Further
	// ones wait. An operator has one connection for each of its processes that leads.
	maxOperatorConnections = 4096
	// maxOperatorStreams is the maximum number of calls in progress on one connection.
	// An operator has three watches and at most some hundred calls at a time.
	maxOperatorStreams = 1000
	// maxOperatorRequest is the maximum size of a request, in bytes.
	maxOperatorRequest = 4 << 20

	// maxAgentConnections is the maximum number of connections of agents, each of which
	// has one. Further ones wait.
	maxAgentConnections = 16384
	// maxAgentStreams is the maximum number of calls in progress on one connection. An
	// agent has three streams and few calls.
	maxAgentStreams = 16
	// maxAgentRequest is the maximum size of a report or of public keys, in bytes.
	maxAgentRequest = 256 << 10

	// maxRegistrationConnections is the maximum number of connections of clients
	// without a certificate, and maxRegistrationsPerAddress that of one address.
	maxRegistrationConnections = 256
	maxRegistrationsPerAddress = 32
	// maxRegistrationStreams is the maximum number of calls in progress on one.
	maxRegistrationStreams = 16
	// maxRegistrationRequest is the maximum size of a nonce with a key, in bytes.
	maxRegistrationRequest = 64 << 10
	// A registration takes one call: its connection is closed when it is idle for
	// maxRegistrationIdle, and in any case after maxRegistrationAge. Calls in progress
	// then have registrationGrace.
	maxRegistrationIdle = 30 * time.Second
	maxRegistrationAge  = 2 * time.Minute
	registrationGrace   = 30 * time.Second

	// maxHeaders is the maximum size of the metadata of a call, in bytes.
	maxHeaders = 16 << 10
)
