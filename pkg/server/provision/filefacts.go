// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// FileFacts are the values that the templates of files can use: those of arguments, and
// what the agent of the instance reports of its machine (docs/server.md#files).
type FileFacts struct {
	facts
	Instance struct{ ID, Kind, Arch, Type, Hostname, IP4, IP6 string }
}

// FileFacts returns the values for an instance of a group, which Effective returned.
func (p *Provisioner) FileFacts(group *groups.Group, record *instance.Record) FileFacts {
	f := FileFacts{facts: p.facts(p.Config(), group, record)}
	f.Instance.ID, f.Instance.Kind, f.Instance.Arch, f.Instance.Type = record.ID, group.Kind, group.Arch, group.InstanceType
	if r := record.Registration; r != nil {
		f.Instance.Hostname, f.Instance.IP4, f.Instance.IP6 = r.Hostname, r.IPv4, r.IPv6
	}
	return f
}

// Render renders one template. The error does not quote it.
func (f FileFacts) Render(text string) (string, error) {
	rendered, err := render("text", text, f)
	if err != nil {
		return "", withoutText(err)
	}
	return rendered, nil
}

// RenderAll returns a copy of value, which has the types of encoding/json, in which every
// string is rendered. Keys are not rendered. The error does not quote the strings.
func (f FileFacts) RenderAll(value any) (any, error) {
	rendered, err := renderAny("text", value, f)
	if err != nil {
		return nil, withoutText(err)
	}
	return rendered, nil
}
