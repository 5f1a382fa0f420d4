// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// For every combination of observations: no call is made on missing information, and every
// wanted call is made if nothing is missing.
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

func TestRejectionStays(t *testing.T) {
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
			g.Annotations = map[string]string{v1beta1.AnnotationConfirmOverwrite: "other/1"}
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

// A grant is sent with the group, and again if the server has another one. A server that reports
// no progress knows no grants, and is not asked again and again.
func TestGrantsAreSent(t *testing.T) {
	now := metav1.NewTime(then.Truncate(time.Second))
	object := newObject()
	object.Spec.Rotation = &v1beta1.RotationGrant{MaxSurge: 1, UpToDate: 2, NotAfter: &now, After: &now, MaxAgeSeconds: 7200, Target: "t"}
	assert.Equal(t, &shard.RotationGrant{MaxSurge: 1, UpToDate: 2, NotAfter: now.Time, After: now.Time, MaxAgeSeconds: 7200, Target: "t"}, wanted(object, nil).Rotation)
	older := reported()
	assert.Equal(t, nothing, plan(object, connected(older), nil, then.Time))
	knows := changed(reported(), func(g *shard.Group) { g.Progress = &shard.RotationProgress{} })
	assert.Equal(t, upsert, plan(object, connected(knows), nil, then.Time))
	for name, change := range map[string]func(*shard.RotationGrant){
		"maxSurge":       func(g *shard.RotationGrant) { g.MaxSurge = 0 },
		"maxUnavailable": func(g *shard.RotationGrant) { g.MaxUnavailable = 1 },
		"upToDate":       func(g *shard.RotationGrant) { g.UpToDate = 1 },
		"notAfter":       func(g *shard.RotationGrant) { g.NotAfter = time.Time{} },
		"after":          func(g *shard.RotationGrant) { g.After = g.After.Add(time.Second) },
		"target":         func(g *shard.RotationGrant) { g.Target = "other" },
		"maxAgeSeconds":  func(g *shard.RotationGrant) { g.MaxAgeSeconds = 0 },
	} {
		other := wanted(object, nil).Rotation
		knows.Rotation = other
		assert.Equal(t, nothing, plan(object, connected(knows), nil, then.Time))
		change(other)
		assert.Equal(t, upsert, plan(object, connected(knows), nil, then.Time), name)
	}
	object.Spec.Rotation = nil
	assert.Nil(t, wanted(object, nil).Rotation)
	assert.Equal(t, upsert, plan(object, connected(knows), nil, then.Time), "a grant that is removed")
}

// Instances to replace are sent, and taken back.
func TestInstancesToReplaceAreSent(t *testing.T) {
	object := newObject()
	object.Spec.Replace = []string{"knd1"}
	assert.Equal(t, []string{"knd1"}, wanted(object, nil).Replace)
	assert.Equal(t, nothing, plan(object, connected(reported()), nil, then.Time), "a server that does not know the field")
	knows := changed(reported(), func(g *shard.Group) { g.Progress = &shard.RotationProgress{} })
	assert.Equal(t, upsert, plan(object, connected(knows), nil, then.Time))
	knows.Replace = []string{"knd1"}
	assert.Equal(t, nothing, plan(object, connected(knows), nil, then.Time))
	object.Spec.Replace = nil
	assert.Equal(t, upsert, plan(object, connected(knows), nil, then.Time))
}

// If a shard deletes a group although it matches the object, the group is created again.
func TestPlanOfAGroupThatItsShardDeletes(t *testing.T) {
	assert.Equal(t, nothing, plan(newObject(), connected(reported()), nil, then.Time))
	deleting := changed(reported(), func(g *shard.Group) { g.Deleting = true })
	assert.Equal(t, upsert, plan(newObject(), connected(deleting), nil, then.Time))
}

// A disconnected shard has rejected the former spec. This says nothing about the new spec.
func TestRejectionOfAFormerSpec(t *testing.T) {
	object := newObject()
	rejected := &rejection{revision: revisionOf(object), message: "no such template"}
	lost := observation{configured: true, lost: shardtest.Unavailable}
	for generation, want := range map[int64]bool{1: true, 2: false} {
		object.Generation = generation
		status := newStatus(object, lost, outcome{now: then}, rejected)
		assert.Equal(t, want, meta.IsStatusConditionFalse(status.Conditions, v1beta1.ConditionConfigValid), "generation %d", generation)
	}
}

// A connected shard does not count as reachable before its groups were listed.
func TestConnectedShardWhoseGroupsAreNotKnown(t *testing.T) {
	status := newStatus(newObject(), observation{configured: true, reachable: true}, outcome{now: then}, nil)
	reachable := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionShardReachable)
	assert.Equal(t, metav1.ConditionUnknown, reachable.Status)
	assert.Equal(t, v1beta1.ReasonNotSynced, reachable.Reason)
}

// A list that confirms the deletion of a former object with the same name does not confirm the
// deletion of this object.
func TestDeletionOfAFormerObject(t *testing.T) {
	object := newObject()
	key := controllertest.Key(object.Name)
	h := newHarness(t, object)
	for uid, want := range map[types.UID]bool{object.UID: true, "former": false} {
		h.controller.unlisted[key] = unlisted{uid: uid}
		awaited, confirmed := h.controller.reviewDeletion(key, object, nil)
		assert.Equal(t, want, confirmed, uid)
		assert.False(t, awaited, uid)
	}
}

// The annotation that replaces the revision of a shard applies only to a newer revision: any
// other deletion has the revision of the object.
func TestRevisionOfADeletion(t *testing.T) {
	h := newHarness(t, newObject())
	var sent *shard.Revision
	h.Fake.OnDelete = func(_, _ string, revision *shard.Revision) error {
		sent = revision
		return nil
	}
	object := newObject()
	object.Generation = 3
	for has, want := range map[int64]int64{2: 3, 3: 3, 4: 4} {
		group := changed(reported(), func(g *shard.Group) { g.Revision = &shard.Revision{UID: string(object.UID), Generation: has} })
		object.Annotations = map[string]string{v1beta1.AnnotationConfirmOverwrite: group.Revision.String()}
		assert.NoError(t, h.controller.remove(h.Ctx, controllertest.Key(object.Name), object, connected(group)))
		assert.Equal(t, want, sent.Generation, "the shard has generation %d", has)
	}
}

// If all drains of a shard are known, only groups with changed drains are synced.
func TestKnownDrainsEnqueueGroupsThatHadDrains(t *testing.T) {
	for draining, want := range map[int32][]string{0: nil, 2: {"workers--a at 1s"}} {
		object := newObject()
		object.Status.DrainingReplicas = &draining
		h := newHarness(t, object)
		got := controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.drainsReported("a") })
		assert.Equal(t, want, got, "%d drains", draining)
	}
}
