// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"time"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
)

// drainTimeout is how long the operator may take to drain a Node.
const drainTimeout = 5 * time.Minute

// All ports of the dev cluster. They are fixed, so that a kubeconfig in a
// user's shell stays right, and below 32768, from where the kernel hands out
// ports of its own choice.
var (
	controlPlanePorts = controlplane.Ports{
		Etcd:              26379,
		EtcdPeer:          26380,
		APIServer:         26443,
		ControllerManager: 26257,
		Scheduler:         26259,
		CAPIWebhook:       26943,
		CAPIHealth:        26944,
		CAPIDiagnostics:   26945,
		KWOK:              26247,
	}
	shards = []installation.Shard{
		{
			ID: "us-west-2a", OperatorPort: 28993, HealthPort: 28983, RegistrationPort: 28973, ElectionPort: 28963, AgentPort: 28953, MetadataPort: 28943,
			Groups:       map[string]installation.Group{"main": {Size: 2}},
			DrainTimeout: drainTimeout,
		},
		{
			ID: "us-west-2b", OperatorPort: 28994, HealthPort: 28984, RegistrationPort: 28974, ElectionPort: 28964, AgentPort: 28954, MetadataPort: 28944,
			Groups:       map[string]installation.Group{"main": {Size: 1}},
			DrainTimeout: drainTimeout,
		},
		{
			ID: "us-west-2c", OperatorPort: 28995, HealthPort: 28985, RegistrationPort: 28975, ElectionPort: 28965, AgentPort: 28955, MetadataPort: 28945,
			DrainTimeout: drainTimeout,
		},
	}
	operator = installation.Operator{Component: "operator", HTTPPort: 28080}
)

// Ports of the marekvs operator, and of the metrics of its simulated nodes.
const (
	marekvsHTTPPort = 28081
	marekvsPort     = 28121
)

func portUses() []controlplane.PortUse {
	uses := controlPlanePorts.Uses()
	for _, shard := range shards {
		uses = append(uses, shard.PortUses()...)
	}
	return append(uses, controlplane.PortUse{Port: operator.HTTPPort, Component: operator.Component})
}
