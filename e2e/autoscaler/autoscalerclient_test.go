// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/installation"
)

// nodeGroup makes the requests of the cluster autoscaler for a node group, in the same order and
// with the same rights
// (https://github.com/kubernetes/autoscaler/tree/master/cluster-autoscaler/cloudprovider/clusterapi).
// The node group is a MachinePool.
type nodeGroup struct {
	// name is the name of the MachinePool.
	name string
}

func (nodeGroup) pools() dynamic.ResourceInterface { return scaledAPI("machinepools") }

func scaledAPI(resource string) dynamic.ResourceInterface {
	return env.autoscaler.dynamic.Resource(clusterv1.GroupVersion.WithResource(resource)).Namespace(installation.Namespace)
}

// instances returns the provider ids that the MachinePool lists.
func (g nodeGroup) instances(ctx context.Context) ([]string, error) {
	machinePool, err := g.pools().Get(ctx, g.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	ids, _, err := unstructured.NestedStringSlice(machinePool.Object, "spec", "providerIDList")
	return ids, err
}

// limits returns the size limits in the annotations.
func (g nodeGroup) limits(ctx context.Context) (lowest, highest int64, err error) {
	machinePool, err := g.pools().Get(ctx, g.name, metav1.GetOptions{})
	if err != nil {
		return 0, 0, err
	}
	annotations := machinePool.GetAnnotations()
	lowest, lowestErr := strconv.ParseInt(annotations[clusterv1.AutoscalerMinSizeAnnotation], 10, 32)
	highest, highestErr := strconv.ParseInt(annotations[clusterv1.AutoscalerMaxSizeAnnotation], 10, 32)
	return lowest, highest, errors.Join(lowestErr, highestErr)
}

// targetSize reads the replicas from the scale subresource.
func (g nodeGroup) targetSize(ctx context.Context) (int64, error) {
	scale, err := g.pools().Get(ctx, g.name, metav1.GetOptions{}, "scale")
	if err != nil {
		return 0, err
	}
	replicas, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas")
	return replicas, err
}

func (g nodeGroup) setSize(ctx context.Context, replicas int64) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	_, err := g.pools().Patch(ctx, g.name, mergePatch, patch, metav1.PatchOptions{}, "scale")
	return err
}

// increaseSize requests so many more instances.
func (g nodeGroup) increaseSize(ctx context.Context, delta int64) error {
	size, err := g.targetSize(ctx)
	if err != nil {
		return err
	}
	_, highest, err := g.limits(ctx)
	if err != nil {
		return err
	}
	if delta <= 0 || size+delta > highest {
		return fmt.Errorf("increase size %d of %s by %d: not between 1 and the limit of %d", size, g.name, delta, highest)
	}
	return g.setSize(ctx, size+delta)
}

// decreaseTargetSize cancels the request for so many instances that were not created yet. It
// selects no instance for deletion.
func (g nodeGroup) decreaseTargetSize(ctx context.Context, delta int64) error {
	size, err := g.targetSize(ctx)
	if err != nil {
		return err
	}
	listed, err := g.instances(ctx)
	if err != nil {
		return err
	}
	if size-delta < int64(len(listed)) {
		return fmt.Errorf("decrease size %d of %s by %d: %d instances exist", size, g.name, delta, len(listed))
	}
	return g.setSize(ctx, size-delta)
}

// deleteNodes deletes Nodes, one after the other and without waiting. It skips a Node
// whose Machine is being deleted already.
func (g nodeGroup) deleteNodes(ctx context.Context, nodes ...*corev1.Node) error {
	size, err := g.targetSize(ctx)
	if err != nil {
		return err
	}
	lowest, _, err := g.limits(ctx)
	if err != nil {
		return err
	}
	if size-int64(len(nodes)) < lowest {
		return fmt.Errorf("decrease size %d of %s by %d: less than the limit of %d", size, g.name, len(nodes), lowest)
	}
	for _, node := range nodes {
		machine, err := machineOf(ctx, node)
		if err != nil {
			return err
		}
		if machine.GetDeletionTimestamp() != nil {
			continue
		}
		if err := annotate(ctx, machine.GetName(), time.Now().String()); err != nil {
			return err
		}
		if err := g.setSize(ctx, size-1); err != nil {
			return errors.Join(err, annotate(ctx, machine.GetName(), ""))
		}
		size--
	}
	return nil
}

// annotate marks a Machine for deletion, or with "" unmarks it, by an update of the
// whole object.
func annotate(ctx context.Context, name, value string) error {
	machines := scaledAPI("machines")
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		machine, err := machines.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		annotations := machine.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[clusterv1.DeleteMachineAnnotation] = value
		if value == "" {
			delete(annotations, clusterv1.DeleteMachineAnnotation)
		}
		machine.SetAnnotations(annotations)
		_, err = machines.Update(ctx, machine, metav1.UpdateOptions{})
		return err
	})
}

// errUnknownMachine is the error of a scale-down when a Node has no Machine.
var errUnknownMachine = errors.New("unknown machine for node")

// machineOf finds the Machine of a Node by its provider id, or else by the name in
// Cluster API's annotation of the Node.
func machineOf(ctx context.Context, node *corev1.Node) (*unstructured.Unstructured, error) {
	list, err := scaledAPI("machines").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	find := func(match func(*unstructured.Unstructured) bool) (*unstructured.Unstructured, error) {
		var found []*unstructured.Unstructured
		for i := range list.Items {
			if match(&list.Items[i]) {
				found = append(found, &list.Items[i])
			}
		}
		switch len(found) {
		case 0:
			return nil, fmt.Errorf("%w %s", errUnknownMachine, node.Name)
		case 1:
			return found[0], nil
		default:
			return nil, fmt.Errorf("%d Machines for Node %s", len(found), node.Name)
		}
	}
	machine, err := find(func(m *unstructured.Unstructured) bool {
		id, _, _ := unstructured.NestedString(m.Object, "spec", "providerID")
		return id != "" && lastSegment(id) == lastSegment(node.Spec.ProviderID)
	})
	if errors.Is(err, errUnknownMachine) {
		machine, err = find(func(m *unstructured.Unstructured) bool {
			return m.GetName() == node.Annotations[clusterv1.MachineAnnotation]
		})
	}
	return machine, err
}

// lastSegment returns the part of a provider id by which the autoscaler identifies
// instances.
func lastSegment(providerID string) string {
	return providerID[strings.LastIndex(providerID, "/")+1:]
}

// nodes returns the registered Nodes of the instances that the MachinePool lists,
// sorted by name.
func (g nodeGroup) nodes(ctx context.Context) ([]*corev1.Node, error) {
	instances, err := g.instances(ctx)
	if err != nil {
		return nil, err
	}
	list, err := env.autoscaler.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var nodes []*corev1.Node
	for i := range list.Items {
		if slices.Contains(instances, list.Items[i].Spec.ProviderID) {
			nodes = append(nodes, &list.Items[i])
		}
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}
