// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider"
)

// Arguments of the provider.
const (
	argImage           = "image"
	argImageFilters    = "image_filters"
	argImageOwners     = "image_owners"
	argSecurityGroups  = "security_groups"
	argInstanceProfile = "iam_instance_profile"
	argKeyName         = "key_name"
	argRootVolume      = "root_volume"
	argMarket          = "market"
	argSpotMaxPrice    = "spot_max_price"
	argMetadata        = "metadata_options"
	argIPv6            = "ipv6_addresses"
	argLaunchTemplate  = "launch_template"
	argTags            = "tags"
)

// Values of argMarket.
const (
	marketOnDemand = "on-demand"
	marketSpot     = string(types.MarketTypeSpot)
)

// marketArgument selects the market. A launch template must not have market options of its own: EC2
// cannot replace them by on-demand.
var marketArgument = provider.MarketArgument{
	Name:    argMarket,
	Values:  map[string]string{provider.MarketStandard: marketOnDemand, provider.MarketSpot: marketSpot},
	Default: marketOnDemand,
}

var _ provider.Markets = (*Options)(nil)

// Market returns the market that arguments mean.
func (*Options) Market(args map[string]any) string { return marketArgument.Market(args) }

// MarketArgs returns arguments that mean a market. Only spot instances have a price.
func (*Options) MarketArgs(args map[string]any, market string) (map[string]any, error) {
	args, changed, err := marketArgument.Set(args, market)
	if changed && market != provider.MarketSpot {
		delete(args, argSpotMaxPrice)
	}
	return args, err
}

// anImageID describes the id of an image in error messages.
const anImageID = "the id of an image, such as ami-0123456789abcdef0"

// aSubnetID describes the id of a subnet in error messages.
const aSubnetID = "the id of a subnet, such as subnet-0123456789abcdef0"

// idSuffix matches the rest of the id of a resource after its type
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html).
const idSuffix = `-([0-9a-f]{8}|[0-9a-f]{17})`

var (
	regions   = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	subnets   = regexp.MustCompile(`^subnet` + idSuffix + `$`)
	instances = regexp.MustCompile(`^i` + idSuffix + `$`)
	mentions  = regexp.MustCompile(`\bi` + idSuffix + `\b`)

	imageIDs   = regexp.MustCompile(`^ami` + idSuffix + `$`)
	groupIDs   = regexp.MustCompile(`^sg` + idSuffix + `$`)
	templates  = regexp.MustCompile(`^lt` + idSuffix + `$`)
	names      = regexp.MustCompile(`^[A-Za-z0-9().\-/_]{3,128}$`)
	versions   = regexp.MustCompile(`^(\$Latest|\$Default|[1-9][0-9]*)$`)
	owners     = regexp.MustCompile(`^(self|amazon|aws-marketplace|aws-backup-vault|[0-9]{12})$`)
	profiles   = regexp.MustCompile(`^([\w+=,.@-]{1,128}|arn:aws[a-z-]*:iam::[0-9]{12}:instance-profile/[\w+=,.@/-]+)$`)
	keyNames   = regexp.MustCompile(`^[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?$`)
	prices     = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)
	devices    = regexp.MustCompile(`^(/dev/)?[a-z0-9]+$`)
	filterName = regexp.MustCompile(`^[a-z0-9-]+(:.+)?$`)
	// metadataKeys are the keys of tags that instance metadata can have, except for reservedKeys
	// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html).
	metadataKeys = regexp.MustCompile(`^[A-Za-z0-9+=.,_:@-]+$`)
	reservedKeys = []string{".", "..", "_index"}
)

// arguments are the arguments of the provider for one instance.
type arguments struct {
	image           string
	imageOwners     []string
	imageFilters    map[string][]string
	securityGroups  []string
	instanceProfile string
	keyName         string
	rootVolume      volume
	market          string
	spotMaxPrice    string
	metadata        metadata
	ipv6Addresses   int32
	launchTemplate  launchTemplate
	tags            map[string]string
}

// hasImage reports whether the arguments select an image.
func (a *arguments) hasImage() bool { return a.image != "" || len(a.imageFilters) > 0 }

// ValidateArgs validates arguments before they are rendered: it ignores text with templates.
func (o *Options) ValidateArgs(path *field.Path, args map[string]any) field.ErrorList {
	_, errs := readArguments(path, args)
	return errs
}

func readArguments(path *field.Path, args map[string]any) (arguments, field.ErrorList) {
	var errs field.ErrorList
	r := &reader{path: path, members: args, errs: &errs}
	a := arguments{
		image:           r.match(argImage, imageIDs, anImageID),
		imageOwners:     r.matches(argImageOwners, owners, "self, amazon, aws-marketplace, aws-backup-vault or the 12 digits of an account"),
		imageFilters:    r.filters(argImageFilters),
		securityGroups:  r.matches(argSecurityGroups, groupIDs, "the id of a security group, such as sg-0123456789abcdef0"),
		instanceProfile: r.match(argInstanceProfile, profiles, "the name or the ARN of an instance profile"),
		keyName:         r.match(argKeyName, keyNames, "the name of a key pair"),
		rootVolume:      readVolume(r.object(argRootVolume)),
		market:          r.oneOf(argMarket, marketOnDemand, marketSpot),
		spotMaxPrice:    r.match(argSpotMaxPrice, prices, `a price in dollars for an hour, such as "0.05"`),
		metadata:        readMetadata(r.object(argMetadata)),
		ipv6Addresses:   r.number(argIPv6, 0, 50),
		launchTemplate:  readLaunchTemplate(r.object(argLaunchTemplate)),
		tags:            r.tags(argTags),
	}
	if a.spotMaxPrice != "" && a.market != marketSpot && !isTemplate(a.market) {
		r.report(field.Forbidden(path.Child(argSpotMaxPrice), "only instances of the market "+marketSpot+" have a price"))
	}
	if a.metadata.tags == string(types.InstanceMetadataTagsStateEnabled) {
		for _, key := range slices.Sorted(maps.Keys(a.tags)) {
			if !metadataKeys.MatchString(key) || slices.Contains(reservedKeys, key) {
				r.report(field.Invalid(path.Child(argTags).Key(key), key, "must consist of letters, digits and + - = . , _ : @, and not be one of "+
					strings.Join(reservedKeys, " ")+", with instance_metadata_tags "+a.metadata.tags))
			}
		}
	}
	if len(a.imageFilters) > 0 && len(a.imageOwners) == 0 && a.image == "" {
		r.report(field.Required(path.Child(argImageOwners), "every account can publish an image with any name"))
	}
	r.finish()
	return a, errs
}

// volume describes the root volume of an instance.
type volume struct {
	device, kind, kmsKey string
	gib                  int32
	iops, throughput     int32
	encrypted            *bool
}

func readVolume(r *reader) volume {
	v := volume{
		device:     r.match("device", devices, "the name of a device, such as /dev/xvda"),
		kind:       r.oneOf("type", "gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"),
		kmsKey:     r.text("kms_key"),
		iops:       r.number("iops", 100, 256000),
		throughput: r.number("throughput", 125, 2000),
		encrypted:  r.boolean("encrypted"),
	}
	if text := r.text("size"); text != "" && !isTemplate(text) {
		size, err := resource.ParseQuantity(text)
		if gib := size.Value() >> 30; err != nil || size.Value() != gib<<30 || gib < 1 || gib > 65536 {
			r.report(field.Invalid(r.path.Child("size"), text, `must be full Gi, such as "20Gi"`))
		} else {
			v.gib = int32(gib) // is at most 65536
		}
	}
	r.finish()
	return v
}

func (v volume) isEmpty() bool { return v == volume{} }

// mapping returns the block device mapping of the volume. The device of the arguments
// replaces the root device of the image.
func (v volume) mapping(rootDevice string) types.BlockDeviceMapping {
	if v.device != "" {
		rootDevice = v.device
	}
	ebs := &types.EbsBlockDevice{DeleteOnTermination: awssdk.Bool(true), VolumeType: types.VolumeType(v.kind), Encrypted: v.encrypted}
	for _, number := range []struct {
		value int32
		field **int32
	}{{v.gib, &ebs.VolumeSize}, {v.iops, &ebs.Iops}, {v.throughput, &ebs.Throughput}} {
		if number.value > 0 {
			*number.field = awssdk.Int32(number.value)
		}
	}
	if v.kmsKey != "" {
		ebs.KmsKeyId = awssdk.String(v.kmsKey)
	}
	return types.BlockDeviceMapping{DeviceName: awssdk.String(rootDevice), Ebs: ebs}
}

// metadata are the options of the instance metadata service
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceMetadataOptionsRequest.html).
type metadata struct {
	tokens, endpoint, tags string
	hops                   int32
}

func readMetadata(r *reader) metadata {
	m := metadata{
		tokens:   r.oneOf("http_tokens", string(types.HttpTokensStateRequired), string(types.HttpTokensStateOptional)),
		endpoint: r.oneOf("http_endpoint", string(types.InstanceMetadataEndpointStateEnabled), string(types.InstanceMetadataEndpointStateDisabled)),
		tags:     r.oneOf("instance_metadata_tags", string(types.InstanceMetadataTagsStateEnabled), string(types.InstanceMetadataTagsStateDisabled)),
		hops:     r.number("http_put_response_hop_limit", 1, 64),
	}
	r.finish()
	return m
}

// request returns the options for a launch. By default, tokens are required, and the metadata have
// no tags: with tags, EC2 refuses keys such as kubernetes.io/cluster/NAME, which its own
// controllers need. The default of the account or of a launch template must not decide.
func (m metadata) request() *types.InstanceMetadataOptionsRequest {
	request := &types.InstanceMetadataOptionsRequest{
		HttpTokens:           types.HttpTokensStateRequired,
		HttpEndpoint:         types.InstanceMetadataEndpointState(m.endpoint),
		InstanceMetadataTags: types.InstanceMetadataTagsStateDisabled,
	}
	if m.tags != "" {
		request.InstanceMetadataTags = types.InstanceMetadataTagsState(m.tags)
	}
	if m.tokens != "" {
		request.HttpTokens = types.HttpTokensState(m.tokens)
	}
	if m.hops > 0 {
		request.HttpPutResponseHopLimit = awssdk.Int32(m.hops)
	}
	return request
}

// launchTemplate selects a launch template, which provides the values that are no arguments.
type launchTemplate struct{ id, name, version string }

func readLaunchTemplate(r *reader) launchTemplate {
	t := launchTemplate{
		id:      r.match("id", templates, "the id of a launch template, such as lt-0123456789abcdef0"),
		name:    r.match("name", names, "the name of a launch template"),
		version: r.match("version", versions, "a number, $Latest or $Default"),
	}
	if r.members != nil && (t.id == "") == (t.name == "") {
		r.report(field.Invalid(r.path, r.members, "must have exactly one of id, name"))
	}
	r.finish()
	return t
}

func (t launchTemplate) isEmpty() bool { return t == launchTemplate{} }

func (t launchTemplate) specification() *types.LaunchTemplateSpecification {
	if t.isEmpty() {
		return nil
	}
	s := &types.LaunchTemplateSpecification{}
	for _, text := range []struct {
		value string
		field **string
	}{{t.id, &s.LaunchTemplateId}, {t.name, &s.LaunchTemplateName}, {t.version, &s.Version}} {
		if text.value != "" {
			*text.field = awssdk.String(text.value)
		}
	}
	return s
}

// profile returns an instance profile by its name or ARN, or nil.
func profile(text string) *types.IamInstanceProfileSpecification {
	switch {
	case text == "":
		return nil
	case strings.HasPrefix(text, "arn:"):
		return &types.IamInstanceProfileSpecification{Arn: awssdk.String(text)}
	default:
		return &types.IamInstanceProfileSpecification{Name: awssdk.String(text)}
	}
}

// tags returns the tags of users. They must not replace the tags of the provider or of AWS.
func (r *reader) tags(name string) map[string]string {
	tags := r.texts(name)
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		path := r.path.Child(name).Key(key)
		switch lower := strings.ToLower(key); {
		case strings.HasPrefix(lower, tagPrefix):
			r.report(field.Forbidden(path, "tags with the prefix "+tagPrefix+" are the server's own"))
		case strings.HasPrefix(lower, "aws:"):
			r.report(field.Forbidden(path, "tags with the prefix aws: are those of AWS"))
		case key == "" || utf8.RuneCountInString(key) > maxTagKey:
			r.report(field.Invalid(path, key, fmt.Sprintf("must have 1 to %d characters", maxTagKey)))
		case utf8.RuneCountInString(tags[key]) > maxTagValue:
			r.report(field.Invalid(path, tags[key], fmt.Sprintf("must have at most %d characters", maxTagValue)))
		}
	}
	if len(tags) > maxTags-ownTags {
		r.report(field.TooMany(r.path.Child(name), len(tags), maxTags-ownTags))
	}
	return tags
}
