// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
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
			Labels: map[string]string{"a": "b", "nstance.dev/shard": "us-west-2a", "ours": "1"}, Annotations: map[string]string{"c": "d", "nstance.dev/cordoned-for": "a/i-1", "nstance.dev/drain-reason": "expired", "nstance.dev/delete-at": "2026-01-02T03:04:05Z", "nstance.dev/remediate-instance": "", "nstance.dev/node-settings": `{"labels":["ours"]}`, "nstance.dev/scale-down-disabled": "workers--a", "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///us-west-2a/i-1", Unschedulable: true, PodCIDR: "10.0.0.0/24"},
		Status: corev1.NodeStatus{
			Images: []corev1.ContainerImage{{SizeBytes: 1}}, Addresses: addresses,
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeMemoryPressure, Status: "False"}, {Type: corev1.NodeDiskPressure, Status: "True", LastTransitionTime: created},
				{Type: corev1.NodeReady, Status: "True", LastHeartbeatTime: created, LastTransitionTime: created},
				{Type: "GPU", Status: "False", Reason: "Lost", Message: "a long text"},
			},
		},
	}
	want := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "one", UID: "uid", ResourceVersion: "7", CreationTimestamp: created, DeletionTimestamp: &deleted,
			Labels:      map[string]string{"nstance.dev/shard": "us-west-2a", "ours": "1"},
			Annotations: map[string]string{"nstance.dev/cordoned-for": "a/i-1", "nstance.dev/drain-reason": "expired", "nstance.dev/delete-at": "2026-01-02T03:04:05Z", "nstance.dev/remediate-instance": "", "nstance.dev/node-settings": `{"labels":["ours"]}`, "nstance.dev/scale-down-disabled": "workers--a", "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///us-west-2a/i-1", Unschedulable: true},
		Status: corev1.NodeStatus{
			Addresses: addresses, Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeDiskPressure, Status: "True", LastTransitionTime: created},
				{Type: corev1.NodeReady, Status: "True", LastTransitionTime: created}, {Type: "GPU", Status: "False"},
			},
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

// Two objects that were decoded separately share their equal strings, and are not changed
// otherwise.
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
	if first, second := trimmed().Labels, trimmed().Labels; reflect.ValueOf(first).Pointer() != reflect.ValueOf(second).Pointer() {
		t.Error("the labels are in memory twice")
	}
	first, second := stringsOf(trimmed()), stringsOf(trimmed())
	for i := range first {
		if unsafe.StringData(first[i]) != unsafe.StringData(second[i]) {
			t.Errorf("%q is in memory twice", first[i])
		}
	}
}

// kinds are the kinds of which thousands of objects may exist, by resource.
var kinds = map[string]string{
	"nstancemachinepools": "NstanceMachinePool", "nstanceshardgroups": "NstanceShardGroup", "nstancemachines": "NstanceMachine",
	"clusters": "Cluster", "machinepools": "MachinePool", "machines": "Machine", "machinedrainrules": "MachineDrainRule",
	"nodes": "Node", "volumeattachments": "VolumeAttachment",
}

// listOne is an API server with one object of each of kinds, and watches without events.
func listOne(w http.ResponseWriter, r *http.Request) {
	type object = map[string]any
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	version, kind := parts[1], kinds[parts[len(parts)-1]]
	if parts[0] == "apis" {
		version += "/" + parts[2]
	}
	w.Header().Set("Content-Type", "application/json")
	var reply object
	switch query := r.URL.Query(); {
	case query.Get("sendInitialEvents") != "":
		// The client lists instead.
		w.WriteHeader(http.StatusUnprocessableEntity)
		reply = object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": http.StatusUnprocessableEntity}
	case kind == "", query.Get("watch") != "":
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	default:
		entry := object{
			"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": object{"f:spec": object{"f:replicas": object{}}},
		}
		reply = object{
			"kind": kind + "List", "apiVersion": version, "metadata": object{"resourceVersion": "1"},
			"items": []any{object{"metadata": object{
				"namespace": "nstance-system", "name": "one", "resourceVersion": "1", "managedFields": []any{entry},
			}}},
		}
	}
	_ = json.NewEncoder(w).Encode(reply)
}

// managedFields are half of an object. The operator reads only the field manager of a
// MachinePool's replicas, by a live read.
func TestCachesHaveNoManagedFields(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(listOne))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"clusters": [{"name": "test", "cluster": {"server": "` + server.URL + `"}}],
		"contexts": [{"name": "test", "context": {"cluster": "test"}}], "current-context": "test"}`
	require.NoError(t, os.WriteFile(kubeconfig, []byte(config), 0o600))
	clients, err := newClients(&Options{Kubeconfig: kubeconfig})
	require.NoError(t, err)
	all, err := newInformers(clients, complete())
	require.NoError(t, err)
	informers := map[string]cache.SharedIndexInformer{
		"nstancemachinepools": all.Nstance.NstanceMachinePools().Informer(),
		"nstanceshardgroups":  all.Nstance.NstanceShardGroups().Informer(),
		"nstancemachines":     all.Nstance.NstanceMachines().Informer(),
		"clusters":            all.Clusters, "machinepools": all.MachinePools, "machines": all.Machines,
		"machinedrainrules": all.MachineDrainRules,
		"nodes":             all.Nodes, "volumeattachments": all.VolumeAttachments,
	}
	if len(informers) != len(kinds) {
		t.Fatalf("%d informers of %d kinds", len(informers), len(kinds))
	}
	all.run(t.Context())
	for resource, informer := range informers {
		if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
			t.Fatalf("the cache of %s did not sync", resource)
		}
		objects := informer.GetStore().List()
		if len(objects) != 1 {
			t.Fatalf("the cache of %s has %d objects, want 1", resource, len(objects))
		}
		object, err := meta.Accessor(objects[0])
		require.NoError(t, err)
		for _, entry := range object.GetManagedFields() {
			if resource != "machinepools" || entry.Manager != "" {
				t.Errorf("the cache of %s has the managed fields of %q", resource, entry.Manager)
			}
		}
	}
}
