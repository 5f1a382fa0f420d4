// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Wanted are the objects of a file that a plan is made for.
type Wanted struct {
	pool, machinePool *unstructured.Unstructured
}

// ReadWanted reads an NstanceMachinePool, a MachinePool, or both, from a file of YAML or JSON. Other
// objects are ignored.
func ReadWanted(r io.Reader) (Wanted, error) {
	var wanted Wanted
	decoder := yaml.NewYAMLOrJSONDecoder(r, 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Wanted{}, fmt.Errorf("read the objects: %w", err)
		}
		at := &wanted.pool
		switch kind := object.GroupVersionKind(); {
		case kind.Group == v1beta1.GroupName && kind.Kind == v1beta1.PoolKind:
		case kind.Group == clusterv1.GroupVersion.Group && kind.Kind == "MachinePool":
			at = &wanted.machinePool
		default:
			continue
		}
		if *at != nil {
			return Wanted{}, fmt.Errorf("read the objects: there are two of kind %s, and a plan is for one pool", object.GetKind())
		}
		*at = object
	}
	if wanted.pool == nil && wanted.machinePool == nil {
		return Wanted{}, fmt.Errorf("read the objects: there is neither an %s nor a MachinePool", v1beta1.PoolKind)
	}
	return wanted, nil
}

// Pool returns the name of the pool that the objects describe.
func (w Wanted) Pool() string {
	if w.pool != nil {
		return w.pool.GetName()
	}
	name, _, _ := unstructured.NestedString(w.machinePool.Object, "spec", "template", "spec", "infrastructureRef", "name")
	return name
}

// DryRun returns the objects as they would be after a server-side apply by a field manager, nil for
// an object that the file does not have. The API server validates the objects, and stores nothing.
// Fields of other managers are overwritten: the conflict is for the apply to report.
func (g *Gatherer) DryRun(ctx context.Context, wanted Wanted, manager string) (pool *v1beta1.NstanceMachinePool, replicas *int32, err error) {
	force := true
	options := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, Force: &force, FieldManager: manager}
	if object := wanted.pool; object != nil {
		pool, err = g.nstance.InfrastructureV1beta1().NstanceMachinePools(g.namespace).
			Patch(ctx, object.GetName(), types.ApplyPatchType, encode(object), options)
		if err != nil {
			return nil, nil, fmt.Errorf("apply pool %s as a dry run: %w", object.GetName(), err)
		}
	}
	if object := wanted.machinePool; object != nil {
		machinePool, err := g.capi.MachinePools(g.namespace).Patch(ctx, object.GetName(), types.ApplyPatchType, encode(object), options)
		if err != nil {
			return nil, nil, fmt.Errorf("apply MachinePool %s as a dry run: %w", object.GetName(), err)
		}
		replicas = machinePool.Spec.Replicas
	}
	return pool, replicas, nil
}

// encode returns an object that was decoded from JSON as JSON.
func encode(object *unstructured.Unstructured) []byte {
	data, _ := object.MarshalJSON()
	return bytes.TrimSpace(data)
}
