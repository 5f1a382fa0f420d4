// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

var runParameters = []string{
	"ClientToken", "MinCount", "MaxCount", "ImageId", "InstanceType", "SubnetId", "SecurityGroupId.N", "KeyName", "UserData",
	"Ipv6AddressCount", "InstanceInitiatedShutdownBehavior", "IamInstanceProfile.Name", "IamInstanceProfile.Arn",
	"LaunchTemplate.LaunchTemplateId", "LaunchTemplate.LaunchTemplateName", "LaunchTemplate.Version",
	"MetadataOptions.HttpTokens", "MetadataOptions.HttpEndpoint", "MetadataOptions.HttpPutResponseHopLimit", "MetadataOptions.InstanceMetadataTags",
	"InstanceMarketOptions.MarketType", "InstanceMarketOptions.SpotOptions.MaxPrice", "InstanceMarketOptions.SpotOptions.SpotInstanceType",
	"InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior",
	"TagSpecification.N.ResourceType", "TagSpecification.N.Tag.N.Key", "TagSpecification.N.Tag.N.Value",
	"BlockDeviceMapping.N.DeviceName", "BlockDeviceMapping.N.Ebs.VolumeSize", "BlockDeviceMapping.N.Ebs.VolumeType", "BlockDeviceMapping.N.Ebs.Iops",
	"BlockDeviceMapping.N.Ebs.Throughput", "BlockDeviceMapping.N.Ebs.Encrypted", "BlockDeviceMapping.N.Ebs.KmsKeyId", "BlockDeviceMapping.N.Ebs.DeleteOnTermination",
}

const (
	maxToken    = 64
	maxUserdata = 16384
	maxTags     = 50
)

// launch is the launch for which a token was used.
type launch struct {
	digest [sha256.Size]byte
	// instance is the id of the instance, or empty if the launch was refused for lack of
	// capacity.
	instance string
}

// Made is an instance that was launched, with the tag of its id.
type Made struct {
	InstanceID, Tag, Token string
}

func (s *Server) runInstances(p params) (any, error) {
	if p.get("MinCount") != "1" || p.get("MaxCount") != "1" {
		return nil, refuse("InvalidParameterValue", "this server launches one instance by call")
	}
	s.permissions["ec2:CreateTags"] = s.permissions["ec2:CreateTags"] || p.has("TagSpecification.1.ResourceType")
	if len(p.structure("IamInstanceProfile")) > 0 {
		s.permissions["iam:PassRole"] = true
	}
	token := p.get("ClientToken")
	if len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
		return nil, refuse("InvalidParameterValue", "Value (%s) for parameter clientToken is invalid. The client token must be at most 64 ASCII characters", token)
	}
	content := url.Values{}
	for name, values := range p {
		if name != "ClientToken" {
			content[name] = values
		}
	}
	digest := sha256.Sum256([]byte(content.Encode()))
	used, known := s.tokens[token]
	switch {
	case known && used.digest != digest:
		return nil, refuse("IdempotentParameterMismatch", "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).")
	case known && used.instance != "":
		i, exists := s.instances[used.instance]
		if !exists || i.state(s, time.Now()).name == "terminated" {
			return nil, refuse("IdempotentInstanceTerminated", "The instance that was launched with this client token was terminated.")
		}
		described := s.describe(i, time.Now())
		described.Tags = nil // a repeated response may lack them
		return runResult{ReservationID: "r-" + i.ID[2:], Instances: []instanceItem{described}}, nil
	}
	i, err := s.check(p)
	if err != nil {
		return nil, err
	}
	if err := s.place(i); err != nil {
		s.tokens[token] = launch{digest: digest}
		return nil, err
	}
	s.tokens[token] = launch{digest: digest, instance: i.ID}
	s.instances[i.ID] = i
	s.made = append(s.made, Made{InstanceID: i.ID, Tag: i.Tags["nstance:instance-id"], Token: token})
	return runResult{ReservationID: "r-" + i.ID[2:], Instances: []instanceItem{s.describe(i, time.Now())}}, nil
}

// check returns the instance of a call, or refuses the call.
func (s *Server) check(p params) (*Instance, error) {
	i := &Instance{Type: p.get("InstanceType"), Subnet: p.get("SubnetId"), Market: "on-demand", Params: map[string]string{}, launched: time.Now()}
	for name := range p {
		i.Params[name] = p.get(name)
	}
	template := p.structure("LaunchTemplate")
	if len(template) > 0 {
		if id, name := template.get("LaunchTemplateId"), template.get("LaunchTemplateName"); s.templates[id+name] == "" {
			return nil, refuse("InvalidLaunchTemplateId.NotFound", "The specified launch template, with template ID %s%s, does not exist.", id, name)
		}
	}
	subnet, found := s.subnets[i.Subnet]
	if !found {
		return nil, refuse("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", i.Subnet)
	}
	i.Zone = subnet.zone
	arch, found := s.types[i.Type]
	if !found {
		return nil, refuse("InvalidParameterValue", "Invalid value '%s' for InstanceType.", i.Type)
	}
	imageID := p.get("ImageId")
	if imageID == "" {
		imageID = s.templates[template.get("LaunchTemplateId")+template.get("LaunchTemplateName")]
	}
	switch image, found := s.images[imageID]; {
	case imageID == "":
		return nil, refuse("MissingParameter", "The request must contain the parameter ImageId")
	case !found:
		return nil, refuse("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", imageID)
	case image.Arch != arch:
		return nil, refuse("InvalidParameterValue", "The architecture '%s' of the specified instance type does not match the architecture '%s' of the specified AMI.", arch, image.Arch)
	}
	for _, group := range p.list("SecurityGroupId") {
		if group != SecurityGroup {
			return nil, refuse("InvalidGroup.NotFound", "The security group '%s' does not exist", group)
		}
	}
	if key := p.get("KeyName"); key != "" && key != KeyName {
		return nil, refuse("InvalidKeyPair.NotFound", "The key pair '%s' does not exist", key)
	}
	if p.get("InstanceMarketOptions.MarketType") == "spot" {
		i.Market = "spot"
	}
	if text := p.get("UserData"); text != "" {
		data, err := base64.StdEncoding.DecodeString(text)
		switch {
		case err != nil:
			return nil, refuse("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.")
		case len(data) > maxUserdata:
			return nil, refuse("InvalidParameterValue", "User data is limited to 16384 bytes")
		}
		i.Userdata = data
	}
	i.ipv6, _ = strconv.Atoi(p.get("Ipv6AddressCount"))
	for _, mapping := range p.structures("BlockDeviceMapping") {
		if size, err := strconv.Atoi(mapping.get("Ebs.VolumeSize")); err == nil && size < 8 {
			return nil, refuse("InvalidBlockDeviceMapping", "Volume of size %dGB is smaller than snapshot 'snap-0123456789abcdef0', expect size >= 8GB", size)
		}
		if kind := mapping.get("Ebs.VolumeType"); mapping.has("Ebs.Iops") && kind == "gp2" {
			return nil, refuse("InvalidParameterCombination", "The parameter iops is not supported for gp2 volumes.")
		}
	}
	if err := i.tag(p); err != nil {
		return nil, err
	}
	tags := p.get("MetadataOptions.InstanceMetadataTags")
	return i, i.checkMetadataTags(tags == "enabled" || tags == "" && s.MetadataTags)
}

// metadataKeys are the keys of tags that can be in metadata
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html).
var metadataKeys = regexp.MustCompile(`^[0-9a-zA-Z\-_+=,.@:]{1,255}$`)

// checkMetadataTags refuses tags that cannot be in metadata, if they shall be.
func (i *Instance) checkMetadataTags(enabled bool) error {
	for key := range i.Tags {
		if enabled && (!metadataKeys.MatchString(key) || key == "." || key == ".." || key == "_index") {
			return refuse("InvalidParameterValue", "'%s' is not a valid tag key. Tag keys must match pattern ([0-9a-zA-Z\\-_+=,.@:]{1,255}), and must not be a reserved name ('.', '..', '_index')", key)
		}
	}
	return nil
}

// tag reads the tags of a call. They may be for several kinds of resources.
func (i *Instance) tag(p params) error {
	i.Tags = map[string]string{}
	for _, specification := range p.structures("TagSpecification") {
		kind := specification.get("ResourceType")
		if !slices.Contains([]string{"instance", "volume", "network-interface", "spot-instances-request", "elastic-gpu"}, kind) ||
			kind == "spot-instances-request" && i.Market != "spot" {
			return refuse("InvalidParameterValue", "'%s' is not a valid taggable resource type for this operation.", kind)
		}
		i.Tagged = append(i.Tagged, kind)
		tags := map[string]string{}
		for _, tag := range specification.structures("Tag") {
			key, value := tag.get("Key"), tag.get("Value")
			_, duplicate := tags[key]
			switch {
			case strings.HasPrefix(key, "aws:"):
				return refuse("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
			case key == "" || utf8.RuneCountInString(key) > 128:
				return refuse("InvalidParameterValue", "Tag key exceeds the maximum length of 128 characters")
			case utf8.RuneCountInString(value) > 256:
				return refuse("InvalidParameterValue", "Tag value exceeds the maximum length of 256 characters")
			case duplicate:
				return refuse("InvalidParameterValue", "Duplicate tag key '%s' specified.", key)
			}
			tags[key] = value
		}
		if len(tags) > maxTags {
			return refuse("TagLimitExceeded", "The maximum number of tags for a resource has been reached.")
		}
		if kind == "instance" {
			i.Tags = tags
		}
	}
	return nil
}

// place checks the capacity for an instance and assigns an address. mu must be locked.
func (s *Server) place(i *Instance) error {
	count := 0
	for _, other := range s.instances {
		if state := other.state(s, time.Now()); other.Market == i.Market && state.name != "terminated" && state.name != "shutting-down" {
			count++
		}
	}
	subnet := s.subnets[i.Subnet]
	limit, limited := s.quotas[i.Market]
	switch {
	case s.unoffered[i.Type+"/"+i.Zone]:
		return refuse("Unsupported", "Your requested instance type (%s) is not supported in your requested Availability Zone (%s).", i.Type, i.Zone)
	case s.full[i.Type+"/"+i.Zone+"/"+i.Market] && i.Market == "spot":
		return serverError("InsufficientInstanceCapacity", "There is no Spot capacity available that matches your request.")
	case s.full[i.Type+"/"+i.Zone+"/"+i.Market]:
		return serverError("InsufficientInstanceCapacity", "We currently do not have sufficient %s capacity in the Availability Zone you requested (%s).", i.Type, i.Zone)
	case limited && count >= limit && i.Market == "spot":
		return refuse("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
	case limited && count >= limit:
		return refuse("VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit of %d allows for the instance bucket that the specified instance type belongs to.", limit)
	case subnet.exhausted, s.free(subnet) == 0 && !subnet.ipv6Only:
		return refuse("InsufficientFreeAddressesInSubnet", "The specified subnet does not have enough free addresses to satisfy the request.")
	}
	number := len(s.made) + 1
	i.ID = fmt.Sprintf("i-%017x", number)
	i.address = fmt.Sprintf("10.%d.%d.%d", number>>16&255, number>>8&255, number&255)
	if len(s.failures) > 0 {
		i.failure = &s.failures[0]
		s.failures = s.failures[1:]
	}
	return nil
}
