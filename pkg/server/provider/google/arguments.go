// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider"
)

// Arguments of the provider.
const (
	argImage            = "image"
	argDiskSize         = "disk_size"
	argDiskType         = "disk_type"
	argExternalIP       = "external_ip"
	argInstanceTemplate = "instance_template"
	argLabels           = "labels"
	argMetadata         = "metadata"
	argNetworkTags      = "network_tags"
	argProvisioning     = "provisioning_model"
	argScopes           = "scopes"
	argServiceAccount   = "service_account"
)

// argumentNames lists all arguments, sorted.
var argumentNames = []string{
	argDiskSize, argDiskType, argExternalIP, argImage, argInstanceTemplate, argLabels, argMetadata, argNetworkTags,
	argProvisioning, argScopes, argServiceAccount,
}

// Values of argProvisioning.
const (
	standard = "STANDARD"
	spot     = "SPOT"
)

// marketArgument selects the market. An instance template may have another default.
var marketArgument = provider.MarketArgument{
	Name:    argProvisioning,
	Values:  map[string]string{provider.MarketStandard: standard, provider.MarketSpot: spot},
	Default: standard,
}

var _ provider.Markets = (*Options)(nil)

// Market returns the market that arguments mean. It is empty if the arguments leave the market to an
// instance template.
func (o *Options) Market(args map[string]any) string { return o.marketArgument(args).Market(args) }

// MarketArgs returns arguments that mean a market.
func (o *Options) MarketArgs(args map[string]any, market string) (map[string]any, error) {
	args, _, err := o.marketArgument(args).Set(args, market)
	return args, err
}

// marketArgument returns the argument with its default, which the default arguments in the options or
// an instance template may decide.
func (o *Options) marketArgument(args map[string]any) provider.MarketArgument {
	argument := marketArgument
	text, _ := o.Machine[argProvisioning].(string)
	if _, replaced := args[argProvisioning]; !replaced && text != "" {
		argument.Default = text
		return argument
	}
	for _, layer := range []map[string]any{args, o.Machine} {
		if text, named := layer[argInstanceTemplate].(string); named {
			if text != "" {
				argument.Default = ""
			}
			break
		}
	}
	return argument
}

// arguments are the arguments of the provider for one machine.
type arguments struct {
	image, diskType, instanceTemplate, serviceAccount string
	// diskGB is the size of the boot disk in GiB, 0 for the size of the image.
	diskGB       int64
	externalIP   bool
	provisioning string
	labels       map[string]string
	metadata     map[string]string
	networkTags  []string
	scopes       []string
}

var (
	// images matches images, or families of images, of a project.
	images = regexp.MustCompile(`^projects/[a-z0-9.:-]+/global/images/(family/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	// templates matches instance templates of a named project, or of the shard's project.
	templates = regexp.MustCompile(`^(projects/[a-z0-9.:-]+/)?(global|regions/[a-z0-9-]+)/instanceTemplates/[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	accounts  = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*@[a-z0-9.-]+$`)
	scopeURLs = regexp.MustCompile(`^https://www\.googleapis\.com/auth/[a-z._-]+$`)
	// labelKeys and labelValues match labels in ASCII
	// (https://cloud.google.com/compute/docs/labeling-resources#requirements).
	labelKeys    = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValues  = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	metadataKeys = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,127}$`)
)

// maxLabels is how many labels arguments may have: Compute Engine allows 64 labels, and the
// provider reserves 16.
const maxLabels = 64 - 16

// ValidateArgs validates arguments before they are rendered: it ignores text with templates.
func (o *Options) ValidateArgs(path *field.Path, args map[string]any) field.ErrorList {
	_, errs := readArguments(path, args)
	return errs
}

// arguments returns the rendered arguments of a virtual machine. They replace the arguments
// in the options.
func (o *Options) arguments(args map[string]any) (arguments, error) {
	merged := map[string]any{}
	maps.Copy(merged, o.Machine)
	maps.Copy(merged, args)
	path := field.NewPath("args")
	a, errs := readArguments(path, merged)
	if a.image == "" && a.instanceTemplate == "" {
		errs = append(errs, field.Required(path.Child(argImage), "neither the arguments nor the options of the provider have an image or an "+argInstanceTemplate))
	}
	if a.image == "" && (a.diskGB != 0 || a.diskType != "") {
		errs = append(errs, field.Forbidden(path.Child(argDiskSize), "the disks are those of the "+argInstanceTemplate+" if there is no image"))
	}
	return a, errs.ToAggregate()
}

// reader reads arguments and collects errors.
type reader struct {
	path *field.Path
	args map[string]any
	errs field.ErrorList
}

func readArguments(path *field.Path, args map[string]any) (arguments, field.ErrorList) {
	r := &reader{path: path, args: args}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if !slices.Contains(argumentNames, name) {
			r.errs = append(r.errs, field.NotSupported(path.Child(name), name, argumentNames))
		}
	}
	a := arguments{
		image:            r.text(argImage, images, "must be projects/PROJECT/global/images/NAME or projects/PROJECT/global/images/family/NAME"),
		diskGB:           r.diskSize(),
		diskType:         r.text(argDiskType, names, nameRule),
		externalIP:       r.boolean(argExternalIP),
		instanceTemplate: r.text(argInstanceTemplate, templates, "must be global/instanceTemplates/NAME or regions/REGION/instanceTemplates/NAME, with or without a project"),
		serviceAccount:   r.text(argServiceAccount, accounts, "must be the email address of a service account"),
		provisioning:     r.text(argProvisioning, nil, ""),
		labels:           r.texts(argLabels),
		metadata:         r.texts(argMetadata),
		networkTags:      r.list(argNetworkTags, names, nameRule),
		scopes:           r.list(argScopes, scopeURLs, "must be a scope such as https://www.googleapis.com/auth/cloud-platform"),
	}
	if models := []string{spot, standard}; a.provisioning != "" && !slices.Contains(models, a.provisioning) && !isTemplate(a.provisioning) {
		r.errs = append(r.errs, field.NotSupported(path.Child(argProvisioning), a.provisioning, models))
	}
	if len(a.scopes) > 0 && a.serviceAccount == "" {
		if _, has := args[argServiceAccount]; !has {
			r.errs = append(r.errs, field.Required(path.Child(argServiceAccount), "is needed with "+argScopes))
		}
	}
	r.checkLabels(a.labels)
	r.checkMetadata(a.metadata)
	return a, r.errs
}

// isTemplate reports whether a value is unknown until it is rendered.
func isTemplate(text string) bool { return strings.Contains(text, "{{") }

func (r *reader) invalid(path *field.Path, value any, rule string) {
	r.errs = append(r.errs, field.Invalid(path, value, rule))
}

func (r *reader) wrongType(path *field.Path, value any, want string) {
	r.errs = append(r.errs, field.TypeInvalid(path, value, "must be "+want))
}

// text returns a text that matches a pattern. A nil pattern matches every text.
func (r *reader) text(name string, pattern *regexp.Regexp, rule string) string {
	value, has := r.args[name]
	if !has {
		return ""
	}
	text, ok := value.(string)
	switch {
	case !ok:
		r.wrongType(r.path.Child(name), value, "a string")
	case pattern != nil && !pattern.MatchString(text) && !isTemplate(text):
		r.invalid(r.path.Child(name), text, rule)
	}
	return text
}

func (r *reader) boolean(name string) bool {
	value, has := r.args[name]
	if !has {
		return false
	}
	b, ok := value.(bool)
	if !ok {
		r.wrongType(r.path.Child(name), value, "true or false")
	}
	return b
}

// maxDiskGB is the largest size of a disk in GiB
// (https://cloud.google.com/compute/docs/disks/persistent-disks).
const maxDiskGB = 64 << 10

func (r *reader) diskSize() int64 {
	text := r.text(argDiskSize, nil, "")
	if text == "" || isTemplate(text) {
		return 0
	}
	size, err := resource.ParseQuantity(text)
	if err != nil || size.Sign() <= 0 || size.Value()%(1<<30) != 0 || size.Value()>>30 > maxDiskGB {
		r.invalid(r.path.Child(argDiskSize), text, `must be full Gi, such as "20Gi", and at most 64Ti`)
		return 0
	}
	return size.Value() >> 30
}

func (r *reader) list(name string, pattern *regexp.Regexp, rule string) []string {
	value, has := r.args[name]
	if !has {
		return nil
	}
	items, ok := value.([]any)
	if !ok {
		r.wrongType(r.path.Child(name), value, "a list of strings")
		return nil
	}
	var texts []string
	for n, item := range items {
		path := r.path.Child(name).Index(n)
		text, ok := item.(string)
		switch {
		case !ok:
			r.wrongType(path, item, "a string")
		case !pattern.MatchString(text) && !isTemplate(text):
			r.invalid(path, text, rule)
		}
		texts = append(texts, text)
	}
	return texts
}

func (r *reader) texts(name string) map[string]string {
	value, has := r.args[name]
	if !has {
		return nil
	}
	members, ok := value.(map[string]any)
	if !ok {
		r.wrongType(r.path.Child(name), value, "an object of strings")
		return nil
	}
	texts := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		text, ok := members[key].(string)
		if !ok {
			r.wrongType(r.path.Child(name).Key(key), members[key], "a string")
		}
		texts[key] = text
	}
	return texts
}

// checkLabels reports labels that Compute Engine does not allow, or that the server sets.
func (r *reader) checkLabels(labels map[string]string) {
	path := r.path.Child(argLabels)
	if len(labels) > maxLabels {
		r.errs = append(r.errs, field.TooMany(path, len(labels), maxLabels))
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		switch {
		case strings.HasPrefix(key, labelPrefix):
			r.errs = append(r.errs, field.Forbidden(path.Key(key), "labels that begin with "+labelPrefix+" are the server's own"))
		case !labelKeys.MatchString(key):
			r.invalid(path.Key(key), key, "must have at most 63 lower case letters, digits, hyphens and underscores, and begin with a letter")
		case !labelValues.MatchString(labels[key]) && !isTemplate(labels[key]):
			r.invalid(path.Key(key), labels[key], "must have at most 63 lower case letters, digits, hyphens and underscores")
		}
	}
}

// checkMetadata reports keys that Compute Engine does not allow, and the key of the userdata.
func (r *reader) checkMetadata(metadata map[string]string) {
	path := r.path.Child(argMetadata)
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		switch {
		case key == userdataKey:
			r.errs = append(r.errs, field.Forbidden(path.Key(key), "is the server's own"))
		case !metadataKeys.MatchString(key):
			r.invalid(path.Key(key), key, fmt.Sprintf("must match %s", metadataKeys))
		}
	}
}
