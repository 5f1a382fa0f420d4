// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/nodesettings"
	"nstance.dev/operator/pkg/server/provider"
)

// Defaults of missing keys. A zero in the configuration stays zero and turns the timeout or
// interval off.
const (
	defaultElectionInterval       = 5 * time.Second
	defaultElectionTimeout        = 15 * time.Second
	defaultDrainTimeout           = 5 * time.Minute
	defaultCollectionInterval     = 2 * time.Minute
	defaultRegistrationTimeout    = 5 * time.Minute
	defaultDeletedRecordRetention = 30 * time.Minute
	defaultRestartGrace           = 5 * time.Minute
	defaultHealthCheckInterval    = time.Minute
	defaultRequestTimeout         = 30 * time.Second
	defaultShutdownTimeout        = 10 * time.Second
)

const (
	// shortestTTL leaves a client the time to renew its certificate.
	shortestTTL = 10 * time.Second
	// longestTTL is how long a cluster's authority is valid.
	longestTTL = 10 * 365 * 24 * time.Hour
)

// readConfig reads all keys. It reports members of the wrong name or type;
// validate checks the values.
func readConfig(root *jsonc.Object, providers provider.Registry) *Config {
	config := &Config{
		Templates: map[string]Template{},
		Groups:    map[string]map[string]Group{},
	}
	cluster := root.Object("cluster")
	config.ClusterID = cluster.String("id")
	config.ClusterElection = readElection(cluster.Object("leader_election"))
	config.Secrets = readSecrets(cluster, config.ClusterID)
	cluster.Finish()

	config.Shard = readShard(root.Object("shard"), providers)
	certificates := root.Object("certificates")
	config.OperatorCertificateTTL = readTTL(certificates.Object("operator"))
	config.AgentCertificateTTL = readTTL(certificates.Object("agent"))
	config.Certificates = readCertificateTemplates(certificates)
	certificates.Finish()
	config.Defaults = readDefaults(root.Object("defaults"))
	config.LoadBalancers = readLoadBalancers(root.Object("load_balancers"), config.Shard.Infra)
	root.Object("templates").Each(func(name string, o *jsonc.Object) {
		config.Templates[name] = readTemplate(o)
	})
	root.Object("groups").Each(func(tenant string, groups *jsonc.Object) {
		config.Groups[tenant] = map[string]Group{}
		groups.Each(func(name string, o *jsonc.Object) {
			config.Groups[tenant][name] = readGroup(o)
		})
	})
	root.Finish()
	return config
}

// readElection reads one interval, for reading the lock and for renewing it. Other servers of
// the protocol have a second, "infrequent" interval of 30 seconds for the time when there is
// a leader; a lock that old would be stale after 15 seconds.
func readElection(o *jsonc.Object) Election {
	defer o.Finish()
	return Election{
		Enabled:  o.Bool("enabled", true),
		Interval: o.Duration("interval", defaultElectionInterval),
		Timeout:  o.Duration("timeout", defaultElectionTimeout),
	}
}

// readTTL returns how long the certificates of a role are valid: 24 hours if the key is
// missing (docs/protocol.md#certificates). A number is in hours. Zero is invalid: no
// certificate is valid for ever.
func readTTL(o *jsonc.Object) time.Duration {
	defer o.Finish()
	return readTTLMember(o)
}

func readTTLMember(o *jsonc.Object) time.Duration {
	invalid := func(value any) time.Duration {
		o.Report(field.Invalid(o.Child("ttl"), value,
			fmt.Sprintf("must be between 1 and %d hours, or a duration of at least %q", longestTTL/time.Hour, shortestTTL)))
		return 0
	}
	if o.IsString("ttl") {
		ttl := o.OptionalDuration("ttl")
		if ttl != nil && (*ttl < shortestTTL || *ttl > longestTTL) {
			return invalid(ttl.String())
		}
		return ptr.Deref(ttl, 0)
	}
	hours := o.Int32("ttl")
	if hours == nil {
		return 24 * time.Hour
	}
	// Larger numbers of hours would overflow a duration.
	if *hours < 1 || *hours > int32(longestTTL/time.Hour) {
		return invalid(*hours)
	}
	return time.Duration(*hours) * time.Hour
}

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
		MaxOnDemand:         o.Int32("max_on_demand"),
		MaxOnDemandPerHour:  o.Int32("max_on_demand_per_hour"),
		MaxCallsPerSecond:   o.Int32("max_calls_per_second"),
		CreateRateLimit:     o.Duration("create_rate_limit", 0),
		GarbageCollection:   readGarbageCollection(o.Object("garbage_collection")),
		RestartGrace:        o.Duration("restart_grace", defaultRestartGrace),
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

// defaultTemplateSize is the size of a template without a size. A configured size of 0 stays
// 0.
const defaultTemplateSize = 1

func readDefaults(o *jsonc.Object) Defaults {
	defer o.Finish()
	return Defaults{
		Userdata: readUserdata(o),
		Vars:     o.StringMap("vars"),
		Args:     o.AnyMap("args"),
		Files:    readFiles(o.Object("files")),
	}
}

func readTemplate(o *jsonc.Object) Template {
	template := Template{
		Kind:         o.String("kind"),
		Arch:         o.String("arch"),
		Size:         defaultTemplateSize,
		InstanceType: o.String("instance_type"),
		SubnetPool:   o.String("subnet_pool"),
		Tenants:      o.Strings("tenants"),
		Limits:       readTemplateLimits(o.Object("limits")),
		Userdata:     readUserdata(o),
		Vars:         o.StringMap("vars"),
		Args:         o.AnyMap("args"),
		Files:        readFiles(o.Object("files")),

		LoadBalancers: o.Strings("load_balancers"),
		Node:          nodesettings.Read(o.Object("node")),

		Candidates:         readCandidates(o),
		ReturnAfterSeconds: readReturnAfter(o),
	}
	if size := o.Int32("size"); size != nil {
		template.Size = *size
	}
	return template
}

// readGroup leaves a missing size to the template.
func readGroup(o *jsonc.Object) Group {
	return Group{
		Template:     o.String("template"),
		Size:         o.Int32("size"),
		Limits:       readLimits(o.Object("limits")),
		InstanceType: o.String("instance_type"),
		SubnetPool:   o.String("subnet_pool"),
		Vars:         o.StringMap("vars"),
		Args:         o.AnyMap("args"),
		DrainTimeout: o.OptionalDuration("drain_timeout"),

		KeepUnhealthy: !o.Bool("replace_unhealthy", true),
		LoadBalancers: o.Strings("load_balancers"),
		Node:          nodesettings.Read(o.Object("node")),

		Candidates:         readCandidates(o),
		ReturnAfterSeconds: readReturnAfter(o),
	}
}

// readUserdata reads a string, or an object with the text or its URL, and with its encoding and hash.
// Both forms of the same userdata are read as equal values, so that a change of the form
// replaces no instance.
func readUserdata(o *jsonc.Object) Userdata {
	switch {
	case !o.Has("userdata"):
		return Userdata{}
	case o.IsString("userdata"):
		return Userdata{Inline: o.String("userdata")}
	case !o.IsObject("userdata"):
		o.Report(field.TypeInvalid(o.Child("userdata"), field.OmitValueType{}, "must be a string or an object"))
		return Userdata{}
	}
	members := o.ConfidentialObject("userdata")
	defer members.Finish()
	userdata := Userdata{Inline: members.String("inline"), URL: members.String("url"), SHA256: members.String("sha256"), Encoding: members.String("encoding")}
	members.ExactlyOneOf("inline", "url")
	if userdata.Encoding == EncodingPlain {
		userdata.Encoding = ""
	}
	return userdata
}

// readFiles returns nil if there are no files.
func readFiles(o *jsonc.Object) map[string]File {
	if len(o.Names()) == 0 {
		return nil
	}
	files := map[string]File{}
	o.Each(func(name string, o *jsonc.Object) {
		files[name] = File{Kind: o.String("kind"), Content: o.Rest()}
	})
	return files
}

// readLoadBalancers reads the entries, whose fields the provider defines. An unknown provider
// is reported elsewhere.
func readLoadBalancers(o *jsonc.Object, infra Infra) map[string]provider.LoadBalancer {
	if len(o.Names()) == 0 || infra.Options == nil {
		return nil
	}
	options, ok := infra.Options.(provider.LoadBalancerOptions)
	if !ok {
		o.Report(field.Invalid(o.Path(), o.Names(), fmt.Sprintf("must not be set: provider %q has no load balancers", infra.Provider)))
		return nil
	}
	balancers := map[string]provider.LoadBalancer{}
	o.Each(func(key string, o *jsonc.Object) {
		balancers[key] = provider.LoadBalancer{Key: key, Settings: options.ReadLoadBalancer(o)}
	})
	return balancers
}
