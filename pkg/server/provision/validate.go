// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider"
)

// Validate returns what keeps the machines of a configuration from registering. It renders the
// userdata of each template once, with the facts of a sample instance and its vars. Userdata at a
// URL is checked when an instance needs it.
func Validate(c *config.Config) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(c.Templates)) {
		template := c.Templates[name]
		path := field.NewPath("templates").Child(name).Child("userdata")
		if template.Userdata == (config.Userdata{}) && c.Defaults.Userdata != (config.Userdata{}) {
			path = field.NewPath("defaults", "userdata")
		}
		userdata := cmp.Or(template.Userdata, c.Defaults.Userdata)
		switch {
		case userdata == (config.Userdata{}) && provider.RunsAgent(c.Shard.Infra.Options):
			errs = append(errs, field.Required(path, fmt.Sprintf(
				"every machine of provider %s has an agent, which cannot register without userdata; without agents, set shard.infra.options.agent to false", c.Shard.Infra.Provider)))
		case userdata.Inline != "":
			// Userdata is long and may be confidential: the error has only its path.
			if err := validateInline(c, name, userdata); err != nil && !reported(errs, path, err) {
				errs = append(errs, field.Invalid(path, field.OmitValueType{}, err.Error()))
			}
		}
	}
	return errs
}

// reported reports whether the list has an error of several templates, which have the same userdata.
func reported(errs field.ErrorList, path *field.Path, err error) bool {
	return slices.ContainsFunc(errs, func(other *field.Error) bool { return other.Field == path.String() && other.Detail == err.Error() })
}

// sampleID and sampleNonce have the length of those of instances. No text contains them by chance.
const sampleID = "knd06bgm7733st2576nx5jht4ecj"

var sampleNonce = strings.Repeat("sample-nonce.", 40)

// validateInline checks userdata that is in the configuration.
func validateInline(c *config.Config, name string, userdata config.Userdata) error {
	parsed, err := userdata.Template([]byte(userdata.Inline))
	if err != nil {
		return err
	}
	template := c.Templates[name]
	sample := secretFacts{Nonce: sampleNonce}
	sample.Instance.ID, sample.Instance.Group = sampleID, "sample"
	sample.Instance.Kind, sample.Instance.Arch, sample.Instance.Type = template.Kind, template.Arch, template.InstanceType
	sample.Instance.Market = provider.MarketOf(c.Shard.Infra.Options, config.MergeArgs(c.Defaults.Args, template.Args))
	sample.Cluster.ID, sample.Cluster.CACert = c.ClusterID, "sample"
	sample.Server.Shard, sample.Server.HealthCheckInterval = c.Shard.ID, c.Shard.HealthCheckInterval
	sample.Server.RegistrationAddr, sample.Server.OperatorAddr, sample.Server.AgentAddr = "sample:1", "sample:2", "sample:3"
	sample.Provider.Kind, sample.Provider.Region, sample.Provider.Zone = c.Shard.Infra.Provider, c.Shard.Infra.Region, c.Shard.Infra.Zone
	sample.Vars = maps.Clone(template.Vars)
	sample.Node = template.Node.Facts()
	// Groups may set more vars than the template.
	var rendered strings.Builder
	if err := parsed.Option("missingkey=zero").Execute(&rendered, sample); err != nil {
		return fmt.Errorf("cannot be rendered: %w", withoutText(err))
	}
	// What depends on a var may be missing here.
	lacks := func(value, expression string) bool {
		return !strings.Contains(rendered.String(), value) && !strings.Contains(parsed.Root.String(), expression)
	}
	if lacks(sampleID, ".Instance.ID") || lacks(sampleNonce, ".Nonce") {
		return errors.New("must contain {{.Instance.ID}} and {{.Nonce}}, without which the agent cannot register")
	}
	if err := checkForm(rendered.String()); err != nil {
		return err
	}
	if limits, ok := c.Shard.Infra.Options.(provider.UserdataOptions); ok {
		return limits.CheckUserdata([]byte(rendered.String()))
	}
	return nil
}

// checkForm returns an error for userdata that a machine would ignore or fail to run. cloud-init
// recognizes the kind of userdata by how it begins, and a kernel the interpreter of a script
// (https://cloudinit.readthedocs.io/en/latest/explanation/format.html,
// https://man7.org/linux/man-pages/man2/execve.2.html).
func checkForm(userdata string) error {
	first, _, _ := strings.Cut(userdata, "\n")
	switch {
	case strings.HasPrefix(userdata, "\ufeff"):
		return errors.New("must not begin with a byte order mark, because of which cloud-init ignores it")
	case userdata == "" || unicode.IsSpace(rune(userdata[0])):
		return errors.New("must not be empty or begin with white space, because of which cloud-init ignores it; a comment before the first line needs {{- and -}}")
	case strings.HasSuffix(first, "\r"):
		return errors.New("must have the line ends of Unix, because a script with others has no interpreter")
	}
	return nil
}
