// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
)

// TestAHostRestarts: its instances stop and are started again. None is replaced, nor counts as silent.
func TestAHostRestarts(t *testing.T) {
	for name, test := range map[string]struct {
		size, stopped int
		back          time.Duration
		want          int
	}{
		"one of one, in time":     {1, 1, 4 * time.Minute, 0},
		"all, in time":            {10, 10, 4 * time.Minute, 0},
		"one of one, late":        {1, 1, 6 * time.Minute, 1},
		"some, late":              {10, 3, 6 * time.Minute, 3},
		"all, late":               {10, 10, 6 * time.Minute, 0},
		"all, later":              {10, 10, 22 * time.Minute, 3},
		"all, and none ever runs": {10, 10, 0, 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newConfig()
				c.Shard.RestartGrace = 5 * time.Minute
				s := start(t, c)
				ids := s.run(workersKey, test.size)
				s.reconciler.Losses = new(acceptedLosses)
				s.creations()
				s.cloud.stopHost(ids[:test.stopped]...)
				synctest.Wait()
				if test.back == 0 {
					s.pass(2 * time.Hour)
				} else {
					s.pass(test.back)
					s.cloud.startHost(ids[:test.stopped]...)
					s.pass(2 * time.Hour)
				}
				assert.Equal(t, test.want, s.creations())
			})
		})
	}
}

// TestAStoppedInstanceIsRemovedFirst, also while it may be started again.
func TestAStoppedInstanceIsRemovedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.RestartGrace = 5 * time.Minute
		s := start(t, c)
		ids := s.run(workersKey, 3)
		s.cloud.stopHost(ids[1])
		synctest.Wait()
		s.scale(workersKey, 2)
		s.pass(time.Minute)
		assert.Equal(t, []string{ids[0], ids[2]}, s.cloud.ids(workersKey))
	})
}

func TestRestarts(t *testing.T) {
	var r restarts
	begin := time.Unix(1700000000, 0)
	stopped := func(id string) instance.Instance {
		return instance.Instance{Record: instance.Record{ID: id}, State: instance.Stopped, MayReturn: true}
	}
	running, failed, deleting, ended := stopped("running"), stopped("failed"), stopped("deleting"), stopped("ended")
	running.State, failed.State, deleting.DeleteReason, ended.MayReturn = instance.Running, instance.Failed, "unhealthy", false
	others := []instance.Instance{running, failed, deleting, ended}
	update := func(after time.Duration, instances ...instance.Instance) (map[string]bool, time.Duration) {
		return r.update(workersKey, append(instances, others...), 5*time.Minute, begin.Add(after))
	}
	for _, step := range []struct {
		after     time.Duration
		instances []instance.Instance
		want      map[string]bool
		next      time.Duration
	}{
		{0, []instance.Instance{stopped("a")}, map[string]bool{"a": true}, 5 * time.Minute},
		{time.Minute, []instance.Instance{stopped("a"), stopped("b")}, map[string]bool{"a": true, "b": true}, 4 * time.Minute},
		{5*time.Minute - 1, []instance.Instance{stopped("a"), stopped("b")}, map[string]bool{"a": true, "b": true}, 1},
		{5 * time.Minute, []instance.Instance{stopped("a"), stopped("b")}, map[string]bool{"b": true}, time.Minute},
		{6 * time.Minute, []instance.Instance{stopped("a"), stopped("b")}, map[string]bool{}, 0},
		{7 * time.Minute, []instance.Instance{stopped("a")}, map[string]bool{}, 0},
		// It has run in between.
		{8 * time.Minute, []instance.Instance{stopped("b")}, map[string]bool{"b": true}, 5 * time.Minute},
	} {
		got, next := update(step.after, step.instances...)
		assert.Equal(t, step.want, got, "after %s", step.after)
		assert.Equal(t, step.next, next, "after %s", step.after)
	}
	update(9 * time.Minute)
	assert.Empty(t, r.byGroup)
}
