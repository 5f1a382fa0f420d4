// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllertest

import (
	"reflect"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/generated/clientset/versioned/scheme"
)

// NewShardGroup returns the part of a pool on a shard.
func NewShardGroup(pool *v1beta1.NstanceMachinePool, shard v1beta1.Identifier) *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: v1beta1.ShardGroupName(string(pool.Spec.Group), string(shard)), UID: types.UID("uid-" + shard), Generation: 1,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, v1beta1.SchemeGroupVersion.WithKind(v1beta1.PoolKind))},
		},
		Spec: v1beta1.NstanceShardGroupSpec{Group: pool.Spec.Group, Shard: shard},
	}
}

// NewMachinePool returns a MachinePool that refers to a pool.
func NewMachinePool(name, pool string) *clusterv1.MachinePool {
	machinePool := &clusterv1.MachinePool{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"},
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       clusterv1.MachinePoolSpec{ClusterName: ClusterName},
	}
	machinePool.Spec.Template.Spec.ClusterName = ClusterName
	machinePool.Spec.Template.Spec.InfrastructureRef = reference(v1beta1.PoolKind, pool)
	return machinePool
}

// NewMachine returns a Machine that refers to the NstanceMachine with its name.
func NewMachine(name string) *clusterv1.Machine {
	return &clusterv1.Machine{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID("uid-of-machine-" + name)},
		Spec:       clusterv1.MachineSpec{ClusterName: ClusterName, InfrastructureRef: reference(v1beta1.MachineKind, name)},
	}
}

func reference(kind, name string) clusterv1.ContractVersionedObjectReference {
	return clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: kind, Name: name}
}

// NewCluster returns the Cluster.
func NewCluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: ClusterName}}
}

// Deleting marks object as being deleted, with a finalizer that remains.
func Deleting[T metav1.Object](object T) T {
	object.SetDeletionTimestamp(ptr.To(metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))))
	if len(object.GetFinalizers()) == 0 {
		object.SetFinalizers([]string{"example.com/wait"})
	}
	return object
}

// Paused annotates an object as paused.
func Paused[T metav1.Object](object T) T {
	object.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
	return object
}

// PausedCluster sets the field of a Cluster that pauses its objects.
func PausedCluster(cluster *clusterv1.Cluster) *clusterv1.Cluster {
	cluster.Spec.Paused = ptr.To(true)
	return cluster
}

// Get returns an object of our kinds from the API server, nil when there is none.
func Get[T runtime.Object](a *API, name string) (object T) {
	a.t.Helper()
	found, err := a.Tracker().Get(resourceOf[T](a), Namespace, name)
	if apierrors.IsNotFound(err) {
		return object
	}
	require.NoError(a.t, err)
	return found.(T)
}

// Change changes an object of our kinds on the API server, as another client does.
func Change[T runtime.Object](a *API, name string, change func(T)) {
	a.t.Helper()
	object := Get[T](a, name)
	change(object)
	require.NoError(a.t, a.Tracker().Update(resourceOf[T](a), object, Namespace))
}

// Remove removes an object of our kinds from the API server, whatever its finalizers.
func Remove[T runtime.Object](a *API, name string) {
	a.t.Helper()
	require.NoError(a.t, a.Tracker().Delete(resourceOf[T](a), Namespace, name))
}

// resourceOf returns the resource of the type T.
func resourceOf[T runtime.Object](a *API) schema.GroupVersionResource {
	a.t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(reflect.New(reflect.TypeFor[T]().Elem()).Interface().(runtime.Object))
	require.NoError(a.t, err)
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return resource
}
