// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/nodesettings"
	"nstance.dev/operator/pkg/server/provider"
)

// facts are the values that the templates of arguments and userdata can use
// (docs/server-reference.md#userdata). They have no host name or address, which are unknown before the
// instance runs, and no .Image, because there are no images.
type facts struct {
	Instance struct {
		ID, Group, Kind, Arch, Type string
		// Market is empty if the provider has no markets or does not know the market. In arguments
		// it is also empty if a template in the arguments decides about it.
		Market string
	}
	Cluster struct{ ID, CACert string }
	Server  struct {
		Shard, RegistrationAddr, OperatorAddr string
		// AgentAddr is empty if the server serves no agents.
		AgentAddr string
		// HealthCheckInterval is how often an agent has to report.
		HealthCheckInterval time.Duration
	}
	Provider struct{ Kind, Region, Zone string }
	Vars     map[string]string
	// Node has the settings for the kubelet.
	Node nodesettings.Facts
}

// secretFacts adds values that only userdata can use. A nonce in an argument would be
// readable for every user who can read the instance.
type secretFacts struct {
	facts
	// Nonce is the token with which the agent registers.
	Nonce string
}

func (p *Provisioner) facts(c *config.Config, group *groups.Group, record *instance.Record) facts {
	var f facts
	f.Instance.ID = record.ID
	f.Instance.Group = record.Group
	f.Instance.Kind = group.Kind
	f.Instance.Arch = group.Arch
	f.Instance.Type = group.InstanceType
	f.Instance.Market = provider.MarketOf(c.Shard.Infra.Options, group.Args)
	f.Cluster.ID = c.ClusterID
	if p.AuthorityPEM != nil {
		f.Cluster.CACert = string(p.AuthorityPEM())
	}
	f.Server.Shard = c.Shard.ID
	f.Server.RegistrationAddr = p.Addresses.RegistrationAddr
	f.Server.OperatorAddr = p.Addresses.OperatorAddr
	f.Server.AgentAddr = p.Addresses.AgentAddr
	f.Server.HealthCheckInterval = c.Shard.HealthCheckInterval
	f.Provider.Kind = c.Shard.Infra.Provider
	f.Provider.Region = c.Shard.Infra.Region
	f.Provider.Zone = c.Shard.Infra.Zone
	f.Vars = group.Vars
	f.Node = group.Node.Facts()
	return f
}

// render parses and executes a template.
func render(name, text string, facts any) (string, error) {
	parsed, err := config.NewTemplate(name).Parse(text)
	if err != nil {
		return "", fmt.Errorf("parse a template: %w", err)
	}
	rendered, err := execute(parsed, facts)
	if err != nil {
		return "", fmt.Errorf("render a template: %w", err)
	}
	return rendered, nil
}

// execute executes a template. A missing var is an error
// (https://pkg.go.dev/text/template#Template.Option): an instance that starts with "<no
// value>" somewhere would be worse than no instance.
func execute(parsed *template.Template, facts any) (string, error) {
	var rendered strings.Builder
	if err := parsed.Option("missingkey=error").Execute(&rendered, facts); err != nil {
		return "", err
	}
	return rendered.String(), nil
}

// renderArgs returns a copy of args in which every string is rendered, also in
// nested objects and arrays. Keys are not rendered.
func renderArgs(args map[string]any, facts facts) (map[string]any, error) {
	if len(args) == 0 {
		return nil, nil
	}
	rendered, err := renderAny("args", args, facts)
	if err != nil {
		return nil, err
	}
	return rendered.(map[string]any), nil
}

func renderAny(path string, value any, facts any) (any, error) {
	var err error
	switch value := value.(type) {
	case string:
		return render(path, value, facts)
	case map[string]any:
		rendered := make(map[string]any, len(value))
		// Sorted, so that the first error is always the same.
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if rendered[name], err = renderAny(path+"."+name, value[name], facts); err != nil {
				return nil, err
			}
		}
		return rendered, nil
	case []any:
		rendered := make([]any, len(value))
		for i := range value {
			if rendered[i], err = renderAny(fmt.Sprintf("%s[%d]", path, i), value[i], facts); err != nil {
				return nil, err
			}
		}
		return rendered, nil
	default:
		return value, nil
	}
}
