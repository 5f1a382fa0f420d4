// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package config reads the configuration of one shard server: JSON with
// comments and trailing commas.
package config

import (
	"errors"
	"time"

	"github.com/tailscale/hujson"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/instance"
)

// Config is a configuration that has passed validation. Nobody changes it.
type Config struct {
	// Source is what the configuration was read from.
	Source    Source
	ClusterID string
	Shard     Shard
	// Templates by name.
	Templates map[string]Template
	// Groups are the static groups by tenant and group id.
	Groups map[string]map[string]Group
}

// Shard is what concerns this shard only.
type Shard struct {
	ID    string
	Infra Infra
	Bind  Bind
	TLS   TLS
	// SubnetPools maps a pool id to the provider's subnets, in the order in
	// which they are tried.
	SubnetPools map[string][]string
	// DynamicSubnetPools are the pools that dynamic groups may use. Empty
	// means all.
	DynamicSubnetPools []string
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
	// Kubeconfig is the path of the kubeconfig of the cluster that the Nodes
	// are in.
	Kubeconfig string
	// BootDelay is the time from ordering an instance to its Node's appearing.
	BootDelay time.Duration
	// InstanceTypes is the catalogue by name: the built-in types and those
	// configured, with their quotas.
	InstanceTypes map[string]instance.Type
}

// Bind holds the addresses to listen at, host:port.
type Bind struct {
	HealthAddr   string
	OperatorAddr string
}

// TLS holds the paths of PEM files.
type TLS struct {
	// CA is the authority of the cluster, which issues all certificates.
	CA string
	// Cert and Key are the server's own.
	Cert string
	Key  string
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
	Vars         map[string]string
}

// Group is a static group as configured.
type Group struct {
	Template string
	// Size is nil when absent, which means the template's.
	Size *int32
	// InstanceType and SubnetPool mean the template's when empty.
	InstanceType string
	SubnetPool   string
	// Vars are added over the template's.
	Vars map[string]string
}

// InvalidError refuses a configuration.
type InvalidError struct {
	// Mistakes has every mistake found, one a line, each with its path, its
	// value and what is allowed.
	Mistakes error
}

// Error lists the mistakes.
func (e *InvalidError) Error() string {
	return e.Mistakes.Error()
}

// Load reads and validates the file at path. Paths in it that are relative are
// relative to the file's folder. The error wraps an *InvalidError unless the
// file cannot be read.
func Load(path string) (*Config, error) {
	source, err := Read(path)
	if err != nil {
		return nil, err
	}
	return source.Parse()
}

// Parse is Load for the content of a file in folder dir.
func Parse(data []byte, dir string) (*Config, error) {
	root, err := hujson.Parse(data)
	if err != nil {
		return nil, &InvalidError{Mistakes: err}
	}
	var shapeErrs field.ErrorList
	config := readConfig(newObject(nil, &root, &shapeErrs), dir)
	if err := join(shapeErrs, config.validate()); err != nil {
		return nil, &InvalidError{Mistakes: err}
	}
	return config, nil
}

// join returns all errors as one. What is or lies in a field of the wrong type
// has been reported with it, so that it also breaks a rule is left out.
func join(shapeErrs, ruleErrs field.ErrorList) error {
	reported := make(map[string]bool, len(shapeErrs))
	errs := make([]error, 0, len(shapeErrs)+len(ruleErrs))
	for _, err := range shapeErrs {
		reported[err.Field] = true
		errs = append(errs, err)
	}
	for _, err := range ruleErrs {
		if !within(err.Field, reported) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// within tells whether path, or a path that leads to it, is one of paths.
func within(path string, paths map[string]bool) bool {
	for end, char := range path {
		if (char == '.' || char == '[') && paths[path[:end]] {
			return true
		}
	}
	return paths[path]
}
