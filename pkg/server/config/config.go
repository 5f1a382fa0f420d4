// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package config reads the configuration of one shard server: JSON with
// comments and trailing commas.
package config

import (
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// Config is a configuration that has passed validation. Nobody changes it.
type Config struct {
	// Source is what the configuration was read from.
	Source    Source
	ClusterID string
	// ClusterElection elects the server that makes the cluster's keys and
	// registers operators.
	ClusterElection Election
	Secrets         Secrets
	Shard           Shard
	// OperatorCertificateTTL is how long the certificate of an operator is valid.
	OperatorCertificateTTL time.Duration
	// Defaults apply to all templates.
	Defaults Defaults
	// Templates by name.
	Templates map[string]Template
	// Groups are the static groups by tenant and group id.
	Groups map[string]map[string]Group
}

// Election says how servers choose a leader among themselves.
type Election struct {
	// Enabled is false for a server that has no rival: it always leads.
	Enabled bool
	// Interval is how often the lock is looked at, and renewed by the leader.
	Interval time.Duration
	// Timeout is after how long without a renewal another server leads. It is at
	// least three intervals.
	Timeout time.Duration
}

// Secrets says where the keys are that the secrets in the storage are encrypted
// with.
type Secrets struct {
	EncryptionKey KeySource
	// OldEncryptionKeys can be read with, and are not written with.
	OldEncryptionKeys []KeySource
}

// KeySource is where a key is. Exactly one field is set.
type KeySource struct {
	// Env is the name of an environment variable.
	Env string
	// File is the absolute path of a file.
	File string
}

// Shard is what concerns this shard only.
type Shard struct {
	ID       string
	Infra    Infra
	Election Election
	// Bind are the addresses to listen at.
	Bind Addresses
	// Advertise are the addresses at which others find what Bind names. An empty
	// one is that of Bind; a host that is empty or stands for all of the
	// machine's is the machine's address.
	Advertise Addresses
	// SubnetPools maps a pool id to the provider's subnets, in the order in
	// which they are tried.
	SubnetPools map[string][]string
	// DynamicSubnetPools are the pools that dynamic groups may use. Empty
	// means all.
	DynamicSubnetPools []string
	Expiry             Expiry
	// DefaultDrainTimeout is that of groups that name none. Zero means that
	// instances go at once.
	DefaultDrainTimeout time.Duration
	// CreateRateLimit is the least time between two instances that are ordered.
	// Zero means no limit.
	CreateRateLimit   time.Duration
	GarbageCollection GarbageCollection
	// RequestTimeout bounds one call to the storage or to the provider.
	RequestTimeout time.Duration
	// ShutdownTimeout is how long calls under way may take when the server stops.
	ShutdownTimeout time.Duration
}

// Addresses are those of a server's listeners, host:port.
type Addresses struct {
	HealthAddr       string
	ElectionAddr     string
	RegistrationAddr string
	OperatorAddr     string
}

// Expiry are the ages at which instances are replaced. Zero means never.
type Expiry struct {
	// EligibleAge is when an instance is replaced if nothing else goes on in its
	// group.
	EligibleAge time.Duration
	// ForcedAge is when it is replaced whatever goes on.
	ForcedAge time.Duration
	// OnDemandAge is when an on-demand instance ends.
	OnDemandAge time.Duration
}

// GarbageCollection says when instances that came to nothing are given up.
type GarbageCollection struct {
	// Interval is how often the provider's instances are compared with those
	// that are known. Zero means never.
	Interval time.Duration
	// RegistrationTimeout is how long an instance that was ordered may stay
	// unknown to its provider. Zero means for ever.
	RegistrationTimeout time.Duration
	// DeletedRecordRetention is how long one that is gone can be asked about.
	DeletedRecordRetention time.Duration
}

// Defaults are what templates begin with.
type Defaults struct {
	Userdata Userdata
	Vars     map[string]string
	Args     map[string]any
	Files    map[string]File
}

// Userdata is what instances start with, before decoding and rendering.
type Userdata struct {
	// Inline is the userdata itself, and URL where to get it from. At most one is
	// set.
	Inline string
	URL    string
	// Encoding is how what is inline or at the URL is encoded: one of the encodings
	// below, EncodingPlain when empty. It is decoded before it is rendered. How the
	// provider encodes what it then gets as plain text is its own affair.
	Encoding string
}

// Encodings of the source of userdata (server document).
const (
	EncodingPlain  = "plain"
	EncodingBase64 = "base64"
	// EncodingGzip is for a URL only: a JSON string cannot hold it.
	EncodingGzip = "gzip"
	// EncodingGzipBase64 is gzip that is in base64.
	EncodingGzipBase64 = "base64+gzip"
)

// File is a file that agents put on their instances. Servers keep it, and its
// digest, for agents to come.
type File struct {
	// Kind is one of certificate, secret, storage, env, json and string.
	Kind string
	// Content is everything else that the configuration says of it.
	Content map[string]any
}

// Infra says where instances come from.
type Infra struct {
	// Provider names the instance provider. ProviderKwok is the only one.
	Provider string
	Region   string
	Zone     string
	// Kwok holds the options of ProviderKwok.
	Kwok Kwok
}

// ProviderKwok names the provider whose instances are Nodes without machines.
const ProviderKwok = "kwok"

// Kwok holds the options of the provider of the same name.
type Kwok struct {
	// Kubeconfig is the absolute path of the kubeconfig of the cluster that the
	// Nodes are in.
	Kubeconfig string
	// BootDelay is the time from ordering an instance to its Node's appearing.
	BootDelay time.Duration
	// InstanceTypes is the catalogue by name: the built-in types and those
	// configured, with their quotas.
	InstanceTypes map[string]instance.Type
	// SubnetCapacity is how many instances a subnet has room for. One that is not
	// in it has no limit.
	SubnetCapacity map[string]int32
}

// Template is what groups of instances have in common.
type Template struct {
	// Kind is the prefix of instance ids, three lower case letters.
	Kind string
	// Arch is instance.ArchAMD64 or instance.ArchARM64.
	Arch string
	// Size is that of a group that names none.
	Size         int32
	InstanceType string
	SubnetPool   string
	// Userdata is that of Defaults when it is the zero value.
	Userdata Userdata
	Vars     map[string]string
	Args     map[string]any
	Files    map[string]File
}

// Group is a static group as configured.
type Group struct {
	Template string
	// Size is nil when absent, which means the template's.
	Size *int32
	// InstanceType and SubnetPool mean the template's when empty.
	InstanceType string
	SubnetPool   string
	// Vars are added over the template's, and Args likewise.
	Vars map[string]string
	Args map[string]any
	// DrainTimeout is nil when absent, which means the shard's default. Zero
	// means that instances go at once.
	DrainTimeout *time.Duration
}
