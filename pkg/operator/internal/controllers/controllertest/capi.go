// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllertest

import (
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller/apitest"
)

// CAPI takes the objects that are created with its Client.
type CAPI struct {
	Client *capi.Client
	// Created are the objects in the order in which they were taken.
	Created []*unstructured.Unstructured
	// Taken are names that are in use already, as resource/name.
	Taken []string
	// Changed are the deletions and patches, each as method, path below the
	// namespace, and what was sent.
	Changed []string
	// Refused is what deletions and patches fail with, nil for nothing.
	Refused *apierrors.StatusError
}

// NewCAPI makes a CAPI without objects.
func NewCAPI(t testing.TB) *CAPI {
	c := &CAPI{}
	client, err := capi.NewForConfig(&rest.Config{Host: "http://capi.test", Transport: c})
	require.NoError(t, err)
	c.Client = client
	return c
}

// Has makes objects, whose kinds are set, that can be got and listed.
func (c *CAPI) Has(t testing.TB, objects ...runtime.Object) {
	t.Helper()
	for _, object := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		require.NoError(t, err)
		c.Created = append(c.Created, &unstructured.Unstructured{Object: fields})
	}
}

// RoundTrip answers requests that get, create, delete or patch one object or list
// those of a kind, and no others. What can be got and listed is what was created.
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
	for _, object := range c.Created {
		if object.GetName() == name {
			return apitest.Respond(request, object)
		}
	}
	return apitest.Respond(request, apierrors.NewNotFound(schema.GroupResource{Group: "cluster.x-k8s.io"}, name))
}

// kinds are those that can be listed, by resource.
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
