// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// The servers ignore the template and the subnets of a static group, so a new pool has
// none, or those of the servers.
func TestSettingsOfStaticGroups(t *testing.T) {
	worker := shard.GroupSettings{Template: "worker", Subnets: []string{"private", "public"}}
	groups := reportedGroups{
		"a/fixed":   {Static: true, GroupSettings: worker},
		"b/fixed":   {Static: true, GroupSettings: shard.GroupSettings{Template: "other", Subnets: []string{"private"}}},
		"b/mixed":   {Static: true, GroupSettings: worker},
		"a/mixed":   {GroupSettings: worker},
		"a/dynamic": {GroupSettings: worker},
		"a/bare":    {Static: true},
	}
	for name, test := range map[string]struct {
		group    string
		shards   []v1beta1.Identifier
		template string
		subnets  []v1beta1.Identifier
		// want are the parts of the reason, or none if the pool is allowed.
		want []string
	}{
		"no settings":       {group: "fixed", shards: []v1beta1.Identifier{"a", "b"}},
		"the same settings": {group: "fixed", shards: []v1beta1.Identifier{"a"}, template: "worker", subnets: []v1beta1.Identifier{"private", "public"}},
		"another template": {group: "fixed", shards: []v1beta1.Identifier{"a"}, template: "big", want: []string{
			`spec.template: Invalid value: "big": group "fixed" is static, and the configuration of shard a sets "worker"; leave it out`,
		}},
		"another order of subnets": {group: "fixed", shards: []v1beta1.Identifier{"a"}, subnets: []v1beta1.Identifier{"public", "private"}, want: []string{
			`spec.subnets: Invalid value: ["public","private"]: group "fixed" is static, and the configuration of shard a sets private, public; leave it out`,
		}},
		"both": {group: "fixed", shards: []v1beta1.Identifier{"a"}, template: "big", subnets: []v1beta1.Identifier{"public"}, want: []string{
			"spec.template", "spec.subnets",
		}},
		"the settings of one of two shards": {
			group: "fixed", shards: []v1beta1.Identifier{"a", "b"}, template: "worker", subnets: []v1beta1.Identifier{"private"},
			want: []string{`the configuration of shard b sets "other"`, "the configuration of shard a sets private, public"},
		},
		"static on another shard than the first": {group: "mixed", shards: []v1beta1.Identifier{"a", "b"}, template: "big", want: []string{
			`the configuration of shard b sets "worker"`,
		}},
		"static on a shard that the pool does not have": {group: "mixed", shards: []v1beta1.Identifier{"a"}, template: "big"},
		"a dynamic group":                    {group: "dynamic", shards: []v1beta1.Identifier{"a"}, template: "big"},
		"a group that no shard has reported": {group: "new", shards: []v1beta1.Identifier{"a"}, template: "big"},
		"subnets of a group that has none":   {group: "bare", shards: []v1beta1.Identifier{"a"}, subnets: []v1beta1.Identifier{"x"}, want: []string{"shard a sets none"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := present()
			w.groups = groups
			pool := newPool("new", test.group, test.shards...)
			pool.Spec.Template, pool.Spec.Subnets = test.template, test.subnets
			v := newValidator(t, w)
			err := v.Validate(create(t, pool))
			if len(test.want) == 0 && err != nil {
				t.Errorf("rejected: %v", err)
			}
			for _, part := range test.want {
				if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want it invalid with %q", err, part)
				}
			}
			// The CRD has the rules for changes.
			if err := v.Validate(update(t, pool, pool.DeepCopy())); err != nil {
				t.Errorf("an update is rejected: %v", err)
			}
		})
	}
}
