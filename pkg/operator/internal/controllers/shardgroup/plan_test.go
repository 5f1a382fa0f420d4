// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// Every combination of what may be known: nothing is ever called on missing
// information, and what is asked for is called whenever nothing is missing.
func TestPlanOfEveryCombination(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	groups := map[string]*shard.Group{
		"no group":                 nil,
		"the group":                reported(),
		"a group of another size":  changed(reported(), func(g *shard.Group) { g.Size = 1 }),
		"the group with more vars": changed(reported(), func(g *shard.Group) { g.Vars = map[string]string{"a": "1", "b": "2"} }),
	}
	yesAndNo := []bool{false, true}
	for name, group := range groups {
		for _, configured := range yesAndNo {
			for _, synced := range yesAndNo {
				for _, reachable := range yesAndNo {
					for _, deleted := range yesAndNo {
						for _, finalizer := range yesAndNo {
							for _, wasRejected := range yesAndNo {
								object := newObject()
								if deleted {
									controllertest.Deleting(object)
								}
								if !finalizer {
									object.Finalizers = nil
								}
								var rejected *rejection
								if wasRejected {
									rejected = newRejection(object, group, nil, now)
								}
								observed := observation{configured: configured, synced: synced, reachable: reachable, group: group}
								complete := configured && synced && reachable
								inOrder := name == "the group" || name == "the group with more vars"
								want := nothing
								switch {
								case complete && deleted && finalizer:
									want = remove
								case complete && !deleted && !inOrder && !wasRejected:
									want = upsert
								}
								if got := plan(object, observed, rejected, now); got != want {
									t.Errorf("%s, configured %t, synced %t, reachable %t, deleting %t, finalizer %t, rejected %t: got step %d, want %d",
										name, configured, synced, reachable, deleted, finalizer, wasRejected, got, want)
								}
							}
						}
					}
				}
			}
		}
	}
}

func TestRejectalHolds(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	rejected := newRejection(newObject(), reported(), nil, now)
	ofNone := newRejection(newObject(), nil, nil, now)
	same := func(*v1beta1.NstanceShardGroup) {}
	tests := map[string]struct {
		rejected *rejection
		change   func(*v1beta1.NstanceShardGroup)
		group    *shard.Group
		now      time.Time
		want     bool
	}{
		"nothing was rejected":           {nil, same, reported(), now, false},
		"nothing has changed":            {rejected, same, reported(), now, true},
		"the spec has changed":           {rejected, func(g *v1beta1.NstanceShardGroup) { g.Generation++ }, reported(), now, false},
		"the object was created again":   {rejected, func(g *v1beta1.NstanceShardGroup) { g.UID = "other" }, reported(), now, false},
		"the server's group has changed": {rejected, same, changed(reported(), func(g *shard.Group) { g.ETag = "etag-2" }), now, false},
		"the server reports another revision": {rejected, same,
			changed(reported(), func(g *shard.Group) { g.Revision = &shard.Revision{UID: "other"} }), now, false},
		"the administrator has decided": {rejected, func(g *v1beta1.NstanceShardGroup) {
			g.Annotations = map[string]string{v1beta1.AnnotationReplaces: "other/1"}
		}, reported(), now, false},
		"the server's group is gone":            {rejected, same, nil, now, false},
		"instances do not matter":               {rejected, same, changed(reported(), func(g *shard.Group) { g.ActualSize = 0 }), now, true},
		"its time has come":                     {rejected, same, reported(), now.Add(rejectedRetry), false},
		"there was no group and there is none":  {ofNone, same, nil, now, true},
		"there was no group and now there is 1": {ofNone, same, reported(), now, false},
	}
	for name, test := range tests {
		object := newObject()
		test.change(object)
		if got := test.rejected.stillApplies(object, test.group, test.now); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestInOrder(t *testing.T) {
	bare := func(spec *v1beta1.NstanceShardGroupSpec) {
		*spec = v1beta1.NstanceShardGroupSpec{Group: "workers", Shard: "a", Size: 3}
	}
	same := func(*v1beta1.NstanceShardGroupSpec) {}
	first := func(ids ...string) func(*v1beta1.NstanceShardGroupSpec) {
		return func(s *v1beta1.NstanceShardGroupSpec) { s.RemoveFirst = ids }
	}
	tests := map[string]struct {
		spec  func(*v1beta1.NstanceShardGroupSpec)
		group func(*shard.Group)
		want  bool
	}{
		"all is as asked for":                     {same, func(*shard.Group) {}, true},
		"the size differs":                        {same, func(g *shard.Group) { g.Size = 2 }, false},
		"instances are still on their way":        {same, func(g *shard.Group) { g.ActualSize = 0 }, true},
		"the type differs":                        {same, func(g *shard.Group) { g.InstanceType = "small" }, false},
		"the template differs":                    {same, func(g *shard.Group) { g.Template = "other" }, false},
		"the subnets differ":                      {same, func(g *shard.Group) { g.Subnets = []string{"public"} }, false},
		"the subnets are in another order":        {func(s *v1beta1.NstanceShardGroupSpec) { s.Subnets = []v1beta1.Identifier{"x", "y"} }, func(g *shard.Group) { g.Subnets = []string{"y", "x"} }, false},
		"a var is missing":                        {same, func(g *shard.Group) { g.Vars = nil }, false},
		"a var differs":                           {same, func(g *shard.Group) { g.Vars = map[string]string{"a": "2"} }, false},
		"an empty var is missing":                 {func(s *v1beta1.NstanceShardGroupSpec) { s.Vars = map[string]string{"b": ""} }, func(*shard.Group) {}, false},
		"the server adds vars":                    {same, func(g *shard.Group) { g.Vars = map[string]string{"a": "1", "b": "2"} }, true},
		"what is left out is the server's":        {bare, func(*shard.Group) {}, true},
		"a size is never left out":                {bare, func(g *shard.Group) { g.Size = 0 }, false},
		"a static group has its template":         {same, func(g *shard.Group) { g.Static, g.Template = true, "other" }, true},
		"a static group has its subnets":          {same, func(g *shard.Group) { g.Static, g.Subnets = true, nil }, true},
		"a static group gets its size":            {same, func(g *shard.Group) { g.Static, g.Size = true, 1 }, false},
		"a static group gets its type":            {same, func(g *shard.Group) { g.Static, g.InstanceType = true, "small" }, false},
		"those that go first differ":              {same, func(g *shard.Group) { g.ListsInstances, g.RemoveFirst = true, []string{"knd1"} }, false},
		"the server does not have the candidates": {first("knd1"), func(g *shard.Group) { g.ListsInstances = true }, false},
		"the server has the candidates":           {first("knd1", "knd2"), func(g *shard.Group) { g.ListsInstances, g.RemoveFirst = true, []string{"knd1", "knd2"} }, true},
		"the server has other candidates":         {first("knd1"), func(g *shard.Group) { g.ListsInstances, g.RemoveFirst = true, []string{"knd2"} }, false},
		"a static group without the candidates":   {first("knd1"), func(g *shard.Group) { g.Static, g.ListsInstances = true, true }, false},
		"the server knows of no such thing":       {first("knd1"), func(*shard.Group) {}, true},
		"a static group gets its vars, too":       {same, func(g *shard.Group) { g.Static, g.Vars = true, nil }, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object, group := newObject(), reported()
			test.spec(&object.Spec)
			test.group(group)
			if got := inOrder(&object.Spec, group); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestWanted(t *testing.T) {
	whole := shard.GroupConfig{GroupSettings: shard.GroupSettings{Template: "standard", InstanceType: "large", Subnets: []string{"private"}, Vars: map[string]string{"a": "1"}}, Size: 3, RemoveFirst: []string{"knd1"}}
	withoutStatics := whole
	withoutStatics.Template, withoutStatics.Subnets = "", nil
	for name, test := range map[string]struct {
		group *shard.Group
		want  shard.GroupConfig
	}{
		"a new group":    {nil, whole},
		"another size":   {changed(reported(), func(g *shard.Group) { g.Size = 1 }), whole},
		"a static group": {changed(reported(), func(g *shard.Group) { g.Static = true }), withoutStatics},
	} {
		object := newObject()
		object.Spec.RemoveFirst = []string{"knd1"}
		got := wanted(object, test.group)
		if fmt.Sprint(got.Size, got.Template, got.InstanceType) != fmt.Sprint(test.want.Size, test.want.Template, test.want.InstanceType) ||
			!slices.Equal(got.Subnets, test.want.Subnets) || !slices.Equal(got.RemoveFirst, test.want.RemoveFirst) || !maps.Equal(got.Vars, test.want.Vars) {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
	if got := wanted(&v1beta1.NstanceShardGroup{}, nil); got.Size != 0 || got.Subnets != nil {
		t.Errorf("of nothing came %+v", got)
	}
}
