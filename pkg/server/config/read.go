// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Defaults of the server document, for what is not there. A zero that is
// written down stays zero and turns off what it times.
const (
	defaultElectionInterval       = 5 * time.Second
	defaultElectionTimeout        = 15 * time.Second
	defaultDrainTimeout           = 5 * time.Minute
	defaultCollectionInterval     = 2 * time.Minute
	defaultRegistrationTimeout    = 5 * time.Minute
	defaultDeletedRecordRetention = 30 * time.Minute
	defaultRequestTimeout         = 30 * time.Second
	defaultShutdownTimeout        = 10 * time.Second
)

// longestTTL is how long a cluster's authority lives, in hours.
const longestTTL = 10 * 365 * 24

// secretsProvider keeps secrets in the storage, encrypted. There is no other.
const secretsProvider = "object-storage"

// readConfig takes the configuration apart. It reports what has the wrong type
// or name; what the values must be is for validate.
func readConfig(root *object) *Config {
	config := &Config{
		Templates: map[string]Template{},
		Groups:    map[string]map[string]Group{},
	}
	cluster := root.object("cluster")
	config.ClusterID = cluster.text("id")
	config.ClusterElection = readElection(cluster.object("leader_election"))
	config.Secrets = readSecrets(cluster)
	cluster.finish()

	config.Shard = readShard(root.object("shard"))
	config.OperatorCertificateTTL = readOperatorTTL(root.object("certificates"))
	config.Defaults = readDefaults(root.object("defaults"))
	root.object("templates").each(func(name string, o *object) {
		config.Templates[name] = readTemplate(o)
	})
	root.object("groups").each(func(tenant string, groups *object) {
		config.Groups[tenant] = map[string]Group{}
		groups.each(func(name string, o *object) {
			config.Groups[tenant][name] = readGroup(o)
		})
	})
	root.finish()
	return config
}

// readElection: the wire contract's servers look every 5 seconds while there is
// no leader and every 30 seconds when there is one, with which a leader would
// look stale after 15 seconds. There is one interval here, for looking and for
// renewing, and no "infrequent" one.
func readElection(o *object) Election {
	defer o.finish()
	return Election{
		Enabled:  o.boolean("enabled", true),
		Interval: o.duration("interval", defaultElectionInterval),
		Timeout:  o.duration("timeout", defaultElectionTimeout),
	}
}

// readSecrets: whoever takes the place of a key for the key itself shall not find
// it in the log, so no error shows a value.
func readSecrets(cluster *object) Secrets {
	o := newObject(cluster.path.Child("secrets"), cluster.member("secrets"), cluster.errs, true)
	defer o.finish()
	if provider := o.member("provider"); provider != nil {
		path := o.path.Child("provider")
		if text := o.readText(path, provider); text != secretsProvider {
			*o.errs = append(*o.errs, field.NotSupported(path, field.OmitValueType{}, []string{secretsProvider}))
		}
	}
	secrets := Secrets{EncryptionKey: readKeySource(o.object("encryption_key"))}
	for _, key := range o.objects("old_encryption_keys") {
		secrets.OldEncryptionKeys = append(secrets.OldEncryptionKeys, readKeySource(key))
	}
	return secrets
}

func readKeySource(o *object) KeySource {
	defer o.finish()
	source := KeySource{Env: o.text("env"), File: o.text("file")}
	o.oneOf("env", "file")
	return source
}

// readOperatorTTL: a time that is absent is 24 hours (wire contract), be it with
// all of "operator" or alone. It cannot be zero: no certificate is good for ever.
// More hours than the authority lives would also not fit into a duration.
func readOperatorTTL(o *object) time.Duration {
	defer o.finish()
	operator := o.object("operator")
	defer operator.finish()
	hours := operator.integer("ttl")
	if hours == nil {
		return 24 * time.Hour
	}
	if *hours < 1 || *hours > longestTTL {
		*o.errs = append(*o.errs, field.Invalid(operator.path.Child("ttl"), *hours, fmt.Sprintf("must be between 1 and %d hours", longestTTL)))
	}
	return time.Duration(*hours) * time.Hour
}
