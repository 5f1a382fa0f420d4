// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"errors"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	infrastructureclient "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
)

// Clients are the administrator's clients. Those of one kind are for the
// namespace of the installation.
type Clients struct {
	Kube kubernetes.Interface
	// NodeKube is the client of Nodes and Pods, which may be in another cluster.
	NodeKube kubernetes.Interface
	Dynamic  dynamic.Interface
	CAPI     *capi.Client
	Nstance  versioned.Interface
}

func newClients(config *rest.Config) (c Clients, err error) {
	kube, kubeErr := kubernetes.NewForConfig(config)
	dynamicClient, dynamicErr := dynamic.NewForConfig(config)
	capiClient, capiErr := capi.NewForConfig(config)
	nstance, nstanceErr := versioned.NewForConfig(config)
	return Clients{Kube: kube, NodeKube: kube, Dynamic: dynamicClient, CAPI: capiClient, Nstance: nstance},
		errors.Join(kubeErr, dynamicErr, capiErr, nstanceErr)
}

// Clusters is the client of Cluster API's Clusters.
func (c Clients) Clusters() *capi.ClusterClient { return c.CAPI.Clusters(installation.Namespace) }

// MachinePools is the client of Cluster API's MachinePools.
func (c Clients) MachinePools() *capi.MachinePoolClient {
	return c.CAPI.MachinePools(installation.Namespace)
}

// Machines is the client of Cluster API's Machines.
func (c Clients) Machines() *capi.MachineClient { return c.CAPI.Machines(installation.Namespace) }

// ClusterAPI is the client of any resource of Cluster API's core group.
func (c Clients) ClusterAPI(resource string) dynamic.ResourceInterface {
	return c.Dynamic.Resource(clusterv1.GroupVersion.WithResource(resource)).Namespace(installation.Namespace)
}

// NstanceClusters is the client of NstanceClusters.
func (c Clients) NstanceClusters() infrastructureclient.NstanceClusterInterface {
	return c.Nstance.InfrastructureV1beta1().NstanceClusters(installation.Namespace)
}

// NstanceMachinePools is the client of NstanceMachinePools.
func (c Clients) NstanceMachinePools() infrastructureclient.NstanceMachinePoolInterface {
	return c.Nstance.InfrastructureV1beta1().NstanceMachinePools(installation.Namespace)
}

// NstanceShardGroups is the client of NstanceShardGroups.
func (c Clients) NstanceShardGroups() infrastructureclient.NstanceShardGroupInterface {
	return c.Nstance.InfrastructureV1beta1().NstanceShardGroups(installation.Namespace)
}

// NstanceMachines is the client of NstanceMachines.
func (c Clients) NstanceMachines() infrastructureclient.NstanceMachineInterface {
	return c.Nstance.InfrastructureV1beta1().NstanceMachines(installation.Namespace)
}

// NstanceMachineTemplates is the client of NstanceMachineTemplates.
func (c Clients) NstanceMachineTemplates() infrastructureclient.NstanceMachineTemplateInterface {
	return c.Nstance.InfrastructureV1beta1().NstanceMachineTemplates(installation.Namespace)
}
