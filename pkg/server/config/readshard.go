// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
)

func readShard(o *jsonc.Object, providers provider.Registry) Shard {
	defer o.Finish()
	shard := Shard{
		ID:                  o.String("id"),
		Infra:               readInfra(o.Object("infra"), providers),
		Election:            readElection(o.Object("leader_election")),
		Bind:                readAddresses(o.Object("bind")),
		Advertise:           readAddresses(o.Object("advertise")),
		LeaderNetwork:       readLeaderNetwork(o),
		SubnetPools:         map[string][]string{},
		DynamicSubnetPools:  o.Strings("dynamic_subnet_pools"),
		Expiry:              readExpiry(o.Object("expiry")),
		DefaultDrainTimeout: o.Duration("default_drain_timeout", defaultDrainTimeout),
		MaxSize:             MaxSize,
		CreateRateLimit:     o.Duration("create_rate_limit", 0),
		GarbageCollection:   readGarbageCollection(o.Object("garbage_collection")),
		HealthCheckInterval: o.Duration("health_check_interval", defaultHealthCheckInterval),
		RequestTimeout:      o.Duration("request_timeout", defaultRequestTimeout),
		ShutdownTimeout:     o.Duration("shutdown_timeout", defaultShutdownTimeout),
	}
	if size := o.Int32("max_size"); size != nil {
		shard.MaxSize = *size
	}
	pools := o.Object("subnet_pools")
	for _, pool := range pools.Names() {
		shard.SubnetPools[pool] = pools.Strings(pool)
	}
	return shard
}

func readAddresses(o *jsonc.Object) Addresses {
	defer o.Finish()
	return Addresses{
		HealthAddr:       o.String("health_addr"),
		ElectionAddr:     o.String("election_addr"),
		RegistrationAddr: o.String("registration_addr"),
		OperatorAddr:     o.String("operator_addr"),
		AgentAddr:        o.String("agent_addr"),
	}
}

func readExpiry(o *jsonc.Object) Expiry {
	defer o.Finish()
	return Expiry{
		EligibleAge: o.Duration("eligible_age", 0),
		ForcedAge:   o.Duration("forced_age", 0),
		OnDemandAge: o.Duration("ondemand_age", 0),
	}
}

func readGarbageCollection(o *jsonc.Object) GarbageCollection {
	defer o.Finish()
	return GarbageCollection{
		Interval:               o.Duration("interval", defaultCollectionInterval),
		RegistrationTimeout:    o.Duration("registration_timeout", defaultRegistrationTimeout),
		DeletedRecordRetention: o.Duration("deleted_record_retention", defaultDeletedRecordRetention),
	}
}

// readInfra does not read the options of an unknown provider.
func readInfra(o *jsonc.Object, providers provider.Registry) Infra {
	defer o.Finish()
	infra := Infra{Provider: o.String("provider"), Region: o.String("region"), Zone: o.String("zone")}
	options := o.Object("options")
	if readOptions, found := providers[infra.Provider]; found {
		infra.Options = readOptions(options)
		infra.InstanceTypes = infra.Options.Catalogue()
	}
	return infra
}
