// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
)

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
