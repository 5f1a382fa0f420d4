// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/pkg/controller/apitest"
)

// apiServer is an API server in memory for clients of config. It supports creations, deletions
// and reads of single objects of any kind, and lists and watches of the metadata of Pods
// (podapi_test.go).
type apiServer struct {
	mu      sync.Mutex
	version int
	objects map[string]*unstructured.Unstructured
	// writes are the requested changes, for example "create machines name".
	writes []string
	// refused has the errors of writes that are not carried out, lost the errors of writes
	// that are.
	refused, lost map[string]*apierrors.StatusError
	// changed is called, in order, with every changed object, and whether it was deleted.
	changed func(object *unstructured.Unstructured, deleted bool)

	// podFailure is the error of lists of Pods, expired the error of a list that continues
	// another list.
	podFailure, expired *apierrors.StatusError
	// lists has the queries of the lists of Pods.
	lists    []string
	watchers map[*watcher]struct{}
	// oldWatches disables watches that begin with a list.
	oldWatches bool
}

func newAPIServer() *apiServer {
	return &apiServer{
		version: 100,
		objects: map[string]*unstructured.Unstructured{},
		refused: map[string]*apierrors.StatusError{}, lost: map[string]*apierrors.StatusError{},
		changed:  func(*unstructured.Unstructured, bool) {},
		watchers: map[*watcher]struct{}{},
	}
}

func (s *apiServer) config() *rest.Config {
	return &rest.Config{Host: "http://api.test", Transport: s, QPS: -1}
}

// apiRequest is a request with the parts of its path.
type apiRequest struct {
	*http.Request
	group                     schema.GroupResource
	namespace, resource, name string
}

func (r *apiRequest) key() string {
	return strings.Join([]string{r.resource, r.namespace, r.name}, "/")
}

func parse(r *http.Request) *apiRequest {
	parsed := &apiRequest{Request: r}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if parts[0] == "apis" {
		parsed.group.Group = parts[1]
		parts = parts[1:]
	}
	parts = parts[2:]
	if parts[0] == "namespaces" {
		parsed.namespace, parts = parts[1], parts[2:]
	}
	parsed.resource = parts[0]
	parsed.group.Resource = parts[0]
	if len(parts) > 1 {
		parsed.name = parts[1]
	}
	return parsed
}

// RoundTrip implements http.RoundTripper.
func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	req := parse(r)
	if req.resource == "pods" {
		return s.pods(req)
	}
	switch r.Method {
	case http.MethodPost:
		return s.write(req, "create", s.create)
	case http.MethodDelete:
		return s.write(req, "delete", s.delete)
	case http.MethodGet:
		if object, ok := s.objects[req.key()]; ok && req.name != "" {
			return apitest.Respond(r, object)
		}
		return apitest.Respond(r, apierrors.NewNotFound(req.group, req.name))
	default:
		return apitest.Respond(r, apierrors.NewMethodNotSupported(req.group, r.Method))
	}
}

func (s *apiServer) write(req *apiRequest, verb string, do func(*apiRequest, []byte) any) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	var sent metav1.PartialObjectMetadata
	if verb == "create" {
		if err := json.Unmarshal(body, &sent); err != nil {
			return nil, err
		}
		req.name = sent.Name
	}
	described := strings.Join([]string{verb, req.resource, req.name}, " ")
	s.writes = append(s.writes, described)
	if refused := s.refused[described]; refused != nil {
		return apitest.Respond(req.Request, refused)
	}
	answer := do(req, body)
	if lost := s.lost[described]; lost != nil {
		answer = lost
	}
	return apitest.Respond(req.Request, answer)
}

func (s *apiServer) create(req *apiRequest, body []byte) any {
	if _, taken := s.objects[req.key()]; taken {
		return apierrors.NewAlreadyExists(req.group, req.name)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(body); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	s.put(req.resource, object)
	return object
}

func (s *apiServer) delete(req *apiRequest, body []byte) any {
	object, ok := s.objects[req.key()]
	if !ok {
		return apierrors.NewNotFound(req.group, req.name)
	}
	var options metav1.DeleteOptions
	if err := json.Unmarshal(body, &options); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if conditions := options.Preconditions; conditions != nil && conditions.UID != nil && *conditions.UID != object.GetUID() {
		return apierrors.NewConflict(req.group, req.name, io.ErrUnexpectedEOF)
	}
	if len(object.GetFinalizers()) == 0 {
		s.drop(req.key())
		return nil
	}
	object = object.DeepCopy()
	now := metav1.Now()
	object.SetDeletionTimestamp(&now)
	s.put(req.resource, object)
	return object
}

// put stores an object with the next resource version.
func (s *apiServer) put(resource string, object *unstructured.Unstructured) {
	s.version++
	if object.GetUID() == "" {
		object.SetUID(types.UID("uid-" + strconv.Itoa(s.version)))
	}
	object.SetResourceVersion(strconv.Itoa(s.version))
	s.objects[strings.Join([]string{resource, object.GetNamespace(), object.GetName()}, "/")] = object
	s.changed(object.DeepCopy(), false)
}

func (s *apiServer) drop(key string) {
	object, ok := s.objects[key]
	if !ok {
		return
	}
	s.version++
	object = object.DeepCopy()
	object.SetResourceVersion(strconv.Itoa(s.version))
	delete(s.objects, key)
	s.changed(object, true)
}

// names returns the sorted names of all objects of a resource.
func (s *apiServer) names(resource string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for key, object := range s.objects {
		if strings.HasPrefix(key, resource+"/") {
			names = append(names, object.GetName())
		}
	}
	slices.Sort(names)
	return names
}
