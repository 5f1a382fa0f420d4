// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"nstance.dev/operator/pkg/controller/apitest"
)

// pods responds to lists and watches of the metadata of Pods.
func (s *apiServer) pods(req *apiRequest) (*http.Response, error) {
	query := req.URL.Query()
	selector, err := fields.ParseSelector(query.Get("fieldSelector"))
	switch {
	case err != nil:
		return apitest.Respond(req.Request, apierrors.NewBadRequest(err.Error()))
	case req.Method != http.MethodGet || req.name != "":
		return nil, errors.New("Pods are to be listed and watched only")
	case query.Get("watch") == "":
		return apitest.Respond(req.Request, s.listPods(req, selector))
	case query.Get("sendInitialEvents") != "" && s.oldWatches:
		return apitest.Respond(req.Request, apierrors.NewBadRequest("sendInitialEvents is forbidden"))
	}
	w := newWatcher(selector)
	if query.Get("sendInitialEvents") == "true" {
		for _, pod := range s.matching(req.namespace, selector) {
			w.send(watch.Added, metadataOf(pod))
		}
		w.send(watch.Bookmark, bookmark(s.version, true))
	}
	s.watchers[w] = struct{}{}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: w, Request: req.Request}, nil
}

func (s *apiServer) listPods(req *apiRequest, selector fields.Selector) any {
	s.lists = append(s.lists, req.URL.RawQuery)
	if s.podFailure != nil {
		return s.podFailure
	}
	if expired := s.expired; expired != nil && req.URL.Query().Has("continue") {
		s.expired = nil
		return expired
	}
	list := &metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)},
	}
	found := s.matching(req.namespace, selector)
	from, _ := strconv.Atoi(req.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(req.URL.Query().Get("limit"))
	if limit > 0 && from+limit < len(found) {
		found = found[:from+limit]
		list.Continue = strconv.Itoa(from + limit)
	}
	for _, pod := range found[from:] {
		list.Items = append(list.Items, *metadataOf(pod))
	}
	return list
}

func (s *apiServer) matching(namespace string, selector fields.Selector) []*unstructured.Unstructured {
	var keys []string
	for key, object := range s.objects {
		if strings.HasPrefix(key, "pods/") && (namespace == "" || object.GetNamespace() == namespace) && selector.Matches(fieldsOf(object)) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	pods := make([]*unstructured.Unstructured, len(keys))
	for i, key := range keys {
		pods[i] = s.objects[key]
	}
	return pods
}

// putPod creates or changes a Pod.
func (s *apiServer) putPod(pod *corev1.Pod) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	after := &unstructured.Unstructured{Object: content}
	before := s.objects["pods/"+pod.Namespace+"/"+pod.Name]
	s.put("pods", after)
	for w := range s.watchers {
		was, is := before != nil && w.selector.Matches(fieldsOf(before)), w.selector.Matches(fieldsOf(after))
		switch {
		case is && !was:
			w.send(watch.Added, metadataOf(after))
		case is:
			w.send(watch.Modified, metadataOf(after))
		case was:
			w.send(watch.Deleted, metadataOf(after))
		}
	}
}

// dropPod deletes a Pod.
func (s *apiServer) dropPod(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := "pods/" + pod.Namespace + "/" + pod.Name
	before := s.objects[key]
	s.drop(key)
	for w := range s.watchers {
		if w.selector.Matches(fieldsOf(before)) {
			w.send(watch.Deleted, metadataOf(before))
		}
	}
}

// sendBookmark sends a bookmark to the watchers.
func (s *apiServer) sendBookmark(version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		w.send(watch.Bookmark, bookmark(version, false))
	}
}

// sendError closes all watches with an error.
func (s *apiServer) sendError(failed *apierrors.StatusError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := failed.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	for w := range s.watchers {
		w.send(watch.Error, &status)
		w.end()
	}
	clear(s.watchers)
}

func fieldsOf(pod *unstructured.Unstructured) fields.Set {
	phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
	node, _, _ := unstructured.NestedString(pod.Object, "spec", "nodeName")
	return fields.Set{"metadata.name": pod.GetName(), "status.phase": phase, "spec.nodeName": node}
}

func metadataOf(pod *unstructured.Unstructured) *metav1.PartialObjectMetadata {
	metadata := &metav1.PartialObjectMetadata{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pod.Object, metadata); err != nil {
		panic(err)
	}
	metadata.TypeMeta = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}
	return metadata
}

func bookmark(version int, listed bool) *metav1.PartialObjectMetadata {
	mark := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version)},
	}
	if listed {
		mark.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	return mark
}

// watcher is the body of the response to a watch.
type watcher struct {
	*io.PipeReader
	selector fields.Selector
	events   chan []byte
	closed   chan struct{}
	once     sync.Once
}

func newWatcher(selector fields.Selector) *watcher {
	reader, writer := io.Pipe()
	w := &watcher{PipeReader: reader, selector: selector, events: make(chan []byte, 1<<16), closed: make(chan struct{})}
	go func() {
		defer writer.Close()
		for {
			select {
			case <-w.closed:
				return
			case event, more := <-w.events:
				if !more {
					return
				}
				if _, err := writer.Write(event); err != nil {
					return
				}
			}
		}
	}()
	return w
}

// Close closes the watch by the client.
func (w *watcher) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.PipeReader.Close()
}

func (w *watcher) send(kind watch.EventType, object any) {
	raw, err := json.Marshal(object)
	if err == nil {
		raw, err = json.Marshal(metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}})
	}
	if err != nil {
		panic(err)
	}
	w.events <- raw
}

// end closes the watch by the server.
func (w *watcher) end() { close(w.events) }
