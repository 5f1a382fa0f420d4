// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllertest

import (
	"fmt"
	"io"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller/apitest"
	"nstance.dev/operator/pkg/generated/clientset/versioned/scheme"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// NewShardGroup returns the NstanceShardGroup of a pool on a shard.
func NewShardGroup(pool *v1beta1.NstanceMachinePool, shard v1beta1.Identifier) *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: v1beta1.ShardGroupName(string(pool.Spec.Group), string(shard)), UID: types.UID("uid-" + shard), Generation: 1,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, v1beta1.SchemeGroupVersion.WithKind(v1beta1.PoolKind))},
		},
		Spec: v1beta1.NstanceShardGroupSpec{Group: pool.Spec.Group, Shard: shard},
	}
}

// NewMachinePool returns a MachinePool whose infrastructure is a pool.
func NewMachinePool(name, pool string) *clusterv1.MachinePool {
	machinePool := &clusterv1.MachinePool{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"},
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       clusterv1.MachinePoolSpec{ClusterName: ClusterName},
	}
	machinePool.Spec.Template.Spec.ClusterName = ClusterName
	machinePool.Spec.Template.Spec.InfrastructureRef = reference(v1beta1.PoolKind, pool)
	return machinePool
}

// NewMachine returns a Machine whose infrastructure is the NstanceMachine with the same name.
func NewMachine(name string) *clusterv1.Machine {
	return &clusterv1.Machine{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID("uid-of-machine-" + name)},
		Spec:       clusterv1.MachineSpec{ClusterName: ClusterName, InfrastructureRef: reference(v1beta1.MachineKind, name)},
	}
}

func reference(kind, name string) clusterv1.ContractVersionedObjectReference {
	return clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: kind, Name: name}
}

// NewCluster returns the Cluster that the harness's objects belong to.
func NewCluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: ClusterName}}
}

// Deleting marks object as being deleted, with a finalizer that blocks the deletion.
func Deleting[T metav1.Object](object T) T {
	object.SetDeletionTimestamp(ptr.To(metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))))
	if len(object.GetFinalizers()) == 0 {
		object.SetFinalizers([]string{"example.com/wait"})
	}
	return object
}

// Paused annotates an object as paused.
func Paused[T metav1.Object](object T) T {
	object.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
	return object
}

// PausedCluster sets the field of a Cluster that pauses its objects.
func PausedCluster(cluster *clusterv1.Cluster) *clusterv1.Cluster {
	cluster.Spec.Paused = ptr.To(true)
	return cluster
}

// Get returns an object of our kinds from the API server, nil if it does not exist.
func Get[T runtime.Object](a *API, name string) (object T) {
	a.t.Helper()
	found, err := a.Tracker().Get(resourceOf[T](a), Namespace, name)
	if apierrors.IsNotFound(err) {
		return object
	}
	require.NoError(a.t, err)
	return found.(T)
}

// Change changes an object of our kinds on the API server, as another client does. The field
// manager is the operator's, unless ChangeAs names another.
func Change[T runtime.Object](a *API, name string, change func(T)) {
	a.t.Helper()
	ChangeAs(a, controllers.FieldManager, name, change)
}

// ChangeAs is Change with a field manager.
func ChangeAs[T runtime.Object](a *API, manager, name string, change func(T)) {
	a.t.Helper()
	object := Get[T](a, name)
	change(object)
	require.NoError(a.t, a.Tracker().Update(resourceOf[T](a), object, Namespace, metav1.UpdateOptions{FieldManager: manager}))
}

// Remove removes an object of our kinds from the API server, whatever its finalizers.
func Remove[T runtime.Object](a *API, name string) {
	a.t.Helper()
	require.NoError(a.t, a.Tracker().Delete(resourceOf[T](a), Namespace, name))
}

// resourceOf returns the resource of the type T.
func resourceOf[T runtime.Object](a *API) schema.GroupVersionResource {
	a.t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(reflect.New(reflect.TypeFor[T]().Elem()).Interface().(runtime.Object))
	require.NoError(a.t, err)
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return resource
}

// CAPI is an API server for Cluster API's kinds, which records requests.
type CAPI struct {
	Client *capi.Client
	// Created are the created objects in order.
	Created []*unstructured.Unstructured
	// Taken are names that are in use already, as resource/name.
	Taken []string
	// Changed are the deletions and patches, each as method, path below the namespace, and
	// body.
	Changed []string
	// Refused is the error of deletions and patches, nil if they succeed.
	Refused *apierrors.StatusError
	// shown are objects that tests have put into a cache too.
	shown []*unstructured.Unstructured
}

// NewCAPI returns an empty CAPI.
func NewCAPI(t testing.TB) *CAPI {
	c := &CAPI{}
	client, err := capi.NewForConfig(&rest.Config{Host: "http://capi.test", Transport: c})
	require.NoError(t, err)
	c.Client = client
	return c
}

// Has adds objects, whose kinds must be set, for get and list requests.
func (c *CAPI) Has(t testing.TB, objects ...runtime.Object) {
	t.Helper()
	for _, object := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		require.NoError(t, err)
		c.Created = append(c.Created, &unstructured.Unstructured{Object: fields})
	}
}

// Show makes get requests return an object that is in a cache. Objects of Has and created
// objects precede it.
func (c *CAPI) Show(t testing.TB, object runtime.Object) {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	require.NoError(t, err)
	shown := &unstructured.Unstructured{Object: fields}
	same := func(other *unstructured.Unstructured) bool {
		return other.GetKind() == shown.GetKind() && other.GetName() == shown.GetName()
	}
	if at := slices.IndexFunc(c.Created, same); at >= 0 {
		c.Created[at] = shown
		return
	}
	c.shown = append(slices.DeleteFunc(c.shown, same), shown)
}

// RoundTrip serves requests that get, create, delete or patch one object, or list the objects
// of a kind. Get and list return only created objects.
func (c *CAPI) RoundTrip(request *http.Request) (*http.Response, error) {
	resource := path.Base(request.URL.Path)
	group := schema.GroupResource{Group: "cluster.x-k8s.io", Resource: resource}
	switch request.Method {
	case http.MethodDelete, http.MethodPatch:
		return c.change(request)
	case http.MethodGet:
		return c.get(request)
	case http.MethodPost:
	default:
		return apitest.Respond(request, apierrors.NewMethodNotSupported(group, request.Method))
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(body); err != nil {
		return nil, err
	}
	name := resource + "/" + object.GetName()
	if slices.Contains(c.Taken, name) {
		return apitest.Respond(request, apierrors.NewAlreadyExists(group, object.GetName()))
	}
	c.Taken = append(c.Taken, name)
	object.SetUID(types.UID("uid-of-" + object.GetName()))
	object.SetResourceVersion(strconv.Itoa(1000 + len(c.Taken)))
	c.Created = append(c.Created, object)
	return apitest.Respond(request, object)
}

func (c *CAPI) get(request *http.Request) (*http.Response, error) {
	name := path.Base(request.URL.Path)
	if kind, ok := kinds[name]; ok {
		return c.list(request, kind)
	}
	for _, object := range slices.Concat(c.Created, c.shown) {
		if object.GetName() == name {
			return apitest.Respond(request, object)
		}
	}
	return apitest.Respond(request, apierrors.NewNotFound(schema.GroupResource{Group: "cluster.x-k8s.io"}, name))
}

// kinds maps the resources that can be listed to their kinds.
var kinds = map[string]string{"machines": "Machine", "machinepools": "MachinePool"}

func (c *CAPI) list(request *http.Request, kind string) (*http.Response, error) {
	selector, err := labels.Parse(request.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind + "List", "metadata": map[string]any{"resourceVersion": "1"},
	}}
	for _, object := range c.Created {
		if object.GetKind() == kind && selector.Matches(labels.Set(object.GetLabels())) {
			list.Items = append(list.Items, *object)
		}
	}
	return apitest.Respond(request, list)
}

func (c *CAPI) change(request *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	_, below, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/apis/cluster.x-k8s.io/v1beta2/namespaces/"), "/")
	c.Changed = append(c.Changed, strings.TrimSpace(fmt.Sprintf("%s %s %s", request.Method, below, body)))
	if c.Refused != nil {
		return apitest.Respond(request, c.Refused)
	}
	return apitest.Respond(request, nil)
}
