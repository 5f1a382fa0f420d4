// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolplan

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/rotation"
)

// A surge is rounded up and what is unavailable is rounded down, but some instance may always be
// replaced.
func TestRotationNumbers(t *testing.T) {
	for name, test := range map[string]struct {
		surge, unavailable         *intstr.IntOrString
		replicas                   int32
		wantSurge, wantUnavailable int32
	}{
		"unset":                      {nil, nil, 40, 1, 0},
		"numbers":                    {ptr.To(intstr.FromInt32(3)), ptr.To(intstr.FromInt32(2)), 40, 3, 2},
		"a surge of 25 %":            {ptr.To(intstr.FromString("25%")), nil, 41, 11, 0},
		"a surge of 25 % of two":     {ptr.To(intstr.FromString("25%")), nil, 2, 1, 0},
		"10 % unavailable":           {nil, ptr.To(intstr.FromString("10%")), 39, 1, 3},
		"no surge":                   {ptr.To(intstr.FromInt32(0)), ptr.To(intstr.FromInt32(2)), 40, 0, 2},
		"no surge, and 10 % of five": {ptr.To(intstr.FromInt32(0)), ptr.To(intstr.FromString("10%")), 5, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			policy := RotationPolicy(&v1beta1.RotationPolicy{MaxSurge: test.surge, MaxUnavailable: test.unavailable}, test.replicas)
			assert.Equal(t, test.wantSurge, policy.MaxSurge)
			assert.Equal(t, test.wantUnavailable, policy.MaxUnavailable)
		})
	}
}

func TestRotationPolicy(t *testing.T) {
	policy := RotationPolicy(&v1beta1.RotationPolicy{
		Order: v1beta1.RotationShardByShard, Canary: 2, BakeSeconds: ptr.To[int32](60), MinReadySeconds: ptr.To[int32](30),
		PauseWhile: []v1beta1.PoolState{v1beta1.PauseWhileInstanceNotReady}, Paused: ptr.To(true),
		Windows: []v1beta1.TimeWindow{{Schedule: "0 2 * * 1,3,5", DurationMinutes: 120, TimeZone: "Europe/Berlin"}},
	}, 3)
	assert.Len(t, policy.Windows, 1)
	policy.Windows = nil
	assert.Equal(t, rotation.Policy{
		MaxSurge: 1, ShardByShard: true, Canary: 2, Bake: time.Minute, MinReady: 30 * time.Second, AllReady: true,
		ProgressDeadline: 30 * time.Minute, Paused: true,
	}, policy)
	assert.Zero(t, RotationPolicy(&v1beta1.RotationPolicy{ProgressDeadlineSeconds: ptr.To[int32](0)}, 3).ProgressDeadline)
}

// A schedule that cannot be read allows nothing, also if others can be read.
func TestAnInvalidScheduleBlocksTheRotation(t *testing.T) {
	policy := RotationPolicy(&v1beta1.RotationPolicy{Windows: []v1beta1.TimeWindow{
		{Schedule: "* * * * *", DurationMinutes: 10}, {Schedule: "0 25 * * *", DurationMinutes: 10},
	}}, 3)
	assert.Equal(t, rotation.Reason(v1beta1.ReasonInvalidSchedule), policy.Blocked.Reason)
	assert.Contains(t, policy.Blocked.Message, "spec.rotation.windows[1]: ")
	got := rotation.Grants(policy, []rotation.Shard{{ID: "a", Size: 2, Outdated: 2, Connected: true, Grant: &rotation.Grant{}, InForce: &rotation.Grant{}}}, time.Now())
	assert.Equal(t, rotation.Grant{}, got.Grants[0])
	assert.Equal(t, policy.Blocked, got.Stop)
}

// documented returns the first example of a section of docs/reference.md.
func documented(t *testing.T, section string) (pool v1beta1.NstanceMachinePool) {
	t.Helper()
	document, err := os.ReadFile("../../../docs/reference.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(document), "\n## "+section+"\n")
	require.True(t, found)
	_, example, found := strings.Cut(text, "```yaml\n")
	require.True(t, found)
	example, _, found = strings.Cut(example, "```\n")
	require.True(t, found)
	require.NoError(t, yaml.UnmarshalStrict([]byte(example), &pool))
	return pool
}

// The example of docs/reference.md#rotation does what the text below it says.
func TestTheDocumentedRotation(t *testing.T) {
	pool := documented(t, "Rotation")

	policy := RotationPolicy(pool.Spec.Rotation, 12)
	require.Nil(t, policy.Blocked)
	monday := time.Date(2026, 7, 6, 0, 30, 0, 0, time.UTC) // 2:30 in Berlin
	shards := func(upToDate int32, since time.Duration) []rotation.Shard {
		var all []rotation.Shard
		for i, id := range []string{"a", "b", "c"} {
			shard := rotation.Shard{ID: id, Size: 4, Outdated: 4, Connected: true, Grant: &rotation.Grant{}, InForce: &rotation.Grant{}}
			for n := range shard.Size {
				instance := rotation.Instance{ID: fmt.Sprint(id, n), Outdated: i > 0 || n >= upToDate, Created: monday.Add(-time.Hour), Ready: true, ReadySince: monday.Add(-since)}
				if !instance.Outdated {
					shard.Outdated--
					shard.UpToDate++
				}
				shard.Instances = append(shard.Instances, instance)
			}
			all = append(all, shard)
		}
		return all
	}
	end := time.Date(2026, 7, 6, 2, 0, 0, 0, time.UTC)
	canary := rotation.Grants(policy, shards(0, time.Hour), monday)
	assert.EqualValues(t, 1, canary.Grants[0].UpToDate)
	assert.Equal(t, end, canary.Grants[0].NotAfter.UTC())
	for _, i := range []int{1, 2} {
		assert.Equal(t, rotation.Grant{}, canary.Grants[i])
	}
	baking := rotation.Grants(policy, shards(1, 9*time.Minute), monday)
	require.NotNil(t, baking.Stop)
	assert.Equal(t, rotation.Baking, baking.Stop.Reason)
	assert.Equal(t, monday.Add(time.Minute), baking.Next)
	var surge int32
	rest := rotation.Grants(policy, shards(1, 10*time.Minute), monday)
	for _, grant := range rest.Grants {
		surge += grant.MaxSurge
		assert.Zero(t, grant.MaxUnavailable)
	}
	assert.EqualValues(t, 3, surge)
	for _, closed := range []time.Time{end, monday.AddDate(0, 0, 1), monday.Add(-31 * time.Minute)} {
		stopped := rotation.Grants(policy, shards(1, time.Hour), closed)
		require.NotNil(t, stopped.Stop, "%s", closed)
		assert.Equal(t, rotation.OutsideWindow, stopped.Stop.Reason)
	}
}
