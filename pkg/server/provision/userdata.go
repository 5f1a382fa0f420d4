// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strings"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/registration/nonce"
)

// userdata returns the rendered userdata of the instance. It is nil, and no nonce
// is signed, when the group has none.
func (p *Provisioner) userdata(ctx context.Context, group *groups.Group, record *instance.Record, facts facts) ([]byte, error) {
	if group.Userdata == (config.Userdata{}) {
		return nil, nil
	}
	secret := secretFacts{facts: facts}
	var err error
	secret.Nonce, err = p.Nonces.Agent(nonce.Agent{
		InstanceID: record.ID,
		ClusterID:  facts.Cluster.ID,
		Tenant:     record.Tenant,
		Shard:      facts.Server.Shard,
		Group:      record.Group,
		OnDemand:   record.OnDemand,
		ConfigHash: group.RuntimeConfigHash,
	})
	if err != nil {
		return nil, fmt.Errorf("sign the registration nonce: %w", err)
	}
	source := []byte(group.Userdata.Inline)
	if group.Userdata.URL != "" {
		if source, err = p.fetch(ctx, group.Userdata.URL); err != nil {
			return nil, fmt.Errorf("fetch the userdata of template %q: %w", group.Template, err)
		}
	}
	parsed, err := group.Userdata.Template(source)
	if err != nil {
		return nil, fmt.Errorf("the userdata of template %q %w", group.Template, err)
	}
	rendered, err := execute(parsed, secret)
	if err != nil {
		return nil, fmt.Errorf("render the userdata of template %q: %w", group.Template, withoutText(err))
	}
	// Without them the agent cannot register.
	if !strings.Contains(rendered, record.ID) || !strings.Contains(rendered, secret.Nonce) {
		return nil, fmt.Errorf("the userdata of template %q must contain {{.Instance.ID}} and {{.Nonce}}", group.Template)
	}
	return []byte(rendered), nil
}

// Errors of text/template have a position and quote the template. Only the name of
// a value that does not exist is kept: the rest may contain a secret.
var (
	position = regexp.MustCompile(`^template: \w+:\d+:\d+`)
	missing  = regexp.MustCompile(`>: (?:map has no entry for key "\w+"|can't evaluate field \w+)`)
)

func withoutText(err error) error {
	text := err.Error()
	where := strings.TrimPrefix(position.FindString(text), "template: ")
	why := strings.TrimPrefix(missing.FindString(text), ">: ")
	return fmt.Errorf("%s: %s", where, cmp.Or(why, "this has no value"))
}
