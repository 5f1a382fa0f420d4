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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
)

const mergePatch = types.MergePatchType

// nodeGroup makes for one MachinePool the requests that the cluster autoscaler
// makes for a node group, in the same order and with no more rights.
type nodeGroup struct {
	// name is that of the MachinePool.
	name string
}

func (nodeGroup) pools() dynamic.ResourceInterface { return scaledAPI("machinepools") }

func scaledAPI(resource string) dynamic.ResourceInterface {
	return env.autoscaler.dynamic.Resource(clusterv1.GroupVersion.WithResource(resource)).Namespace(nstance.Namespace)
}

// instances are the provider ids that the MachinePool lists.
func (g nodeGroup) instances(ctx context.Context) ([]string, error) {
	machinePool, err := g.pools().Get(ctx, g.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	ids, _, err := unstructured.NestedStringSlice(machinePool.Object, "spec", "providerIDList")
	return ids, err
}

// limits are the least and the most instances, as the annotations say.
func (g nodeGroup) limits(ctx context.Context) (least, most int64, err error) {
	machinePool, err := g.pools().Get(ctx, g.name, metav1.GetOptions{})
	if err != nil {
		return 0, 0, err
	}
	annotations := machinePool.GetAnnotations()
	least, leastErr := strconv.ParseInt(annotations[clusterv1.AutoscalerMinSizeAnnotation], 10, 32)
	most, mostErr := strconv.ParseInt(annotations[clusterv1.AutoscalerMaxSizeAnnotation], 10, 32)
	return least, most, errors.Join(leastErr, mostErr)
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

// increaseSize asks for so many more instances.
func (g nodeGroup) increaseSize(ctx context.Context, delta int64) error {
	size, err := g.targetSize(ctx)
	if err != nil {
		return err
	}
	_, most, err := g.limits(ctx)
	if err != nil {
		return err
	}
	if delta <= 0 || size+delta > most {
		return fmt.Errorf("growing %s from %d by %d: not between 1 and the most of %d", g.name, size, delta, most)
	}
	return g.setSize(ctx, size+delta)
}

// decreaseTargetSize takes back so many instances that were asked for and have not
// come. Nobody is chosen.
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
		return fmt.Errorf("taking back %d of %d of %s: there are %d", delta, size, g.name, len(listed))
	}
	return g.setSize(ctx, size-delta)
}

// deleteNodes has the Nodes go, one after the other and without waiting. Whose
// Machine is being deleted already is passed over.
func (g nodeGroup) deleteNodes(ctx context.Context, nodes ...*corev1.Node) error {
	size, err := g.targetSize(ctx)
	if err != nil {
		return err
	}
	least, _, err := g.limits(ctx)
	if err != nil {
		return err
	}
	if size-int64(len(nodes)) < least {
		return fmt.Errorf("shrinking %s from %d by %d: less than the least of %d", g.name, size, len(nodes), least)
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

// annotate marks a Machine as the one to be deleted, or with "" as one like any
// other, by an update of the whole object.
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

// errUnknownMachine is what a scale-down ends with when a Node has no Machine.
var errUnknownMachine = errors.New("unknown machine for node")

// machineOf finds the Machine of a Node by its provider id, or else by the name
// that Cluster API notes on the Node.
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

// lastSegment is what of a provider id tells instances apart for the autoscaler.
func lastSegment(providerID string) string {
	return providerID[strings.LastIndex(providerID, "/")+1:]
}

// nodes are those of the instances that the MachinePool lists and that have
// registered, by name.
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
