// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"strings"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func TestTrimNode(t *testing.T) {
	created, deleted := metav1.Unix(1, 0), metav1.Unix(2, 0)
	addresses := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "one", UID: "uid", ResourceVersion: "7", CreationTimestamp: created, DeletionTimestamp: &deleted,
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d", "nstance.dev/cordoned-for": "a/i-1"},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///us-west-2a/i-1", Unschedulable: true, PodCIDR: "10.0.0.0/24"},
		Status: corev1.NodeStatus{
			Images: []corev1.ContainerImage{{SizeBytes: 1}}, Addresses: addresses,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: "False"}, {Type: corev1.NodeReady, Status: "True", LastHeartbeatTime: created, LastTransitionTime: created}},
		},
	}
	want := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "one", UID: "uid", ResourceVersion: "7", CreationTimestamp: created, DeletionTimestamp: &deleted,
			Annotations: map[string]string{"nstance.dev/cordoned-for": "a/i-1"},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///us-west-2a/i-1", Unschedulable: true},
		Status: corev1.NodeStatus{
			Addresses: addresses, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: "True", LastTransitionTime: created}},
		},
	}
	if got, err := trimNode(node); err != nil || !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("kept %+v, error %v", got, err)
	}
}

func TestTransformsLeaveTombstonesAlone(t *testing.T) {
	tombstone := cache.DeletedFinalStateUnknown{Key: "one"}
	for name, transform := range map[string]cache.TransformFunc{"Nodes": trimNode, "others": trim} {
		if got, err := transform(tombstone); err != nil || got != any(tombstone) {
			t.Errorf("%s: made %v of it, error %v", name, got, err)
		}
	}
}

// Two objects that were decoded separately share the strings they have alike, and are
// the same as before.
func TestTrimSharesStrings(t *testing.T) {
	decode := func() *v1beta1.NstanceShardGroup {
		fresh := strings.Clone
		group := &v1beta1.NstanceShardGroup{}
		group.Namespace, group.Finalizers = fresh("nstance-system"), []string{fresh("finalizer")}
		group.Labels = map[string]string{fresh("nstance.dev/shard"): fresh("a")}
		group.OwnerReferences = []metav1.OwnerReference{{APIVersion: fresh("v1"), Kind: fresh("Pool"), Name: fresh("workers")}}
		group.Status.Conditions = []metav1.Condition{{
			Type: fresh("Ready"), Status: metav1.ConditionStatus(fresh("True")), Reason: fresh("Ready"), Message: fresh("message"),
		}}
		return group
	}
	trimmed := func() *v1beta1.NstanceShardGroup {
		group := decode()
		if _, err := trim(group); err != nil || !equality.Semantic.DeepEqual(group, decode()) {
			t.Fatalf("made %+v of %+v, error %v", group, decode(), err)
		}
		return group
	}
	stringsOf := func(group *v1beta1.NstanceShardGroup) []string {
		owner, condition := group.OwnerReferences[0], group.Status.Conditions[0]
		all := []string{group.Namespace, group.Finalizers[0], owner.APIVersion, owner.Kind, condition.Type, string(condition.Status), condition.Reason}
		for key, value := range group.Labels {
			all = append(all, key, value)
		}
		return all
	}
	first, second := stringsOf(trimmed()), stringsOf(trimmed())
	for i := range first {
		if unsafe.StringData(first[i]) != unsafe.StringData(second[i]) {
			t.Errorf("%q is in memory twice", first[i])
		}
	}
}
