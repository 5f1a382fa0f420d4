// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// Name is the name of the provider in the configuration.
const Name = "aws"

// Options configure the provider.
type Options struct {
	provider.CommonOptions

	// Endpoint is the URL of the EC2 API. Empty means the endpoint of the region.
	Endpoint string
	// LoadBalancerEndpoint is the same for the API of Elastic Load Balancing.
	LoadBalancerEndpoint string
	// Image is the default image. Instances with a launch template do not use it.
	Image string
	// IdentityCertificates are the certificates with which EC2 signs identity documents, PEM.
	IdentityCertificates string
}

var (
	_ provider.Options            = (*Options)(nil)
	_ provider.AgentOptions       = (*Options)(nil)
	_ provider.PlaceOptions       = (*Options)(nil)
	_ provider.SubnetOptions      = (*Options)(nil)
	_ provider.UserdataOptions    = (*Options)(nil)
	_ provider.AttestationOptions = (*Options)(nil)
)

// CheckUserdata limits the size of userdata.
func (*Options) CheckUserdata(userdata []byte) error {
	_, err := packUserdata(userdata)
	if err != nil {
		return fmt.Errorf("must be smaller: %w", err)
	}
	return nil
}

// ValidateZone requires a zone of the region: its name begins with the name of the region, also of
// local zones
// (https://docs.aws.amazon.com/global-infrastructure/latest/regions/aws-availability-zones.html).
func (*Options) ValidateZone(path *field.Path, region, zone string) field.ErrorList {
	if !strings.HasPrefix(zone, region) || zone == region {
		return field.ErrorList{field.Invalid(path, zone, fmt.Sprintf("must be a zone of region %s, such as %sa", region, region))}
	}
	return nil
}

// ReadOptions reads the options of the provider.
func ReadOptions(o *jsonc.Object) provider.Options {
	defer o.Finish()
	options := &Options{
		CommonOptions:        provider.ReadCommonOptions(o, defaultInstanceTypes()),
		Endpoint:             o.String("endpoint"),
		LoadBalancerEndpoint: o.String("load_balancer_endpoint"),
		Image:                o.String(argImage),
		IdentityCertificates: o.String(argCertificates),
	}
	options.ReadSourceOption(o)
	options.ReadReserveOption(o)
	options.ReadAttestationOption(o)
	return options
}

// typeNames matches names of instance types.
var typeNames = regexp.MustCompile(`^[a-z0-9-]+\.[a-z0-9-]+$`)

// Validate returns every rule that the options break.
func (o *Options) Validate(path *field.Path, _ sets.Set[string]) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, validateEndpoint(path.Child("endpoint"), o.Endpoint, "https://ec2.us-west-2.amazonaws.com")...)
	errs = append(errs, validateEndpoint(path.Child("load_balancer_endpoint"), o.LoadBalancerEndpoint, "https://elasticloadbalancing.us-west-2.amazonaws.com")...)
	errs = append(errs, o.validateAttestation(path)...)
	if o.Image != "" && !imageIDs.MatchString(o.Image) {
		errs = append(errs, field.Invalid(path.Child(argImage), o.Image, "must be "+anImageID))
	}
	errs = append(errs, o.ValidateReserve(path)...)
	for _, name := range slices.Sorted(maps.Keys(o.InstanceTypes)) {
		if !typeNames.MatchString(name) {
			errs = append(errs, field.Invalid(path.Child("instance_types", name), name, "must be the name of an instance type, such as m7g.large"))
		}
	}
	return append(errs, o.InstanceTypes.Validate(path.Child("instance_types"))...)
}

// ValidateSubnet requires the id of a subnet.
func (o *Options) ValidateSubnet(path *field.Path, subnet string) field.ErrorList {
	if subnets.MatchString(subnet) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, subnet, "must be "+aSubnetID)}
}

// validateEndpoint reports a URL that cannot be an endpoint of the API.
func validateEndpoint(path *field.Path, endpoint, example string) field.ErrorList {
	if endpoint == "" {
		return nil
	}
	address, err := url.Parse(endpoint)
	if err != nil || address.Scheme != "https" && address.Scheme != "http" || address.Host == "" || address.User != nil ||
		address.Path != "" && address.Path != "/" || address.RawQuery != "" {
		return field.ErrorList{field.Invalid(path, endpoint, "must be an address such as "+example)}
	}
	return nil
}

// ImmutableFields returns the options that need a restart to change. Instance types and
// quotas can change at any time, because each Spec contains its type.
func (o *Options) ImmutableFields(path *field.Path) []provider.ImmutableField {
	return []provider.ImmutableField{
		{Path: path.Child("endpoint"), Value: o.Endpoint},
		{Path: path.Child("load_balancer_endpoint"), Value: o.LoadBalancerEndpoint},
		{Path: path.Child(argImage), Value: o.Image},
		o.ImmutableReserve(path),
	}
}

// NewProvider returns the provider for a shard.
func (o *Options) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	return o.newProvider(shard, callContext, nil)
}

func (o *Options) newProvider(shard provider.Shard, callContext provider.CallContextFunc, dial dialer) (provider.Provider, error) {
	c, err := connect(shard, dial)
	if err != nil {
		return nil, err
	}
	engine := cloud.New(c.newAPI(o), cloud.Options{CallContext: callContext, ExpectedNode: expectedNode(shard), Market: market})
	return &Provider{engine, c.newTargetGroups(o)}, nil
}

// expectedNode returns the function that predicts the Nodes of a shard. The firmware and the
// kernel of an instance use less than a twelfth of its memory.
func expectedNode(shard provider.Shard) func(provider.Spec) *corev1.Node {
	return func(spec provider.Spec) *corev1.Node {
		return cloud.LinuxNode(shard, spec.Type, spec.Type.CPU,
			*resource.NewQuantity(spec.Type.Memory.Value()/12*11, resource.BinarySI))
	}
}

// defaultInstanceTypes returns the types that need no configuration: common sizes of common
// families (https://aws.amazon.com/ec2/instance-types/).
func defaultInstanceTypes() provider.Catalogue {
	sizes := []struct {
		name string
		cpus int64
	}{{"large", 2}, {"xlarge", 4}, {"2xlarge", 8}, {"4xlarge", 16}, {"8xlarge", 32}}
	all := provider.Catalogue{}
	add := func(families []string, arch string, gibPerCPU int64, count int) {
		for _, family := range families {
			for _, size := range sizes[:count] {
				name := family + "." + size.name
				all[name] = provider.InstanceType{
					Name:   name,
					CPU:    *resource.NewQuantity(size.cpus, resource.DecimalSI),
					Memory: *resource.NewQuantity(size.cpus*gibPerCPU<<30, resource.BinarySI),
					Arch:   arch,
				}
			}
		}
	}
	add([]string{"c6i", "c7i"}, provider.ArchAMD64, 2, len(sizes))
	add([]string{"m6i", "m7i"}, provider.ArchAMD64, 4, len(sizes))
	add([]string{"r6i", "r7i"}, provider.ArchAMD64, 8, len(sizes))
	add([]string{"c6g", "c7g"}, provider.ArchARM64, 2, len(sizes))
	add([]string{"m6g", "m7g"}, provider.ArchARM64, 4, len(sizes))
	add([]string{"r6g", "r7g"}, provider.ArchARM64, 8, len(sizes))
	add([]string{"t3"}, provider.ArchAMD64, 4, 3)
	add([]string{"t4g"}, provider.ArchARM64, 4, 3)
	return all
}
