// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

// tagPrefix begins the keys of all tags of the provider. Tags of users must not have it.
const tagPrefix = "nstance:"

// Tags of an instance. tagInstanceID identifies it. A shard finds its instances by the next
// three tags. If it has no record of an instance, it restores the record from the others.
const (
	tagInstanceID = tagPrefix + "instance-id"
	tagManaged    = tagPrefix + "managed"
	tagClusterID  = tagPrefix + "cluster-id"
	tagShard      = tagPrefix + "shard"

	tagTenant          = tagPrefix + "tenant"
	tagGroup           = tagPrefix + "group"
	tagOnDemand        = tagPrefix + "on-demand"
	tagIdempotencyKey  = tagPrefix + "idempotency-key"
	tagInfraConfigHash = tagPrefix + "infra-config-hash"
)

// Tags for users. No code reads them.
const (
	tagKind      = tagPrefix + "kind"
	tagTemplate  = tagPrefix + "template"
	tagCreatedAt = tagPrefix + "created-at"
	tagName      = "Name"
)

// isTrue is the value of tagManaged and tagOnDemand.
const isTrue = "true"

const (
	// maxTagKey and maxTagValue are the longest key and value of a tag, in characters
	// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html).
	maxTagKey   = 128
	maxTagValue = 256
	// maxTags is how many tags an instance may have.
	maxTags = 50
	// ownTags is how many tags the provider needs at most.
	ownTags = 18
)

// tagsOf returns the tags for the instance of a request, by key. They contain no secrets,
// because users who can list instances can read them.
func tagsOf(shard provider.Shard, spec provider.Spec, users map[string]string) map[string]string {
	tags := map[string]string{tagName: shard.ClusterID + "-" + spec.Group.Group + "-" + spec.ID}
	for key, value := range users {
		tags[key] = value
	}
	tags[tagInstanceID], tags[tagManaged] = spec.ID, isTrue
	tags[tagClusterID], tags[tagShard] = shard.ClusterID, shard.ID
	tags[tagTenant], tags[tagGroup] = spec.Group.Tenant, spec.Group.Group
	tags[tagKind] = spec.Kind
	tags[tagCreatedAt] = spec.CreatedAt.UTC().Format(time.RFC3339)
	if spec.Template != "" {
		tags[tagTemplate] = spec.Template
	}
	if spec.Origin.OnDemand {
		tags[tagOnDemand] = isTrue
	}
	if spec.Origin.InfraConfigHash != "" {
		tags[tagInfraConfigHash] = spec.Origin.InfraConfigHash
	}
	// The key may contain any characters, and be longer than the value of a tag.
	encoded := base64.RawURLEncoding.EncodeToString([]byte(spec.Origin.IdempotencyKey))
	for n := 1; encoded != ""; n++ {
		length := min(maxTagValue, len(encoded))
		tags[idempotencyTag(n)] = encoded[:length]
		encoded = encoded[length:]
	}
	return tags
}

// idempotencyTag returns the key of the tag with a part of the idempotency key.
func idempotencyTag(part int) string {
	if part == 1 {
		return tagIdempotencyKey
	}
	return fmt.Sprintf("%s-%d", tagIdempotencyKey, part)
}

// specifications returns the tags for an instance and the resources created with it. Their
// order is always the same, because a repeated request must have the same content.
func specifications(tags map[string]string, market types.MarketType) []types.TagSpecification {
	var list []types.Tag
	for key, value := range tags {
		list = append(list, types.Tag{Key: awssdk.String(key), Value: awssdk.String(value)})
	}
	slices.SortFunc(list, func(a, b types.Tag) int { return strings.Compare(*a.Key, *b.Key) })
	resources := []types.ResourceType{types.ResourceTypeInstance, types.ResourceTypeVolume, types.ResourceTypeNetworkInterface}
	if market == types.MarketTypeSpot {
		resources = append(resources, types.ResourceTypeSpotInstancesRequest)
	}
	var all []types.TagSpecification
	for _, resource := range resources {
		all = append(all, types.TagSpecification{ResourceType: resource, Tags: list})
	}
	return all
}

// filters returns filters that select the instances of the shard.
func (a *API) filters() []types.Filter {
	return []types.Filter{
		filter("tag:"+tagManaged, isTrue),
		filter("tag:"+tagClusterID, a.shard.ClusterID),
		filter("tag:"+tagShard, a.shard.ID),
	}
}

func filter(name string, values ...string) types.Filter {
	return types.Filter{Name: awssdk.String(name), Values: values}
}

// identify returns the VM of an instance without its state. It returns false if the tags do
// not identify an instance of the shard.
func (a *API) identify(i *types.Instance) (cloud.VM, bool) {
	tags := map[string]string{}
	for _, tag := range i.Tags {
		tags[awssdk.ToString(tag.Key)] = awssdk.ToString(tag.Value)
	}
	if _, err := puidv7.Parse(tags[tagInstanceID]); err != nil || tags[tagTenant] == "" || tags[tagGroup] == "" ||
		tags[tagManaged] != isTrue || tags[tagClusterID] != a.shard.ClusterID || tags[tagShard] != a.shard.ID {
		return cloud.VM{}, false
	}
	var encoded strings.Builder
	for n := 1; tags[idempotencyTag(n)] != ""; n++ {
		encoded.WriteString(tags[idempotencyTag(n)])
	}
	key, err := base64.RawURLEncoding.DecodeString(encoded.String())
	if err != nil {
		return cloud.VM{}, false
	}
	vm := a.vm(i, tags[tagInstanceID])
	vm.Group = instance.GroupKey{Tenant: tags[tagTenant], Group: tags[tagGroup]}
	vm.Origin = instance.Origin{OnDemand: tags[tagOnDemand] == isTrue, IdempotencyKey: string(key), InfraConfigHash: tags[tagInfraConfigHash]}
	return vm, true
}

// vm returns the VM of an instance, without the fields from tags and state.
func (a *API) vm(i *types.Instance, id string) cloud.VM {
	zone := a.shard.Zone
	if i.Placement != nil && i.Placement.AvailabilityZone != nil {
		zone = *i.Placement.AvailabilityZone
	}
	return cloud.VM{
		ID:         id,
		ProviderID: providerID(zone, awssdk.ToString(i.InstanceId)),
		Type:       string(i.InstanceType),
		Addresses:  addresses(i),
		// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-naming.html
		Hostname: awssdk.ToString(i.PrivateDnsName),
	}
}

// addresses returns the private addresses of an instance, IPv4 first, the address of the
// first network interface before those of others.
func addresses(i *types.Instance) []netip.Addr {
	texts := []string{awssdk.ToString(i.PrivateIpAddress)}
	for _, nic := range i.NetworkInterfaces {
		texts = append(texts, awssdk.ToString(nic.PrivateIpAddress))
	}
	for _, nic := range i.NetworkInterfaces {
		for _, address := range nic.Ipv6Addresses {
			texts = append(texts, awssdk.ToString(address.Ipv6Address))
		}
	}
	var all []netip.Addr
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil && !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	return all
}

// providerID returns the provider id that the AWS cloud provider of Kubernetes sets
// (https://github.com/kubernetes/cloud-provider-aws).
func providerID(zone, id string) string { return Name + ":///" + zone + "/" + id }

var errNoInstance = errors.New("has no id of an instance")

// instanceID returns the EC2 id in a provider id.
func instanceID(providerID string) (string, error) {
	id := providerID[strings.LastIndexByte(providerID, '/')+1:]
	if !instances.MatchString(id) {
		return "", fmt.Errorf("provider id %q: %w", providerID, errNoInstance)
	}
	return id, nil
}
