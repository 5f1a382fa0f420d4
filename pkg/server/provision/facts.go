// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// facts are the values that the templates of arguments and userdata can use
// (docs/server.md#userdata). There is no host name or address, which are not known
// before the instance runs, and no .Image, because there are no images.
type facts struct {
	Instance struct{ ID, Group, Kind, Arch, Type string }
	Cluster  struct{ ID, CACert string }
	Server   struct {
		Shard, RegistrationAddr, OperatorAddr string
		// AgentAddr is empty if the server serves no agents.
		AgentAddr string
		// HealthCheckInterval is how often an agent has to report.
		HealthCheckInterval time.Duration
	}
	Provider struct{ Kind, Region, Zone string }
	Vars     map[string]string
}

// secretFacts adds what only userdata can use. A nonce in an argument would be
// readable for every user who can read the instance.
type secretFacts struct {
	facts
	// Nonce is what the agent registers with.
	Nonce string
}

func (p *Provisioner) facts(c *config.Config, group *groups.Group, record *instance.Record) facts {
	var f facts
	f.Instance.ID = record.ID
	f.Instance.Group = record.Group
	f.Instance.Kind = group.Kind
	f.Instance.Arch = group.Arch
	f.Instance.Type = group.InstanceType
	f.Cluster.ID = c.ClusterID
	f.Cluster.CACert = string(p.AuthorityPEM)
	f.Server.Shard = c.Shard.ID
	f.Server.RegistrationAddr = p.Addresses.RegistrationAddr
	f.Server.OperatorAddr = p.Addresses.OperatorAddr
	f.Server.AgentAddr = p.Addresses.AgentAddr
	f.Server.HealthCheckInterval = c.Shard.HealthCheckInterval
	f.Provider.Kind = c.Shard.Infra.Provider
	f.Provider.Region = c.Shard.Infra.Region
	f.Provider.Zone = c.Shard.Infra.Zone
	f.Vars = group.Vars
	return f
}
