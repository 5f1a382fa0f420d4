// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
)

// members returns instances of a group of which the first ones are missing, and the next ones
// are unlisted.
func members(group string, total, missing, unlisted int) []instance.Instance {
	all := make([]instance.Instance, total)
	for n := range all {
		id := fmt.Sprint(group, n)
		all[n] = instance.Instance{Record: instance.Record{ID: id, ProviderID: id}, State: instance.Running}
		switch {
		case n < missing:
			all[n].State = instance.Missing
		case n < missing+unlisted:
			all[n].Unlisted = true
		}
	}
	return all
}

// TestMissingInstancesWaitForThoseThatAreUnlisted: while the provider looks for others, the
// first that are missing may be two of many.
func TestMissingInstancesWaitForThoseThatAreUnlisted(t *testing.T) {
	for name, tc := range map[string]struct {
		missing, unlisted int
		kept              int
		began             string
	}{
		"one of ten, and all others are listed":  {missing: 1},
		"one of ten, and two more are unlisted":  {missing: 1, unlisted: 2},
		"one of ten, and many more are unlisted": {missing: 1, unlisted: 9, kept: 1},
		"all are unlisted":                       {unlisted: 10},
		"most are missing":                       {missing: 9, unlisted: 1, kept: 9, began: "9 of 10 instances of group default/workers, and 9 of 10 of the shard"},
	} {
		t.Run(name, func(t *testing.T) {
			kept, began := new(losses).update(workersKey, members("", 10, tc.missing, tc.unlisted), noOthers, time.Now(), false)
			assert.Len(t, kept, tc.kept)
			assert.Equal(t, tc.began, began)
		})
	}

	// Lookups that fail for long are reported, so that an administrator can confirm the losses.
	waiting, begin := new(losses), time.Now()
	_, reported := waiting.update(workersKey, members("", 10, 1, 9), noOthers, begin, false)
	assert.Empty(t, reported)
	assert.False(t, waiting.keeps(workersKey))
	_, reported = waiting.update(workersKey, members("", 10, 1, 9), noOthers, begin.Add(lossWindow-time.Second), false)
	assert.Empty(t, reported)
	left, reported := waiting.update(workersKey, members("", 10, 1, 9), noOthers, begin.Add(lossWindow), false)
	assert.Len(t, left, 1)
	assert.Equal(t, "1 of 10 instances of group default/workers, and 1 of 10 of the shard", reported)
	assert.True(t, waiting.keeps(workersKey))
	left, _ = waiting.update(workersKey, members("", 10, 1, 9), noOthers, begin.Add(lossWindow), true)
	assert.Empty(t, left, "accepted")

	// Stopped instances cannot be lost.
	stopped := members("", 10, 1, 9)
	for n := range stopped {
		stopped[n].Stopped = n > 0
	}
	left, _ = new(losses).update(workersKey, stopped, noOthers, begin, false)
	assert.Empty(t, left)

	// What was found again does not keep the others, and what is missing as well does.
	l, now := new(losses), time.Now()
	kept, began := l.update(workersKey, members("", 10, 2, 8), noOthers, now, false)
	assert.Len(t, kept, 2)
	assert.Empty(t, began)
	kept, _ = l.update(workersKey, members("", 10, 2, 0), noOthers, now, false)
	assert.Empty(t, kept, "the others were found")
}

// without returns the groups but one.
func without(all map[instance.GroupKey][]instance.Instance, key instance.GroupKey) map[instance.GroupKey][]instance.Instance {
	others := maps.Clone(all)
	delete(others, key)
	return others
}

// TestManyGroupsOfWhichAllInstancesAreMissing are too many for the shard, though two of each
// group are not.
func TestManyGroupsOfWhichAllInstancesAreMissing(t *testing.T) {
	key := func(n int) instance.GroupKey {
		return instance.GroupKey{Tenant: "default", Group: fmt.Sprint("group", n)}
	}
	groups := func(missing, unlisted int) map[instance.GroupKey][]instance.Instance {
		all := map[instance.GroupKey][]instance.Instance{}
		for n := range 9 {
			all[key(n)] = members(key(n).Group, 2, missing, unlisted)
		}
		return all
	}
	own := members("own", 2, 2, 0)
	others := func(all map[instance.GroupKey][]instance.Instance) func() map[instance.GroupKey][]instance.Instance {
		return func() map[instance.GroupKey][]instance.Instance { return all }
	}
	now := time.Now()

	l := new(losses)
	kept, began := l.update(workersKey, own, others(groups(0, 2)), now, false)
	assert.Len(t, kept, 2, "others are unlisted")
	assert.Empty(t, began)
	kept, began = l.update(workersKey, own, others(groups(2, 0)), now, false)
	assert.Len(t, kept, 2, "others are missing")
	assert.Equal(t, "2 of 2 instances of group default/workers, and 20 of 20 of the shard", began)
	kept, began = l.update(workersKey, own, others(groups(2, 0)), now.Add(lossWindow-time.Second), false)
	assert.Len(t, kept, 2)
	assert.Empty(t, began, "reported once")
	kept, _ = l.update(workersKey, own, others(groups(2, 0)), now.Add(lossWindow), false)
	assert.Empty(t, kept, "after the window")

	// Afterwards a third of the shard is given up in each window.
	l = new(losses)
	left, all := map[instance.GroupKey][]instance.Instance{}, groups(2, 0)
	update := func(at time.Time) (kept int) {
		for n := range 9 {
			k, _ := l.update(key(n), left[key(n)], others(without(left, key(n))), at, false)
			kept += len(k)
			// The others are replaced.
			for i := range left[key(n)] {
				if one := &left[key(n)][i]; one.State == instance.Missing && !k[one.ID] {
					*one = members("replacement-of-"+one.ID, 1, 0, 0)[0]
				}
			}
		}
		return kept
	}
	maps.Copy(left, all)
	assert.Equal(t, 18, update(now))
	assert.Equal(t, 18, update(now.Add(lossWindow-time.Second)))
	assert.Equal(t, 12, update(now.Add(lossWindow)))
	assert.Equal(t, 12, update(now.Add(2*lossWindow-time.Second)))
	assert.Equal(t, 6, update(now.Add(2*lossWindow)))

	// What other groups have given up counts too.
	l, all = new(losses), groups(0, 0)
	for n := range 3 {
		all[key(n)] = members(key(n).Group, 2, 2, 0)
		kept, _ = l.update(key(n), all[key(n)], others(map[instance.GroupKey][]instance.Instance{workersKey: members("x", 20, 0, 0)}), now, false)
		assert.Empty(t, kept)
	}
	kept, began = l.update(workersKey, own, others(all), now, false)
	assert.Len(t, kept, 2, "6 of 14 were given up before")
	assert.Equal(t, "2 of 2 instances of group default/workers, and 2 of 14 of the shard", began)
	kept, _ = new(losses).update(workersKey, own, others(groups(0, 0)), now, false)
	assert.Empty(t, kept, "2 of 20")
	accepted, _ := l.update(workersKey, own, others(all), now, true)
	assert.Empty(t, accepted, "an administrator has confirmed")

	// What was confirmed leaves the share to others.
	l = new(losses)
	large := members("large", 20, 15, 0)
	kept, _ = l.update(workersKey, large, noOthers, now, true)
	assert.Empty(t, kept)
	kept, _ = l.update(key(0), members("one", 10, 1, 0), others(map[instance.GroupKey][]instance.Instance{workersKey: large}), now, false)
	assert.Empty(t, kept)
}

// deletedGroup is a group that was deleted, beside the others.
type deletedGroup struct {
	Groups
	key instance.GroupKey
}

func (d deletedGroup) Deleted(key instance.GroupKey) bool {
	return key == d.key || d.Groups.Deleted(key)
}

// TestInstancesOfDeletedGroupsDoNotCount for the share of the shard, as they are not replaced.
func TestInstancesOfDeletedGroupsDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.run(workersKey, 1)
		s.run(otherKey, 2)
		r := &reconciliation{Reconciler: s.reconciler, key: workersKey}
		assert.Len(t, r.others()[otherKey], 2)
		assert.NotContains(t, r.others(), workersKey)
		r.Reconciler = &Reconciler{Options: Options{Instances: s.reconciler.Instances, Groups: deletedGroup{s.reconciler.Groups, otherKey}}}
		assert.Empty(t, r.others())
	})
}
