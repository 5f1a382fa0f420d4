// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"nstance.dev/operator/e2e/inputs"
)

const crdKind = "CustomResourceDefinition"

// Render builds a kustomization.
func Render(dir string) ([]*unstructured.Unstructured, error) {
	if err := inputs.Check(inputs.Manifests); err != nil {
		return nil, err
	}
	built, err := build(dir)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, resource := range built.Resources() {
		// Through JSON, so that numbers have the types that clients expect.
		object := &unstructured.Unstructured{}
		data, err := resource.MarshalJSON()
		if err == nil {
			err = object.UnmarshalJSON(data)
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s of kustomization %s: %w", resource.CurId(), dir, err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

func build(dir string) (resmap.ResMap, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("building kustomization %s: %w", dir, err)
	}
	return built, nil
}

// Apply applies objects server side
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/) with a field manager.
// Namespaces and custom resource definitions are applied first; it waits for the latter, so that
// the objects may be of the kinds that they define.
func Apply(ctx context.Context, config *rest.Config, manager string, objects []*unstructured.Unstructured) error {
	a, err := newApplier(config, manager)
	if err != nil {
		return err
	}
	for _, first := range []bool{true, false} {
		for _, object := range objects {
			if isFoundation(object) != first {
				continue
			}
			if err := a.apply(ctx, object); err != nil {
				return err
			}
		}
		if first {
			a.mapper.Reset() // it may know more kinds now
		}
	}
	return nil
}

// Delete deletes objects, the last first. Objects that do not exist are no error.
func Delete(ctx context.Context, config *rest.Config, objects []*unstructured.Unstructured) error {
	a, err := newApplier(config, "")
	if err != nil {
		return err
	}
	for _, first := range []bool{false, true} {
		for _, object := range slices.Backward(objects) {
			if isFoundation(object) != first {
				continue
			}
			resource, err := a.resource(object)
			if meta.IsNoMatchError(err) {
				continue
			}
			if err == nil {
				err = resource.Delete(ctx, object.GetName(), metav1.DeleteOptions{})
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("deleting %s %s: %w", object.GetKind(), object.GetName(), err)
			}
		}
	}
	return nil
}

func isFoundation(object *unstructured.Unstructured) bool {
	return object.GetKind() == "Namespace" || object.GetKind() == crdKind
}

type applier struct {
	client  dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	manager string
}

func newApplier(config *rest.Config, manager string) (*applier, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))
	return &applier{client, mapper, manager}, nil
}

// resource returns the client of the kind of an object, in its namespace.
func (a *applier) resource(object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return a.client.Resource(mapping.Resource), nil
	}
	return a.client.Resource(mapping.Resource).Namespace(cmp.Or(object.GetNamespace(), metav1.NamespaceDefault)), nil
}

func (a *applier) apply(ctx context.Context, object *unstructured.Unstructured) error {
	name := fmt.Sprintf("%s %s", object.GetKind(), object.GetName())
	resource, err := a.resource(object)
	if err != nil {
		return fmt.Errorf("applying %s: %w", name, err)
	}
	options := metav1.ApplyOptions{FieldManager: a.manager, Force: true}
	if _, err := resource.Apply(ctx, object.GetName(), object, options); err != nil {
		return fmt.Errorf("applying %s: %w", name, err)
	}
	if object.GetKind() == crdKind {
		return waitEstablished(ctx, resource, object.GetName())
	}
	return nil
}

// waitEstablished waits until the API server serves the new kind.
func waitEstablished(ctx context.Context, crds dynamic.ResourceInterface, name string) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			crd, err := crds.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, ignoreUnavailable(err)
			}
			// An error means that the list is null: the API server has no conditions yet.
			conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
			for _, condition := range conditions {
				c, _ := condition.(map[string]any)
				if c["type"] == "Established" && c["status"] == "True" {
					return true, nil
				}
			}
			return false, nil
		})
	if err != nil {
		return fmt.Errorf("waiting until %s %s is served: %w", crdKind, name, err)
	}
	return nil
}

// ignoreUnavailable returns nil for errors that an overloaded API server returns for a while.
func ignoreUnavailable(err error) error {
	if apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}
