// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// pageSize is the number of objects of one page, as in kubectl.
const pageSize = 500

// pageFunc returns a page and the token of the next one.
type pageFunc[T any] func(context.Context, metav1.ListOptions) (items []T, next string, err error)

// list reads all pages of a list. what names the objects, in the plural. If a page cannot be
// read, all items are unknown: an incomplete list looks as if objects did not exist.
func list[T any](ctx context.Context, what string, options metav1.ListOptions, page pageFunc[T]) objects.Read[T] {
	options.Limit = pageSize
	var read objects.Read[T]
	for {
		items, next, err := page(ctx, options)
		switch {
		case apierrors.IsResourceExpired(err) && options.Continue != "":
			// The API server no longer has the version of the list, so it is read again, without
			// pages (https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks).
			read.Items, options.Continue, options.Limit = nil, "", 0
			continue
		case err != nil:
			return objects.Unread[T](whyUnknown("list", what, err))
		}
		read.Items = append(read.Items, items...)
		if next == "" {
			return read
		}
		options.Continue = next
	}
}

// whyUnknown returns why objects are not known after an error of the API server.
func whyUnknown(verb, what string, err error) string {
	if apierrors.IsForbidden(err) {
		return fmt.Sprintf("forbidden to %s %s", verb, what)
	}
	return fmt.Sprintf("cannot %s %s: %v", verb, what, err)
}

// readOf returns the result of a get, without an item if the object was not found.
func readOf[T any](what string, object *T, err error) objects.Read[T] {
	switch {
	case apierrors.IsNotFound(err):
		return objects.Read[T]{}
	case err != nil:
		return objects.Unread[T](whyUnknown("get", what, err))
	}
	return objects.Read[T]{Items: []T{*object}}
}

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

// drainRules reads the MachineDrainRules. Without the kind, which an older Cluster API lacks, there are
// none.
func (g *Gatherer) drainRules(ctx context.Context) objects.Read[clusterv1.MachineDrainRule] {
	return list(ctx, "machinedrainrules", metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) ([]clusterv1.MachineDrainRule, string, error) {
			l, err := g.capi.MachineDrainRules(g.namespace).List(ctx, o)
			switch {
			case apierrors.IsNotFound(err):
				return nil, "", nil
			case err != nil:
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

func (g *Gatherer) capiClusters(ctx context.Context) objects.Read[clusterv1.Cluster] {
	return list(ctx, "clusters", metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) ([]clusterv1.Cluster, string, error) {
			l, err := g.capi.Clusters(g.namespace).List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return l.Items, l.Continue, nil
		})
}

// podNamespace reads a namespace of Pods.
func (g *Gatherer) podNamespace(ctx context.Context, name string) objects.Read[corev1.Namespace] {
	namespace, err := g.nodes.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	return readOf("namespaces", namespace, err)
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

// inOtherCluster is why Nodes and Pods are not known if they are in a workload cluster whose
// kubeconfig was not given. The Nodes of the management cluster are not the Nodes of the pools.
const inOtherCluster = "the Nodes are in another cluster; name its kubeconfig with --workload-kubeconfig"

// readNodes reads Nodes, unless an NstanceCluster reports that they are in another cluster. If
// NstanceClusters cannot be read, the Nodes of this cluster are read.
func (g *Gatherer) readNodes(ctx context.Context, s *objects.Snapshot, read func(context.Context) objects.Read[corev1.Node]) {
	if !g.separate {
		s.Clusters = g.clusters(ctx)
	}
	if hasWorkloadCluster(s.Clusters.Items) {
		s.Nodes = objects.Unread[corev1.Node](inOtherCluster)
		return
	}
	s.Nodes = read(ctx)
}

// hasWorkloadCluster reports whether the Nodes of an NstanceCluster are in another cluster:
// only then it has the condition WorkloadClusterReachable.
func hasWorkloadCluster(clusters []v1beta1.NstanceCluster) bool {
	for _, cluster := range clusters {
		if meta.FindStatusCondition(cluster.Status.Conditions, v1beta1.ConditionWorkloadClusterReachable) != nil {
			return true
		}
	}
	return false
}

// node returns a function that reads the Node with this name. A user may give a provider id instead:
// it has slashes, so that it names no Node, and client-go would return an error.
func (g *Gatherer) node(name string) func(context.Context) objects.Read[corev1.Node] {
	return func(ctx context.Context) objects.Read[corev1.Node] {
		if len(content.IsPathSegmentName(name)) > 0 {
			return objects.Read[corev1.Node]{}
		}
		node, err := g.nodes.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return readOf("nodes", node, err)
	}
}
