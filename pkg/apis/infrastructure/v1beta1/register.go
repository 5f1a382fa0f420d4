// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of the infrastructure providers of Cluster API.
const GroupName = "infrastructure.cluster.x-k8s.io"

// SchemeGroupVersion is the group and version of every kind in this package.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1beta1"}

// PoolKind is the kind that MachinePools refer to and that owns shard groups.
const PoolKind = "NstanceMachinePool"

// MachineKind is the kind that Machines refer to.
const MachineKind = "NstanceMachine"

// Resource adds the API group to a resource name.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

var (
	// SchemeBuilder collects the functions that add this package to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&NstanceCluster{}, &NstanceClusterList{},
		&NstanceMachinePool{}, &NstanceMachinePoolList{},
		&NstanceShardGroup{}, &NstanceShardGroupList{},
		&NstanceMachine{}, &NstanceMachineList{},
		&NstanceMachineTemplate{}, &NstanceMachineTemplateList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
