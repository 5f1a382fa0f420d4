// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package config reads and validates the configuration of one shard server
// (docs/server-reference.md#configuration): JSON with comments and trailing commas.
package config

import (
	"time"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/nodesettings"
	"nstance.dev/operator/pkg/server/provider"
)

// Config is a configuration that has passed validation. It is immutable.
type Config struct {
	// Source is the text that the configuration was read from.
	Source    Source
	ClusterID string
	// ClusterElection elects the server that creates the cluster's keys and
	// registers operators.
	ClusterElection Election
	Secrets         Secrets
	Shard           Shard
	// OperatorCertificateTTL is how long the certificate of an operator is valid.
	OperatorCertificateTTL time.Duration
	// AgentCertificateTTL is the same for an agent.
	AgentCertificateTTL time.Duration
	// Certificates are the certificate templates by name.
	Certificates map[string]CertificateTemplate
	// Defaults apply to all templates.
	Defaults Defaults
	// LoadBalancers by key.
	LoadBalancers map[string]provider.LoadBalancer
	// Templates by name.
	Templates map[string]Template
	// Groups are the static groups by tenant and group id.
	Groups map[string]map[string]Group
}

// Election configures how servers elect a leader.
type Election struct {
	// Enabled is false for a server that is the only one: it always leads.
	Enabled bool
	// Interval is how often the lock is read, and renewed by the leader.
	Interval time.Duration
	// Timeout is how long after the last renewal another server may lead. It is at
	// least three intervals.
	Timeout time.Duration
}

// Shard configures this shard.
type Shard struct {
	ID       string
	Infra    Infra
	Election Election
	// Bind are the addresses to listen at.
	Bind Addresses
	// Advertise are the addresses at which others reach the listeners. An empty address
	// defaults to Bind. An empty or wildcard host defaults to the machine's address.
	Advertise Addresses
	// LeaderNetwork has the address of the leader, nil if the leader has no address of its own.
	LeaderNetwork *provider.Network
	// SubnetPools maps a pool id to the provider's subnets, in the order in
	// which they are tried.
	SubnetPools map[string][]string
	// DynamicSubnetPools are the pools that dynamic groups may use. Empty means all pools.
	DynamicSubnetPools []string
	Expiry             Expiry
	// DefaultDrainTimeout applies to groups without a drain timeout. Zero means that
	// instances are deleted without a drain.
	DefaultDrainTimeout time.Duration
	// MaxSize is the largest size that operators may set for a group. Zero means MaxSize.
	MaxSize int32
	// MaxOnDemand is the largest number of on-demand instances of a tenant, nil for
	// maxOnDemand.
	MaxOnDemand *int32
	// MaxOnDemandPerHour is the largest number of on-demand instances that a tenant may create in
	// an hour, nil for no limit.
	MaxOnDemandPerHour *int32
	// MaxCallsPerSecond is how many calls the operators of a tenant may make in a second in the long
	// run, nil for maxCalls.
	MaxCallsPerSecond *int32
	// CreateRateLimit is the least time between two requests to create an
	// instance. Zero means no limit.
	CreateRateLimit   time.Duration
	GarbageCollection GarbageCollection
	// RestartGrace is how long a stopped instance that its provider may start again is not
	// replaced.
	RestartGrace time.Duration
	// HealthCheckInterval is how often an agent reports.
	HealthCheckInterval time.Duration
	// RequestTimeout bounds one call to the storage or to the provider.
	RequestTimeout time.Duration
	// ShutdownTimeout is how long running calls may take when the server stops.
	ShutdownTimeout time.Duration
}

// Addresses are the addresses of a server's listeners, host:port. AgentAddr is empty if the
// server serves no agents.
type Addresses struct {
	HealthAddr       string
	ElectionAddr     string
	RegistrationAddr string
	OperatorAddr     string
	AgentAddr        string
}

// Expiry are the ages at which instances are replaced. Zero means never.
type Expiry struct {
	// EligibleAge is when an instance is replaced if its group has no other
	// operation in progress.
	EligibleAge time.Duration
	// ForcedAge is when it is replaced in any case.
	ForcedAge time.Duration
	// OnDemandAge is when an on-demand instance is deleted.
	OnDemandAge time.Duration
}

// GarbageCollection configures when failed instances are given up.
type GarbageCollection struct {
	// Interval is how often the provider's instances are compared with those
	// that are known. Zero means never.
	Interval time.Duration
	// RegistrationTimeout is how long an instance that was requested may stay
	// unknown to its provider. Zero means for ever.
	RegistrationTimeout time.Duration
	// DeletedRecordRetention is how long a deleted instance can be queried.
	DeletedRecordRetention time.Duration
}

// Defaults are the lowest layer of all templates.
type Defaults struct {
	Userdata Userdata
	Vars     map[string]string
	Args     map[string]any
	Files    map[string]File
}

// Userdata is the script or cloud-init configuration that instances start with, before
// decoding and rendering (docs/server-reference.md#userdata).
type Userdata struct {
	// Inline is the userdata itself, and URL is where to fetch it. At most one is set.
	Inline string
	URL    string
	// SHA256 is the hash of the content at the URL, in lower case hex, empty if the content is not
	// checked. The ETag of a group contains this struct: an empty hash must not change it.
	SHA256 string `json:",omitempty"`
	// Encoding is the encoding of the inline text or of the content at the URL, empty for
	// EncodingPlain. The userdata is decoded before it is rendered. The provider gets plain
	// text and encodes it as it needs.
	Encoding string
}

// Encodings of the source of userdata.
const (
	EncodingPlain  = "plain"
	EncodingBase64 = "base64"
	// EncodingGzip is for a URL only: a JSON string cannot contain it.
	EncodingGzip = "gzip"
	// EncodingGzipBase64 is gzip, encoded in base64.
	EncodingGzipBase64 = "base64+gzip"
)

// File is a file that agents write on their instances (docs/server-reference.md#files).
type File struct {
	// Kind is one of certificate, secret, storage, env, json and string.
	Kind string
	// Content has all other keys.
	Content map[string]any
}

// Infra configures the instance provider.
type Infra struct {
	// Provider is the name of the instance provider.
	Provider string
	Region   string
	Zone     string
	// Options are the provider's options.
	Options provider.Options
	// InstanceTypes is the catalogue of Options.
	InstanceTypes provider.Catalogue
}

// Template has the settings that several groups share.
type Template struct {
	// Kind is the prefix of instance ids, three lower case letters.
	Kind string
	// Arch is provider.ArchAMD64 or provider.ArchARM64.
	Arch string
	// Size is the size of a group without a size.
	Size         int32
	InstanceType string
	SubnetPool   string
	// Tenants may use the template, "*" is for all tenants. If the list is nil, the tenants may
	// whose static groups use the template, or all tenants if no static group does.
	Tenants []string
	// Limits apply to groups that have no such limits themselves.
	Limits SettingLimits
	// Userdata defaults to the userdata of Defaults.
	Userdata Userdata
	Vars     map[string]string
	Args     map[string]any
	Files    map[string]File
	// LoadBalancers are the keys of the load balancers with which the instances of a group
	// without its own list are registered.
	LoadBalancers []string
	// Node has the settings for the kubelets of new instances.
	Node nodesettings.Settings
	// Candidates and ReturnAfterSeconds apply to groups without an instance type and without
	// candidates of their own.
	Candidates         []candidates.Candidate
	ReturnAfterSeconds int32
}

// Group is a static group as configured.
type Group struct {
	Template string
	// Size is nil when missing, which means the template's.
	Size   *int32
	Limits Limits
	// InstanceType and SubnetPool mean the template's when empty.
	InstanceType string
	SubnetPool   string
	// Vars are added over the template's, and Args likewise.
	Vars map[string]string
	Args map[string]any
	// DrainTimeout is nil when missing, which means the shard's default. Zero
	// means that instances are deleted without a drain.
	DrainTimeout *time.Duration
	// KeepUnhealthy is true if instances that run and are unhealthy are not replaced.
	KeepUnhealthy bool
	// LoadBalancers are the keys of the load balancers with which the instances are
	// registered, nil when missing, which means the template's.
	LoadBalancers []string
	// Node is merged over the template's.
	Node nodesettings.Settings
	// Candidates are nil when missing, which means the template's.
	Candidates []candidates.Candidate
	// ReturnAfterSeconds is 0 when missing, which means the template's.
	ReturnAfterSeconds int32
}
