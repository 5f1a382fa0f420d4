// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// Name is the name of the provider in the configuration.
const Name = "docker"

// defaultStopTimeout is how long a container may take to stop.
const defaultStopTimeout = 10 * time.Second

// maxStopTimeout leaves time for the other requests of a call, which the server limits.
const maxStopTimeout = 20 * time.Second

// Options configure the provider.
type Options struct {
	provider.CommonOptions

	// Host is the address of the Docker daemon, such as unix:///var/run/docker.sock. If it
	// is empty, DOCKER_HOST and the other variables of Docker's clients apply.
	Host string
	// Image is the default image of containers.
	Image string
	// StopTimeout is how long a container may take to stop before it is killed.
	StopTimeout time.Duration
	// MetadataAddress is the host:port of the metadata service, empty to disable it.
	MetadataAddress string
	// Notices is a folder with the termination notices of instances, or empty.
	Notices string
}

var (
	_ provider.Options      = (*Options)(nil)
	_ provider.AgentOptions = (*Options)(nil)
)

// ReadOptions reads the options of the provider.
func ReadOptions(o *jsonc.Object) provider.Options {
	defer o.Finish()
	options := &Options{
		CommonOptions:   provider.ReadCommonOptions(o, defaultInstanceTypes()),
		Host:            o.String("host"),
		Image:           o.String("image"),
		StopTimeout:     o.Duration("stop_timeout", defaultStopTimeout),
		MetadataAddress: o.String("metadata_addr"),
		Notices:         o.String("notices"),
	}
	options.ReadSourceOption(o)
	return options
}

// defaultInstanceTypes returns small sizes for a laptop, in both architectures.
func defaultInstanceTypes() provider.Catalogue {
	types := provider.Catalogue{}
	for _, arch := range []string{provider.ArchAMD64, provider.ArchARM64} {
		for _, size := range []struct {
			name   string
			cpu    int64 // thousandths
			memory int64 // MiB
		}{
			{"small", 500, 768}, {"medium", 1000, 1536}, {"large", 2000, 3072},
		} {
			name := size.name + "." + arch
			types[name] = provider.InstanceType{
				Name:   name,
				CPU:    *resource.NewMilliQuantity(size.cpu, resource.DecimalSI),
				Memory: *resource.NewQuantity(size.memory<<20, resource.BinarySI),
				Arch:   arch,
			}
		}
	}
	return types
}

// Validate returns every rule that the options break.
func (o *Options) Validate(path *field.Path, _ sets.Set[string]) field.ErrorList {
	var errs field.ErrorList
	if o.Host != "" {
		if _, err := client.ParseHostURL(o.Host); err != nil {
			errs = append(errs, field.Invalid(path.Child("host"), o.Host, `must be an address such as "unix:///var/run/docker.sock"`))
		}
	}
	if strings.TrimSpace(o.Image) != o.Image {
		errs = append(errs, field.Invalid(path.Child("image"), o.Image, "must not begin or end with spaces"))
	}
	if o.StopTimeout < 0 || o.StopTimeout > maxStopTimeout || o.StopTimeout%time.Second != 0 {
		errs = append(errs, field.Invalid(path.Child("stop_timeout"), o.StopTimeout.String(), fmt.Sprintf("must be full seconds and at most %s", maxStopTimeout)))
	}
	errs = append(errs, o.validateMetadata(path)...)
	return append(errs, o.InstanceTypes.Validate(path.Child("instance_types"))...)
}

// ImmutableFields returns the options that need a restart to change.
func (o *Options) ImmutableFields(path *field.Path) []provider.ImmutableField {
	return []provider.ImmutableField{
		{Path: path.Child("host"), Value: o.Host},
		{Path: path.Child("image"), Value: o.Image},
		{Path: path.Child("stop_timeout"), Value: o.StopTimeout.String()},
		{Path: path.Child("metadata_addr"), Value: o.MetadataAddress},
		{Path: path.Child("notices"), Value: o.Notices},
	}
}

// NewProvider returns the provider for a shard.
func (o *Options) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	api, err := o.NewAPI(shard)
	if err != nil {
		return nil, err
	}
	engine := NewProvider(api, shard, callContext)
	if o.MetadataAddress == "" {
		return engine, nil
	}
	return &withMetadata{Provider: engine, address: o.MetadataAddress, source: &containers{api: api, notices: o.Notices}}, nil
}

// NewProvider returns a provider for an API. It serves no metadata.
func NewProvider(api cloud.API, shard provider.Shard, callContext provider.CallContextFunc) *cloud.Provider {
	return cloud.New(api, cloud.Options{CallContext: callContext, ExpectedNode: expectedNode(shard)})
}

// NewAPI returns the calls for the containers of a shard.
func (o *Options) NewAPI(shard provider.Shard) (*API, error) {
	options := []client.Opt{client.FromEnv, client.WithUserAgent("nstance-server"), client.WithHTTPRequestHook(checkDeadline)}
	if o.Host != "" {
		options = append(options, client.WithHost(o.Host))
	}
	docker, err := client.New(options...)
	if err != nil {
		return nil, fmt.Errorf("create a client of the Docker daemon %s: %w", o.Host, err)
	}
	return &API{docker: docker, options: o, shard: shard}, nil
}

// sortedKeys returns the keys of a map in order.
func sortedKeys(values map[string]string) []string {
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
