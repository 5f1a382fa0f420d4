// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

func (g *Gatherer) pools(ctx context.Context) objects.Read[v1beta1.NstanceMachinePool] {
	return list(ctx, "nstancemachinepools", metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) ([]v1beta1.NstanceMachinePool, string, error) {
			l, err := g.nstance.InfrastructureV1beta1().NstanceMachinePools(g.namespace).List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

func (g *Gatherer) shardGroups(ctx context.Context, selector string) objects.Read[v1beta1.NstanceShardGroup] {
	return list(ctx, "nstanceshardgroups", metav1.ListOptions{LabelSelector: selector},
		func(ctx context.Context, o metav1.ListOptions) ([]v1beta1.NstanceShardGroup, string, error) {
			l, err := g.nstance.InfrastructureV1beta1().NstanceShardGroups(g.namespace).List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

func (g *Gatherer) nstanceMachines(ctx context.Context, selector string) objects.Read[v1beta1.NstanceMachine] {
	return list(ctx, "nstancemachines", metav1.ListOptions{LabelSelector: selector},
		func(ctx context.Context, o metav1.ListOptions) ([]v1beta1.NstanceMachine, string, error) {
			l, err := g.nstance.InfrastructureV1beta1().NstanceMachines(g.namespace).List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

func (g *Gatherer) machinePools(ctx context.Context) objects.Read[clusterv1.MachinePool] {
	return list(ctx, "machinepools", metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) ([]clusterv1.MachinePool, string, error) {
			l, err := g.capi.MachinePools(g.namespace).List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

func (g *Gatherer) machines(ctx context.Context, selector string) objects.Read[clusterv1.Machine] {
	return list(ctx, "machines", metav1.ListOptions{LabelSelector: selector},
		func(ctx context.Context, o metav1.ListOptions) ([]clusterv1.Machine, string, error) {
			l, err := g.capi.Machines(g.namespace).List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

// clusters are read to learn whether the Nodes are in another cluster.
func (g *Gatherer) clusters(ctx context.Context) objects.Read[v1beta1.NstanceCluster] {
	return list(ctx, "nstanceclusters", metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) ([]v1beta1.NstanceCluster, string, error) {
			l, err := g.nstance.InfrastructureV1beta1().NstanceClusters(g.namespace).List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

func (g *Gatherer) allNodes(ctx context.Context) objects.Read[corev1.Node] {
	return list(ctx, "nodes", metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) ([]corev1.Node, string, error) {
			l, err := g.nodes.CoreV1().Nodes().List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

func (g *Gatherer) podsOn(ctx context.Context, node string) objects.Read[corev1.Pod] {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	return list(ctx, "pods", metav1.ListOptions{FieldSelector: selector},
		func(ctx context.Context, o metav1.ListOptions) ([]corev1.Pod, string, error) {
			l, err := g.nodes.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

func (g *Gatherer) budgetsIn(ctx context.Context, namespace string) objects.Read[policyv1.PodDisruptionBudget] {
	return list(ctx, "poddisruptionbudgets", metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) ([]policyv1.PodDisruptionBudget, string, error) {
			l, err := g.nodes.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

func (g *Gatherer) attachments(ctx context.Context) objects.Read[storagev1.VolumeAttachment] {
	return list(ctx, "volumeattachments", metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) ([]storagev1.VolumeAttachment, string, error) {
			l, err := g.nodes.StorageV1().VolumeAttachments().List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

// events lists events in a namespace, by a field selector.
func events(ctx context.Context, client kubernetes.Interface, namespace, selector string) objects.Read[eventsv1.Event] {
	return list(ctx, "events", metav1.ListOptions{FieldSelector: selector},
		func(ctx context.Context, o metav1.ListOptions) ([]eventsv1.Event, string, error) {
			l, err := client.EventsV1().Events(namespace).List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}
