// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package controllertest gives the tests of controllers an API server in memory,
// and caches that show of it what a test wants them to.
package controllertest

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/generated/clientset/versioned/fake"
)

// API is the generated clientset in memory with what controllers rely on of a
// real API server: uids and preconditions on them, generations, resource
// versions, finalizers, and status and spec as fields of different managers.
type API struct {
	*fake.Clientset

	t       testing.TB
	version atomic.Int64
	errors  map[string]error
}

// NewAPI makes an API server that has objects, with a generation and a uid each.
func NewAPI(t testing.TB, objects ...runtime.Object) *API {
	a := &API{t: t, Clientset: fake.NewClientset(), errors: map[string]error{}}
	for _, object := range objects {
		accessor, err := meta.Accessor(object)
		require.NoError(t, err)
		a.stamp(accessor)
		accessor.SetGeneration(max(accessor.GetGeneration(), 1))
		require.NoError(t, a.Tracker().Add(object))
	}
	a.PrependReactor("patch", "*", a.patch)
	a.PrependReactor("delete", "*", a.delete)
	a.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		err := a.errors[Describe(action)]
		return err != nil, nil, err
	})
	return a
}

// Fail has err answer an action from now on; the action is named as by Writes.
// A nil err removes it.
func (a *API) Fail(action string, err error) { a.errors[action] = err }

// Writes returns the writes since the last call, each as Describe has it.
func (a *API) Writes() []string {
	defer a.ClearActions()
	return Writes(&a.Fake)
}

// Writes returns the writes among the actions of an API server, each as Describe has it.
func Writes(server *clienttesting.Fake) []string {
	var writes []string
	for _, action := range server.Actions() {
		if verb := action.GetVerb(); verb != "get" && verb != "list" && verb != "watch" {
			writes = append(writes, Describe(action))
		}
	}
	return writes
}

// Describe is an action as verb, resource and name; an apply is not called patch.
func Describe(action clienttesting.Action) string {
	verb, resource, name := action.GetVerb(), action.GetResource().Resource, ""
	if action.GetSubresource() != "" {
		resource += "/" + action.GetSubresource()
	}
	if patch, ok := action.(clienttesting.PatchAction); ok && patch.GetPatchType() == types.ApplyPatchType {
		verb = "apply"
	}
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		name = action.Name
		if object, err := meta.Accessor(action.Object); err == nil && name == "" {
			name = object.GetName()
		}
	case interface{ GetName() string }:
		name = action.GetName()
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", verb, resource, name))
}

func (a *API) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	patch := action.(clienttesting.PatchActionImpl)
	before, err := a.Tracker().Get(patch.GetResource(), patch.GetNamespace(), patch.GetName())
	if err != nil && !apierrors.IsNotFound(err) {
		return true, nil, err
	}
	if patch.GetPatchType() != types.JSONPatchType {
		if err := checkPreconditions(patch, before); err != nil {
			return true, nil, err
		}
	}
	if patch.GetPatchType() == types.ApplyPatchType && patch.GetSubresource() != "" {
		patch.PatchOptions.FieldManager += "/" + patch.GetSubresource()
	}
	_, after, err := clienttesting.ObjectReaction(a.Tracker())(patch)
	if err != nil {
		return true, nil, err
	}
	after, err = a.settle(patch.GetResource(), before, after)
	return true, after, err
}

// checkPreconditions compares the uid and the resource version that a patch names
// with those of the object.
func checkPreconditions(patch clienttesting.PatchActionImpl, before runtime.Object) error {
	group := patch.GetResource().GroupResource()
	var named struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(patch.GetPatch(), &named); err != nil {
		return err
	}
	if before == nil {
		if patch.GetSubresource() != "" || patch.GetPatchType() != types.ApplyPatchType {
			return apierrors.NewNotFound(group, patch.GetName())
		}
		if named.Metadata.UID != "" {
			return apierrors.NewConflict(group, patch.GetName(), fmt.Errorf("there is no object of uid %s", named.Metadata.UID))
		}
		return nil
	}
	accessor, err := meta.Accessor(before)
	if err != nil {
		return err
	}
	if uid := named.Metadata.UID; uid != "" && uid != accessor.GetUID() {
		return apierrors.NewConflict(group, patch.GetName(), fmt.Errorf("the object has uid %s", accessor.GetUID()))
	}
	if version := named.Metadata.ResourceVersion; version != "" && version != accessor.GetResourceVersion() {
		return apierrors.NewConflict(group, patch.GetName(), fmt.Errorf("the object has resource version %s", accessor.GetResourceVersion()))
	}
	return nil
}

// settle gives a changed object what the API server would give it.
func (a *API) settle(resource schema.GroupVersionResource, before, after runtime.Object) (runtime.Object, error) {
	if before != nil && equality.Semantic.DeepEqual(withoutManagers(before), withoutManagers(after)) {
		return after, nil
	}
	accessor, err := meta.Accessor(after)
	if err != nil {
		return nil, err
	}
	if accessor.GetDeletionTimestamp() != nil && len(accessor.GetFinalizers()) == 0 {
		return after, a.Tracker().Delete(resource, accessor.GetNamespace(), accessor.GetName())
	}
	a.stamp(accessor)
	if before == nil || !equality.Semantic.DeepEqual(a.spec(before), a.spec(after)) {
		accessor.SetGeneration(accessor.GetGeneration() + 1)
	}
	return after, a.Tracker().Update(resource, after, accessor.GetNamespace())
}

func (a *API) delete(action clienttesting.Action) (bool, runtime.Object, error) {
	remove := action.(clienttesting.DeleteActionImpl)
	object, err := a.Tracker().Get(remove.GetResource(), remove.GetNamespace(), remove.GetName())
	if err != nil {
		return true, nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return true, nil, err
	}
	if conditions := remove.DeleteOptions.Preconditions; conditions != nil && conditions.UID != nil && *conditions.UID != accessor.GetUID() {
		return true, nil, apierrors.NewConflict(remove.GetResource().GroupResource(), remove.GetName(), fmt.Errorf("the object has uid %s", accessor.GetUID()))
	}
	if len(accessor.GetFinalizers()) == 0 {
		return false, nil, nil
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	accessor.SetDeletionTimestamp(&now)
	accessor.SetGeneration(accessor.GetGeneration() + 1)
	a.stamp(accessor)
	return true, nil, a.Tracker().Update(remove.GetResource(), object, remove.GetNamespace())
}

// stamp gives an object a uid, if it has none, and the next resource version.
func (a *API) stamp(object metav1.Object) {
	version := strconv.FormatInt(a.version.Add(1), 10)
	if object.GetUID() == "" {
		object.SetUID(types.UID("uid-" + version))
	}
	object.SetResourceVersion(version)
}

func (a *API) spec(object runtime.Object) any {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	require.NoError(a.t, err)
	return content["spec"]
}

func withoutManagers(object runtime.Object) runtime.Object {
	object = object.DeepCopyObject()
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object
}
