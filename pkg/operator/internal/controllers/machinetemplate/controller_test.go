// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinetemplate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

const name = "batch"

func newTemplate(change func(*v1beta1.NstanceMachineSpec)) *v1beta1.NstanceMachineTemplate {
	template := &v1beta1.NstanceMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: controllertest.Namespace}}
	template.Spec.Template.Spec.GroupRef.Name = "workers"
	change(&template.Spec.Template.Spec)
	return template
}

func newGroup(shape *shard.NodeShape) shard.Group {
	return shard.Group{Key: "workers", Shape: shape}
}

type harness struct {
	*controllertest.Harness
	c *Controller
}

func newHarness(t *testing.T, shards *shardtest.Shards, template *v1beta1.NstanceMachineTemplate) *harness {
	t.Helper()
	h := &harness{Harness: controllertest.NewHarness(t, shards, template)}
	c, err := New(h.Dependencies)
	require.NoError(t, err)
	h.c = c
	h.SyncKey = func() (time.Duration, error) { return c.sync(h.Ctx, controllertest.Key(name)) }
	return h
}

func (h *harness) status() v1beta1.NstanceMachineTemplateStatus {
	h.T.Helper()
	template, err := h.InfrastructureV1beta1().NstanceMachineTemplates(controllertest.Namespace).Get(h.T.Context(), name, metav1.GetOptions{})
	require.NoError(h.T, err)
	return template.Status
}

var (
	large = &shard.NodeShape{Architecture: "amd64", OperatingSystem: "linux", Capacity: map[string]string{"cpu": "8", "memory": "32Gi"}}
	small = &shard.NodeShape{Architecture: "amd64", OperatingSystem: "linux", Capacity: map[string]string{"cpu": "2", "memory": "8Gi"}}
)

func TestStatusIsTheSmallestShape(t *testing.T) {
	quantities := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
	}
	for test, c := range map[string]struct {
		change func(*v1beta1.NstanceMachineSpec)
		want   corev1.ResourceList
	}{
		"any shard":            {func(*v1beta1.NstanceMachineSpec) {}, quantities("2", "8Gi")},
		"a shard":              {func(s *v1beta1.NstanceMachineSpec) { s.Shard = "a" }, quantities("8", "32Gi")},
		"another type":         {func(s *v1beta1.NstanceMachineSpec) { s.InstanceType = "m7i.metal" }, nil},
		"a group of no shard":  {func(s *v1beta1.NstanceMachineSpec) { s.GroupRef.Name = "other" }, nil},
		"an unconfigured zone": {func(s *v1beta1.NstanceMachineSpec) { s.Shard = "z" }, nil},
	} {
		t.Run(test, func(t *testing.T) {
			shards := shardtest.New("a", "b", "c")
			shards.SetGroup("a", newGroup(large))
			shards.SetGroup("b", newGroup(small))
			h := newHarness(t, shards, newTemplate(c.change))
			_, _, err := h.Sync()
			require.NoError(t, err)
			status := h.status()
			assert.True(t, len(c.want) == len(status.Capacity), "%v", status)
			for resource, quantity := range c.want {
				got := status.Capacity[resource]
				assert.True(t, quantity.Equal(got), "%s: %v", resource, got)
				assert.Equal(t, v1beta1.NodeInfo{Architecture: "amd64", OperatingSystem: "linux"}, status.NodeInfo)
			}
			h.Expect()
		})
	}
}
