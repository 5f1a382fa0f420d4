// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"context"

	"nstance.dev/operator/pkg/server/instance"
)

// outcome collects what to report after the table is unlocked.
type outcome struct {
	groups   map[instance.GroupKey]struct{}
	failures []failure
}

type failure struct {
	group instance.GroupKey
	id    string
	err   error
}

func (o *outcome) change(group instance.GroupKey) {
	if o.groups == nil {
		o.groups = map[instance.GroupKey]struct{}{}
	}
	o.groups[group] = struct{}{}
}

func (o *outcome) fail(e *entry, err error) {
	o.failures = append(o.failures, failure{e.group, e.id, err})
}

// reportOutcome reports failures and changes. During the first list there are none.
func (p *Provider) reportOutcome(ctx context.Context, o outcome) {
	select {
	case <-p.synced:
	default:
		return
	}
	for _, f := range o.failures {
		p.reportFailure(ctx, f.group, f.id, f.err)
	}
	for group := range o.groups {
		p.changed(group)
	}
}
