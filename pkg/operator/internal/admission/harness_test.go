// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	namespace   = "nstance-system"
	clusterName = "prod--default"
)

// world is the content of the caches of a validator.
type world struct {
	pools        []*v1beta1.NstanceMachinePool
	machinePools []*clusterv1.MachinePool
	clusters     []*clusterv1.Cluster
	shards       []*corev1.ConfigMap
	groups       reportedGroups
}

// reportedGroups are the groups that shards have reported, by shard and key.
type reportedGroups map[string]shard.Group

func (r reportedGroups) Get(shardID, key string) (shard.Group, bool) {
	group, ok := r[shardID+"/"+key]
	return group, ok
}

// newValidator returns a validator with synced caches of w.
func newValidator(t testing.TB, w world) *Validator {
	t.Helper()
	v := newUnsynced(t, w)
	v.synced = nil
	return v
}

// newUnsynced returns a validator with caches of w that are never synced.
func newUnsynced(t testing.TB, w world) *Validator {
	t.Helper()
	ours := controllertest.NewAPI(t).NewInformers().NstanceMachinePools()
	client := controllertest.NewCAPI(t).Client
	machinePools := capi.NewMachinePoolInformer(client, namespace, 0)
	clusters := capi.NewClusterInformer(client, namespace, 0)
	shards := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0).Core().V1().ConfigMaps().Informer()
	v, err := NewValidator(Config{Namespace: namespace, ClusterName: clusterName, ShardsConfigMap: "nstance-shards"},
		ours, machinePools, clusters, shards, w.groups)
	require.NoError(t, err)
	fill(t, ours.Informer(), w.pools)
	fill(t, machinePools, w.machinePools)
	fill(t, clusters, w.clusters)
	fill(t, shards, w.shards)
	return v
}

func fill[T any](t testing.TB, informer cache.SharedIndexInformer, objects []T) {
	t.Helper()
	for _, object := range objects {
		require.NoError(t, informer.GetStore().Add(object))
	}
}

func newPool(name, group string, shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: v1beta1.Identifier(group), Shards: shards},
	}
}

func static(pool *v1beta1.NstanceMachinePool) *v1beta1.NstanceMachinePool {
	pool.Status.IsStatic = ptr.To(true)
	return pool
}

func newMachinePool(name, kind, pool string) *clusterv1.MachinePool {
	machinePool := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	machinePool.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: v1beta1.GroupName, Kind: kind, Name: pool,
	}
	return machinePool
}

func newCluster(name string) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
}

func newShards(ids ...string) *corev1.ConfigMap {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "nstance-shards", Namespace: namespace}, Data: map[string]string{}}
	for _, id := range ids {
		object.Data[id] = "127.0.0.1:8993"
	}
	return object
}

// moved marks an object that clusterctl has copied to another cluster.
func moved[T metav1.Object](object T) T {
	object.SetAnnotations(map[string]string{"clusterctl.cluster.x-k8s.io/delete-for-move": ""})
	return object
}

// confirmed marks an object whose deletion an administrator has confirmed by its name.
func confirmed[T metav1.Object](object T, name string) T {
	object.SetAnnotations(map[string]string{v1beta1.AnnotationConfirmDeletion: name})
	return object
}

func create(t testing.TB, pool *v1beta1.NstanceMachinePool) *admissionv1.AdmissionRequest {
	return newRequest(t, admissionv1.Create, pools, nil, pool)
}

func update(t testing.TB, before, after *v1beta1.NstanceMachinePool) *admissionv1.AdmissionRequest {
	return newRequest(t, admissionv1.Update, pools, before, after)
}

func remove(t testing.TB, object runtime.Object) *admissionv1.AdmissionRequest {
	resource := pools
	if _, ok := object.(*clusterv1.MachinePool); ok {
		resource = machinePools
	}
	return newRequest(t, admissionv1.Delete, resource, object, nil)
}

func newRequest(t testing.TB, operation admissionv1.Operation, resource metav1.GroupVersionResource, before, after runtime.Object) *admissionv1.AdmissionRequest {
	t.Helper()
	request := &admissionv1.AdmissionRequest{
		UID: "uid", Operation: operation, Resource: resource, Namespace: namespace,
		UserInfo: authenticationv1.UserInfo{Username: "user"},
	}
	for object, into := range map[runtime.Object]*runtime.RawExtension{before: &request.OldObject, after: &request.Object} {
		if object == nil {
			continue
		}
		raw, err := json.Marshal(object)
		require.NoError(t, err)
		into.Raw = raw
		request.Name = object.(metav1.Object).GetName()
	}
	return request
}
