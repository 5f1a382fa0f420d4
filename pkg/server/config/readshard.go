// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

func readShard(o *object) Shard {
	defer o.finish()
	shard := Shard{
		ID:                  o.text("id"),
		Infra:               readInfra(o.object("infra")),
		Election:            readElection(o.object("leader_election")),
		Bind:                readAddresses(o.object("bind")),
		Advertise:           readAddresses(o.object("advertise")),
		SubnetPools:         map[string][]string{},
		DynamicSubnetPools:  o.texts("dynamic_subnet_pools"),
		Expiry:              readExpiry(o.object("expiry")),
		DefaultDrainTimeout: o.duration("default_drain_timeout", defaultDrainTimeout),
		CreateRateLimit:     o.duration("create_rate_limit", 0),
		GarbageCollection:   readGarbageCollection(o.object("garbage_collection")),
		RequestTimeout:      o.duration("request_timeout", defaultRequestTimeout),
		ShutdownTimeout:     o.duration("shutdown_timeout", defaultShutdownTimeout),
	}
	pools := o.object("subnet_pools")
	for _, pool := range pools.names() {
		shard.SubnetPools[pool] = pools.texts(pool)
	}
	return shard
}

func readAddresses(o *object) Addresses {
	defer o.finish()
	return Addresses{
		HealthAddr:       o.text("health_addr"),
		ElectionAddr:     o.text("election_addr"),
		RegistrationAddr: o.text("registration_addr"),
		OperatorAddr:     o.text("operator_addr"),
	}
}

func readExpiry(o *object) Expiry {
	defer o.finish()
	return Expiry{
		EligibleAge: o.duration("eligible_age", 0),
		ForcedAge:   o.duration("forced_age", 0),
		OnDemandAge: o.duration("ondemand_age", 0),
	}
}

func readGarbageCollection(o *object) GarbageCollection {
	defer o.finish()
	return GarbageCollection{
		Interval:               o.duration("interval", defaultCollectionInterval),
		RegistrationTimeout:    o.duration("registration_timeout", defaultRegistrationTimeout),
		DeletedRecordRetention: o.duration("deleted_record_retention", defaultDeletedRecordRetention),
	}
}

func readInfra(o *object) Infra {
	defer o.finish()
	infra := Infra{Provider: o.text("provider"), Region: o.text("region"), Zone: o.text("zone")}
	options := o.object("options")
	// The options of a provider that is not known cannot be judged.
	if infra.Provider == ProviderKwok {
		infra.Kwok = readKwok(options)
	}
	return infra
}
