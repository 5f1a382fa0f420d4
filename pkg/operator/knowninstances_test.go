// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/generated/clientset/versioned/fake"
	"nstance.dev/operator/pkg/generated/informers/externalversions"
	"nstance.dev/operator/pkg/operator/shard/informer"
)

func TestKnownInstancesAreThoseOfTheObjects(t *testing.T) {
	const namespace = "nstance-system"
	shardGroup := func(group, shard string, ids ...string) *v1beta1.NstanceShardGroup {
		object := &v1beta1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1beta1.ShardGroupName(group, shard)}}
		object.Spec.Shard, object.Status.ProviderIDs = v1beta1.Identifier(shard), ids
		return object
	}
	machine := func(name string, change func(*v1beta1.NstanceMachine)) *v1beta1.NstanceMachine {
		object := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		change(object)
		return object
	}
	onDemand := func(m *v1beta1.NstanceMachine) {
		m.Status.Shard, m.Status.RequestID, m.Status.InstanceID = "a", "request", "i-"+m.Name
	}
	nstance := externalversions.NewSharedInformerFactory(fake.NewClientset(), 0).Infrastructure().V1beta1()
	for _, object := range []runtime.Object{
		shardGroup("workers", "a", "a1", "a2"), shardGroup("others", "a", "a3"), shardGroup("workers", "b", "b1"), shardGroup("workers", "c"),
	} {
		require.NoError(t, nstance.NstanceShardGroups().Informer().GetIndexer().Add(object))
	}
	for _, object := range []runtime.Object{
		machine("requested", onDemand),
		machine("deleted", func(m *v1beta1.NstanceMachine) {
			onDemand(m)
			m.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionServerDeleted, Status: metav1.ConditionTrue}}
		}),
		machine("restored", func(m *v1beta1.NstanceMachine) {
			m.Annotations = map[string]string{v1beta1.AnnotationRequest: "b/request", v1beta1.AnnotationInstanceID: "i-restored"}
		}),
		machine("of-a-pool", func(m *v1beta1.NstanceMachine) { m.Spec.Shard = "b" }),
		machine("not-requested", func(*v1beta1.NstanceMachine) {}),
	} {
		require.NoError(t, nstance.NstanceMachines().Informer().GetIndexer().Add(object))
	}
	got := knownInstances(nstance, namespace)()
	for id, known := range got {
		slices.Sort(known.ProviderIDs)
		got[id] = known
	}
	assert.Equal(t, map[string]informer.Known{
		"a": {ProviderIDs: []string{"a1", "a2", "a3"}, OnDemand: []string{"i-requested"}},
		"b": {ProviderIDs: []string{"b1"}, OnDemand: []string{"i-restored"}},
		"c": {},
	}, got)
}
