// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package apitest makes the fake of a generated clientset behave as an API server does.
package apitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
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
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// Clientset has the methods that every generated fake clientset has.
type Clientset interface {
	Tracker() clienttesting.ObjectTracker
	Actions() []clienttesting.Action
	ClearActions()
	PrependReactor(verb, resource string, reaction clienttesting.ReactionFunc)
	PrependWatchReactor(resource string, reaction clienttesting.WatchReactionFunc)
}

// Server adds to a fake clientset the behaviour of an API server that controllers rely on:
// uids and preconditions on them, generations, resource versions, finalizers, also for orphans, and
// separate field managers for status and spec.
type Server struct {
	// Sole is set, to the scheme of the objects, if no client writes a field that another client applies. An apply then
	// replaces all that the object has of it: that has the result of server-side apply, and takes a small part of the time.
	// The clientset needs no field management then.
	Sole *runtime.Scheme

	// Interrupt is called for each action; it may be nil. The action fails with the returned
	// error; if done is true, it has been carried out nevertheless.
	Interrupt func(action clienttesting.Action) (done bool, err error)

	t         testing.TB
	clientset Clientset
	version   atomic.Int64
	errors    map[string]error
}

// NewServer adds the behaviour to clientset, and adds objects, each with a generation and a
// uid.
func NewServer(t testing.TB, clientset Clientset, objects ...runtime.Object) *Server {
	s := &Server{t: t, clientset: clientset, errors: map[string]error{}}
	for _, object := range objects {
		s.Add(object)
	}
	clientset.PrependReactor("patch", "*", s.patch)
	clientset.PrependReactor("delete", "*", s.delete)
	clientset.PrependReactor("*", "*", s.fail)
	clientset.PrependWatchReactor("*", s.watch)
	return s
}

// Add adds an object that another client creates.
func (s *Server) Add(object runtime.Object) {
	s.t.Helper()
	accessor, err := meta.Accessor(object)
	require.NoError(s.t, err)
	s.stamp(accessor)
	accessor.SetGeneration(max(accessor.GetGeneration(), 1))
	require.NoError(s.t, s.clientset.Tracker().Add(object))
}

// Update replaces an object, as another client does.
func (s *Server) Update(resource schema.GroupVersionResource, object runtime.Object) {
	s.t.Helper()
	accessor, err := meta.Accessor(object)
	require.NoError(s.t, err)
	before, err := s.clientset.Tracker().Get(resource, accessor.GetNamespace(), accessor.GetName())
	require.NoError(s.t, err)
	_, err = s.settle(resource, before, object)
	require.NoError(s.t, err)
}

// Remove removes an object at once, whatever its finalizers.
func (s *Server) Remove(resource schema.GroupVersionResource, namespace, name string) {
	s.t.Helper()
	s.version.Add(1)
	require.NoError(s.t, s.clientset.Tracker().Delete(resource, namespace, name))
}

// Version returns the resource version of the last change.
func (s *Server) Version() string { return strconv.FormatInt(s.version.Load(), 10) }

// Fail makes an action fail with err from now on. The action is written as in Describe. A nil
// err ends that.
func (s *Server) Fail(action string, err error) { s.errors[action] = err }

// Writes returns the writes since the last call, in the format of Describe.
func (s *Server) Writes() []string {
	defer s.clientset.ClearActions()
	return Writes(s.clientset)
}

// Writes returns the writes among the actions of a clientset, in the format of Describe.
func Writes(server interface{ Actions() []clienttesting.Action }) []string {
	var writes []string
	for _, action := range server.Actions() {
		if verb := action.GetVerb(); verb != "get" && verb != "list" && verb != "watch" {
			writes = append(writes, Describe(action))
		}
	}
	return writes
}

// Describe returns verb, resource and name of an action. The verb of a server-side apply is
// "apply", although the client sends a patch.
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

// fail returns the error of Fail or Interrupt.
func (s *Server) fail(action clienttesting.Action) (bool, runtime.Object, error) {
	if err := s.errors[Describe(action)]; err != nil {
		return true, nil, err
	}
	if s.Interrupt == nil {
		return false, nil, nil
	}
	done, err := s.Interrupt(action)
	if err == nil || !done {
		return err != nil, nil, err
	}
	switch action.GetVerb() {
	case "patch":
		_, _, _ = s.patch(action)
	case "delete":
		if handled, _, _ := s.delete(action); !handled {
			_, _, _ = clienttesting.ObjectReaction(s.clientset.Tracker())(action)
		}
	}
	return true, nil, err
}

func (s *Server) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	patch := action.(clienttesting.PatchActionImpl)
	before, err := s.clientset.Tracker().Get(patch.GetResource(), patch.GetNamespace(), patch.GetName())
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
	react := clienttesting.ObjectReaction(s.clientset.Tracker())
	if patch.GetPatchType() == types.ApplyPatchType && s.Sole != nil {
		react = func(clienttesting.Action) (bool, runtime.Object, error) { return s.replaceApplied(patch, before) }
	}
	_, after, err := react(patch)
	if err != nil {
		return true, nil, err
	}
	after, err = s.settle(patch.GetResource(), before, after)
	return true, after, err
}

// replaceApplied returns an object with the labels, annotations, owners and spec of an apply, or with its status, and
// stores it if it is new.
func (s *Server) replaceApplied(patch clienttesting.PatchActionImpl, before runtime.Object) (bool, runtime.Object, error) {
	var kind metav1.TypeMeta
	if err := json.Unmarshal(patch.GetPatch(), &kind); err != nil {
		return true, nil, err
	}
	applied, err := s.Sole.New(kind.GroupVersionKind())
	if err != nil {
		return true, nil, err
	}
	if err := json.Unmarshal(patch.GetPatch(), applied); err != nil {
		return true, nil, err
	}
	if before == nil {
		return true, applied, s.clientset.Tracker().Create(patch.GetResource(), applied, patch.GetNamespace())
	}
	after := before.DeepCopyObject()
	from, to := reflect.ValueOf(applied).Elem(), reflect.ValueOf(after).Elem()
	if patch.GetSubresource() != "" {
		to.FieldByName("Status").Set(from.FieldByName("Status"))
		return true, after, nil
	}
	to.FieldByName("Spec").Set(from.FieldByName("Spec"))
	source, err := meta.Accessor(applied)
	if err != nil {
		return true, nil, err
	}
	target, err := meta.Accessor(after)
	if err != nil {
		return true, nil, err
	}
	target.SetLabels(source.GetLabels())
	target.SetAnnotations(source.GetAnnotations())
	target.SetOwnerReferences(source.GetOwnerReferences())
	return true, after, nil
}

// checkPreconditions compares the uid and the resource version in a patch
// with the object.
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
	return checkNamed(group, named.Metadata, accessor)
}

func checkNamed(group schema.GroupResource, named metav1.ObjectMeta, object metav1.Object) error {
	if named.UID != "" && named.UID != object.GetUID() {
		return apierrors.NewConflict(group, object.GetName(), fmt.Errorf("the object has uid %s", object.GetUID()))
	}
	if named.ResourceVersion != "" && named.ResourceVersion != object.GetResourceVersion() {
		return apierrors.NewConflict(group, object.GetName(), fmt.Errorf("the object has resource version %s", object.GetResourceVersion()))
	}
	return nil
}

// settle sets the fields of a changed object that the API server sets: uid, resource version
// and generation. It deletes an object that is being deleted and has no finalizer left.
func (s *Server) settle(resource schema.GroupVersionResource, before, after runtime.Object) (runtime.Object, error) {
	if before != nil && equality.Semantic.DeepEqual(withoutManagers(before), withoutManagers(after)) {
		return after, nil
	}
	accessor, err := meta.Accessor(after)
	if err != nil {
		return nil, err
	}
	if accessor.GetDeletionTimestamp() != nil && len(accessor.GetFinalizers()) == 0 {
		s.version.Add(1)
		return after, s.clientset.Tracker().Delete(resource, accessor.GetNamespace(), accessor.GetName())
	}
	s.stamp(accessor)
	if before == nil || !equality.Semantic.DeepEqual(s.spec(before), s.spec(after)) {
		accessor.SetGeneration(accessor.GetGeneration() + 1)
	}
	return after, s.clientset.Tracker().Update(resource, after, accessor.GetNamespace())
}

// watch omits events without a new resource version: the tracker stores a patched object
// first, and settle then stores it again with its version.
func (s *Server) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	var options metav1.ListOptions
	if watching, ok := action.(clienttesting.WatchActionImpl); ok {
		options = watching.ListOptions
	}
	events, err := s.clientset.Tracker().Watch(action.GetResource(), action.GetNamespace(), options)
	if err != nil {
		return true, nil, err
	}
	versions := map[types.UID]string{}
	return true, watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
		object, err := meta.Accessor(event.Object)
		if err != nil {
			return event, true
		}
		before, known := versions[object.GetUID()]
		versions[object.GetUID()] = object.GetResourceVersion()
		return event, !known || event.Type != watch.Modified || before != object.GetResourceVersion()
	}), nil
}

func (s *Server) delete(action clienttesting.Action) (bool, runtime.Object, error) {
	remove := action.(clienttesting.DeleteActionImpl)
	object, err := s.clientset.Tracker().Get(remove.GetResource(), remove.GetNamespace(), remove.GetName())
	if err != nil {
		return true, nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return true, nil, err
	}
	if conditions := remove.DeleteOptions.Preconditions; conditions != nil {
		named := metav1.ObjectMeta{UID: ptr.Deref(conditions.UID, ""), ResourceVersion: ptr.Deref(conditions.ResourceVersion, "")}
		if err := checkNamed(remove.GetResource().GroupResource(), named, accessor); err != nil {
			return true, nil, err
		}
	}
	// Dependents are made orphans before the object is deleted
	// (https://kubernetes.io/docs/concepts/architecture/garbage-collection/#orphaned-dependents).
	if policy := remove.DeleteOptions.PropagationPolicy; policy != nil && *policy == metav1.DeletePropagationOrphan {
		accessor.SetFinalizers(append(accessor.GetFinalizers(), metav1.FinalizerOrphanDependents))
	}
	if len(accessor.GetFinalizers()) == 0 {
		s.version.Add(1)
		return false, nil, nil
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	accessor.SetDeletionTimestamp(&now)
	accessor.SetGeneration(accessor.GetGeneration() + 1)
	s.stamp(accessor)
	return true, nil, s.clientset.Tracker().Update(remove.GetResource(), object, remove.GetNamespace())
}

// stamp sets the next resource version, and a uid if it is empty.
func (s *Server) stamp(object metav1.Object) {
	version := strconv.FormatInt(s.version.Add(1), 10)
	if object.GetUID() == "" {
		object.SetUID(types.UID("uid-" + version))
	}
	object.SetResourceVersion(version)
}

// spec returns the spec of an object.
func (s *Server) spec(object runtime.Object) any {
	if typed := reflect.Indirect(reflect.ValueOf(object)); typed.Kind() == reflect.Struct && typed.FieldByName("Spec").IsValid() {
		return typed.FieldByName("Spec").Interface()
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	require.NoError(s.t, err)
	return content["spec"]
}

func withoutManagers(object runtime.Object) runtime.Object {
	object = object.DeepCopyObject()
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object
}

// Respond returns an API server's response: an object, the status of an error, or success for
// nil. An error without a status is returned as an error of the connection.
func Respond(request *http.Request, answer any) (*http.Response, error) {
	code := http.StatusOK
	if err, ok := answer.(error); ok {
		failed, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok {
			return nil, err
		}
		code, answer = int(failed.Status().Code), failed.Status()
	} else if answer == nil {
		answer = metav1.Status{Status: metav1.StatusSuccess}
	}
	if status, ok := answer.(metav1.Status); ok {
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer = status
	}
	body, err := json.Marshal(answer)
	return &http.Response{
		StatusCode: code,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(bytes.NewReader(body)),
		Request:    request,
	}, err
}
