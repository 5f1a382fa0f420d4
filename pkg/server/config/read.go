// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
)

// Defaults of missing keys. A zero in the configuration stays zero and turns off
// what it times.
const (
	defaultElectionInterval       = 5 * time.Second
	defaultElectionTimeout        = 15 * time.Second
	defaultDrainTimeout           = 5 * time.Minute
	defaultCollectionInterval     = 2 * time.Minute
	defaultRegistrationTimeout    = 5 * time.Minute
	defaultDeletedRecordRetention = 30 * time.Minute
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

// readElection reads one interval, for reading the lock and for renewing it. Other
// servers of the protocol have a second, "infrequent" one of 30 seconds for the
// time when there is a leader, which would be stale after 15 seconds.
func readElection(o *jsonc.Object) Election {
	defer o.Finish()
	return Election{
		Enabled:  o.Bool("enabled", true),
		Interval: o.Duration("interval", defaultElectionInterval),
		Timeout:  o.Duration("timeout", defaultElectionTimeout),
	}
}

// readTTL returns how long the certificates of a role are valid: 24 hours when the key is missing
// (docs/protocol.md#certificates). A number is one of hours. Zero is invalid: no
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
	// More hours than these would overflow a duration.
	if *hours < 1 || *hours > int32(longestTTL/time.Hour) {
		return invalid(*hours)
	}
	return time.Duration(*hours) * time.Hour
}
