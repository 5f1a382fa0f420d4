// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import "cmp"

// Settings are what an operator may configure of a group apart from its size. An
// empty field leaves the choice to the server's configuration.
type Settings struct {
	Template     string `json:"template,omitempty"`
	InstanceType string `json:"instance_type,omitempty"`
	// SubnetPools are pool ids in the order in which they are tried.
	SubnetPools []string          `json:"subnet_pools,omitempty"`
	Vars        map[string]string `json:"vars,omitempty"`
}

// infraSettings are the settings that only a new instance can receive: their part of
// infraConfig. A field that is added needs omitempty, or the instances of every group
// are replaced. Fields have the names that they have in Settings.
type infraSettings struct {
	InstanceType string   `json:"instance_type"`
	SubnetPools  []string `json:"subnet_pools,omitempty"`
}

func (s Settings) infra() infraSettings {
	return infraSettings{InstanceType: s.InstanceType, SubnetPools: s.SubnetPools}
}

// merge returns s with what change sets: fields that are empty in change stay, and
// vars are added key by key.
func (s Settings) merge(change Settings) Settings {
	s.Template = cmp.Or(change.Template, s.Template)
	s.InstanceType = cmp.Or(change.InstanceType, s.InstanceType)
	if len(change.SubnetPools) > 0 {
		s.SubnetPools = change.SubnetPools
	}
	s.Vars = mergeMaps(s.Vars, change.Vars)
	return s
}

// without returns s without what declared sets and next leaves out.
func (s Settings) without(declared, next Settings) Settings {
	if declared.Template != "" && next.Template == "" {
		s.Template = ""
	}
	if declared.InstanceType != "" && next.InstanceType == "" {
		s.InstanceType = ""
	}
	if len(declared.SubnetPools) > 0 && len(next.SubnetPools) == 0 {
		s.SubnetPools = nil
	}
	vars := map[string]string{}
	for name, value := range s.Vars {
		_, was := declared.Vars[name]
		_, is := next.Vars[name]
		if !was || is {
			vars[name] = value
		}
	}
	s.Vars = nil
	if len(vars) > 0 {
		s.Vars = vars
	}
	return s
}

// restricted returns s with the fields of a static group that the server's
// configuration alone decides taken from stored.
func (s Settings) restricted(stored Settings) Settings {
	s.Template, s.SubnetPools = stored.Template, stored.SubnetPools
	return s
}
