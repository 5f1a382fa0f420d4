// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scaledown

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/tier"
)

// newReported returns a report of a group of a size. Each word is an instance, the oldest first: its id,
// with words after colons. These are a state, "outdated", "reason" in the deletion order, "first" for
// removeFirst, "protected", and the reason of a notice.
func newReported(size int32, text string) reported {
	group := shard.Group{Key: "workers", Size: size, ListsInstances: true}
	notices, protected := map[string]shard.DeletionNotice{}, sets.New[string]()
	for n, word := range strings.Fields(text) {
		id, rest, _ := strings.Cut(word, ":")
		instance := shard.Instance{ID: id, State: shard.InstanceRunning, ProviderID: "kwok:///a/" + id, Created: int64(n)}
		next := shard.NextDeletion{InstanceID: id}
		for _, what := range strings.FieldsFunc(rest, func(r rune) bool { return r == ':' }) {
			switch what {
			case "pending", "stopped", "failed", "terminating", "terminated":
				instance.State = shard.InstanceState(what)
			case "outdated":
				instance.Outdated = "config-drift"
			case "reason":
				next.Reason = "expired"
			case "first":
				group.RemoveFirst = append(group.RemoveFirst, id)
			case "protected":
				protected.Insert(id)
			default:
				notices[id] = shard.DeletionNotice{InstanceID: id, Group: "workers", State: shard.Draining, Reason: what}
			}
		}
		group.Instances = append(group.Instances, instance)
		group.DeletionOrder = append(group.DeletionOrder, next)
	}
	return reported{
		group:     group,
		notice:    func(id string) (shard.DeletionNotice, bool) { notice, ok := notices[id]; return notice, ok },
		protected: func(instance shard.Instance) bool { return protected.Has(instance.ID) },
	}
}

func idsOf(instances []shard.Instance) string {
	ids := make([]string, len(instances))
	for i, instance := range instances {
		ids[i] = instance.ID
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

func TestReplacements(t *testing.T) {
	for name, test := range map[string]struct {
		size      int32
		instances string
		want      string
	}{
		"nothing is above the size":                    {2, "a:outdated b", ""},
		"fewer than the size":                          {3, "a:config-drift b", ""},
		"an outdated instance waits for its drain":     {2, "a:outdated b:outdated c", "c"},
		"an outdated instance drains":                  {2, "a:outdated:config-drift b:outdated c", "c"},
		"the reason is known from the order":           {2, "a:reason b c", "c"},
		"the reason is known from the notice":          {2, "a:spot b c", "c"},
		"a notice without a reason":                    {1, "a: b", ""},
		"the outdated instance is terminated":          {2, "a:terminating:config-drift b:outdated c:protected", ""},
		"it was terminated":                            {2, "a:terminated b c:protected", ""},
		"a failed instance does not count":             {2, "a:failed:reason b c", ""},
		"two replacements":                             {2, "a:outdated b:outdated c d", "c d"},
		"one of two is pending":                        {2, "a:outdated b:outdated c d:pending", "c"},
		"the replacement is pending":                   {2, "a:outdated b c:pending", "b"},
		"the replacement is pending, all are outdated": {2, "a:outdated b:outdated c:pending", ""},
		"a larger size beside the replacement":         {3, "a:config-drift b c:protected d:pending", "c"},
		"the instance for the larger size runs":        {3, "a:config-drift b c:protected d", "c d"},
		"drains end in another order":                  {3, "a:config-drift b:terminating c:outdated d:protected e:protected", "d e"},
		"a smaller size":                               {1, "a b c", ""},
		"a smaller size, it drains":                    {2, "a:scale-down b c", ""},
		"selected by the autoscaler":                   {2, "a:first b c", ""},
		"selected while another is replaced":           {2, "a:first b:outdated c d", "d"},
		"selected while it is replaced":                {2, "a:first:config-drift b c d", ""},
		"a scale-down while another is replaced":       {2, "a:scale-down b:config-drift c d", "d"},
		"a smaller size and an outdated instance":      {1, "a:outdated b c d", "d"},
		"an outdated instance is no replacement":       {1, "a:outdated b:outdated c:outdated", ""},
		"an outdated replacement":                      {1, "a:config-drift b c:outdated", "b"},
		"a replacement that leaves itself":             {1, "a:config-drift b:spot:protected c", "c"},
		"a replacement that the autoscaler selected":   {1, "a:config-drift b c:first:protected", "b"},
		"size 0": {0, "a:scale-down b:scale-down", ""},
	} {
		assert.Equal(t, test.want, idsOf(replacements(newReported(test.size, test.instances))), name)
	}
}

// Servers that do not report when an instance was created have ids that grow.
func TestTheNewestInstanceWithoutATime(t *testing.T) {
	r := newReported(1, "a:outdated b c")
	for i := range r.group.Instances {
		r.group.Instances[i].Created = 0
	}
	r.group.Size = 2
	assert.Equal(t, "c", idsOf(replacements(r)))
}

// Whatever a shard reports: only instances that run and stay are protected, never more new ones than are
// above the size, and the newest first. The order of the report does not matter.
func TestReplacementsOfAnyReport(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(3, 20)) {
		random := rand.New(rand.NewPCG(seed, 0))
		for range 500 {
			size, text := int32(random.IntN(7)), randomInstances(random)
			checkReplacements(t, random, newReported(size, text), fmt.Sprintf("seed %d: size %d of %s", seed, size, text))
		}
	}
}

func randomInstances(random *rand.Rand) string {
	words := []string{"pending", "terminating", "failed", "outdated", "reason", "first", "protected", "scale-down", "config-drift"}
	var instances []string
	for n := range random.IntN(9) {
		word := fmt.Sprintf("i%d", n)
		for range random.IntN(3) {
			word += ":" + words[random.IntN(len(words))]
		}
		instances = append(instances, word)
	}
	return strings.Join(instances, " ")
}

func checkReplacements(t *testing.T, random *rand.Rand, r reported, at string) {
	t.Helper()
	found := replacements(r)
	leavesForSize := func(instance shard.Instance) bool {
		notice, _ := r.notice(instance.ID)
		return notice.Reason == "scale-down" || slices.Contains(r.group.RemoveFirst, instance.ID)
	}
	stays := func(instance shard.Instance) bool {
		_, noticed := r.notice(instance.ID)
		return instance.State == "running" && instance.Outdated == "" && !noticed && !leavesForSize(instance) &&
			!slices.Contains(r.group.DeletionOrder, shard.NextDeletion{InstanceID: instance.ID, Reason: "expired"})
	}
	above, fresh := -int(r.group.Size), 0
	for _, instance := range r.group.Instances {
		if (instance.State == "pending" || instance.State == "running") && !leavesForSize(instance) {
			above++
		}
	}
	for _, instance := range found {
		require.True(t, stays(instance), "%s: %s leaves", at, instance.ID)
		if !r.protected(instance) {
			fresh++
		}
	}
	require.LessOrEqual(t, fresh, max(0, above), at)
	if above <= 0 {
		require.Empty(t, found, at)
	}
	for _, instance := range r.group.Instances {
		if len(found) == 0 || !stays(instance) || slices.Contains(found, instance) {
			continue
		}
		require.False(t, r.protected(instance), "%s: %s is not protected any more", at, instance.ID)
		for _, other := range found {
			require.True(t, r.protected(other) || other.Created > instance.Created, "%s: %s is newer than %s", at, instance.ID, other.ID)
		}
	}
	instances, order := r.group.Instances, r.group.DeletionOrder
	random.Shuffle(len(instances), func(i, j int) { instances[i], instances[j] = instances[j], instances[i] })
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	require.Equal(t, idsOf(found), idsOf(replacements(r)), at)
}

// rotation is a shard group whose instances are replaced while the autoscaler removes Nodes. replaced has
// the instance that each replacement replaces.
type rotation struct {
	reported
	random   *rand.Rand
	replaced map[string]string
	leaving  map[string]string
	kept     sets.Set[string]
	created  int
}

func (r *rotation) create(state shard.InstanceState) string {
	r.created++
	id := fmt.Sprintf("i%03d", r.created)
	r.group.Instances = append(r.group.Instances, shard.Instance{ID: id, State: state, Created: int64(r.created)})
	return id
}

// step does one thing that a shard, a user or the autoscaler may do.
func (r *rotation) step(surge int) {
	busy := sets.New[string]()
	for replacement, outdated := range r.replaced {
		busy.Insert(replacement, outdated)
	}
	instances := r.group.Instances
	at := r.random.IntN(len(instances))
	instance := &instances[at]
	_, leaves := r.leaving[instance.ID]
	switch r.random.IntN(6) {
	case 0: // A replacement is created.
		if instance.Outdated != "" && !leaves && !busy.Has(instance.ID) && len(r.replaced) < surge {
			outdated := instance.ID
			r.replaced[r.create(shard.InstancePending)] = outdated
		}
	case 1: // The oldest pending instance runs, and the instance that it replaces drains.
		if pending := slices.IndexFunc(instances, func(i shard.Instance) bool { return i.State == shard.InstancePending }); pending >= 0 {
			instances[pending].State = shard.InstanceRunning
			if outdated, ok := r.replaced[instances[pending].ID]; ok {
				r.leaving[outdated] = "config-drift"
			}
		}
	case 2: // A drain ends.
		if leaves {
			id := instance.ID
			r.group.Instances = slices.Delete(instances, at, at+1)
			for replacement, outdated := range r.replaced {
				if outdated == id {
					delete(r.replaced, replacement)
				}
			}
		}
	case 3: // The autoscaler removes a Node that it may remove.
		if !busy.Has(instance.ID) && !leaves && instance.State == shard.InstanceRunning && !r.kept.Has(instance.ID) && r.group.Size > 1 {
			r.group.Size--
			r.group.RemoveFirst = append(r.group.RemoveFirst, instance.ID)
			r.leaving[instance.ID] = "scale-down"
		}
	case 4: // A larger size.
		if r.group.Size < 12 {
			r.group.Size++
			r.create(shard.InstancePending)
		}
	case 5:
		if !busy.Has(instance.ID) && instance.State == shard.InstanceRunning {
			instance.Outdated = "config-drift"
		}
	}
}

// While an instance drains, its replacement is protected. When no instance is replaced, none is.
func TestReplacementsAreProtectedUntilTheDrainEnds(t *testing.T) {
	protections := 0
	for _, seed := range tier.Seeds(t, tier.Pick(5, 50)) {
		r := &rotation{
			random: rand.New(rand.NewPCG(seed, 0)), replaced: map[string]string{}, leaving: map[string]string{}, kept: sets.New[string](),
		}
		r.notice = func(id string) (shard.DeletionNotice, bool) {
			reason, ok := r.leaving[id]
			return shard.DeletionNotice{InstanceID: id, Reason: reason}, ok
		}
		r.protected = func(instance shard.Instance) bool { return r.kept.Has(instance.ID) }
		for range 4 {
			r.create(shard.InstanceRunning)
			r.group.Size++
		}
		for n := range 2000 {
			r.step(3)
			found := replacements(r.reported)
			r.kept = sets.New[string]()
			for _, instance := range found {
				r.kept.Insert(instance.ID)
			}
			for _, instance := range r.group.Instances {
				if r.replaced[instance.ID] != "" && instance.State == shard.InstanceRunning && instance.Outdated == "" {
					protections++
					require.True(t, r.kept.Has(instance.ID), "seed %d, step %d: %s is a replacement: %+v", seed, n, instance.ID, r.group)
				}
			}
			if len(r.replaced) == 0 {
				require.Empty(t, r.kept, "seed %d, step %d: %+v", seed, n, r.group)
			}
		}
	}
	assert.Greater(t, protections, 100)
}

func newNode(annotations map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "uid-1", ResourceVersion: "7", Annotations: annotations}}
}

func TestChange(t *testing.T) {
	const user, ours, group = AnnotationDisabled, v1beta1.AnnotationScaleDownDisabled, "workers--a"
	for name, test := range map[string]struct {
		annotations map[string]string
		protectFor  string
		want        map[string]string
	}{
		"a replacement":                       {nil, group, map[string]string{user: "true", ours: group}},
		"a replacement stays":                 {map[string]string{user: "true", ours: group}, group, map[string]string{user: "true", ours: group}},
		"a replacement of another group":      {map[string]string{user: "true", ours: "other"}, group, map[string]string{user: "true", ours: group}},
		"the half of it":                      {map[string]string{ours: group}, group, map[string]string{user: "true", ours: group}},
		"no replacement any more":             {map[string]string{user: "true", ours: group, "x": "y"}, "", map[string]string{"x": "y"}},
		"only ours is left":                   {map[string]string{ours: group}, "", nil},
		"another Node":                        {map[string]string{"x": "y"}, "", map[string]string{"x": "y"}},
		"a user's Node":                       {map[string]string{user: "true"}, "", map[string]string{user: "true"}},
		"a replacement that a user protects":  {map[string]string{user: "true"}, group, map[string]string{user: "true"}},
		"a replacement that a user gives up":  {map[string]string{user: "false", ours: group}, group, map[string]string{user: "false"}},
		"a user has changed ours, at the end": {map[string]string{user: "false", ours: group}, "", map[string]string{user: "false"}},
		"a user permits it before":            {map[string]string{user: "false"}, group, map[string]string{user: "false"}},
	} {
		node := newNode(test.annotations)
		for key, value := range change(node, test.protectFor) {
			if value == nil {
				delete(node.Annotations, key)
			} else {
				metav1.SetMetaDataAnnotation(&node.ObjectMeta, key, *value)
			}
		}
		if len(node.Annotations) == 0 {
			node.Annotations = nil
		}
		assert.Equal(t, test.want, node.Annotations, name)
		assert.Empty(t, change(node, test.protectFor), "%s: it is written again", name)
	}
}
