// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package plugintest

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// Server is an API server over HTTP, whose objects can be read, and patched as a dry run. It returns
// pages of at most PageSize objects.
type Server struct {
	URL string
	// Forbidden are resources that may not be read.
	Forbidden []string
	// Writable are resources that may be patched. Nothing is stored.
	Writable []string
	// Missing are resources that the server does not have.
	Missing []string
	// Expire has the second page of a list of this resource fail once.
	Expire   string
	PageSize int

	mu       sync.Mutex
	objects  map[string][]object
	requests []Request
}

// Request is a request that the server has received.
type Request struct {
	Method, Namespace, Resource, Name             string
	LabelSelector, FieldSelector, Limit, Continue string
	DryRun, FieldManager                          string
	// Patch is the body of a patch.
	Patch string
}

// object is an object and its encoding.
type object struct {
	meta metav1.Object
	json json.RawMessage
}

var kinds = map[string]string{
	"nstancemachinepools": v1beta1.PoolKind, "nstanceshardgroups": "NstanceShardGroup", "nstancemachines": v1beta1.MachineKind,
	"nstanceclusters": "NstanceCluster", "machinepools": "MachinePool", "machines": "Machine", "nodes": "Node", "pods": "Pod",
	"machinedrainrules": "MachineDrainRule", "clusters": "Cluster", "namespaces": "Namespace",
	"poddisruptionbudgets": "PodDisruptionBudget", "volumeattachments": "VolumeAttachment", "events": "Event",
}

// NewServer starts a server with the objects of a snapshot, until the end of the test.
func NewServer(t *testing.T, s *objects.Snapshot) *Server {
	server := &Server{PageSize: 2, objects: map[string][]object{}}
	add(t, server, "nstancemachinepools", s.Pools.Items)
	add(t, server, "nstanceshardgroups", s.ShardGroups.Items)
	add(t, server, "nstancemachines", s.NstanceMachines.Items)
	add(t, server, "machinepools", s.MachinePools.Items)
	add(t, server, "machines", s.Machines.Items)
	add(t, server, "nodes", s.Nodes.Items)
	add(t, server, "volumeattachments", s.Attachments.Items)
	add(t, server, "events", s.NodeEvents.Items)
	add(t, server, "machinedrainrules", s.DrainRules.Items)
	add(t, server, "clusters", s.CAPIClusters.Items)
	for _, read := range s.PodNamespaces {
		add(t, server, "namespaces", read.Items)
	}
	for _, read := range s.Pods {
		add(t, server, "pods", read.Items)
	}
	for _, read := range s.Budgets {
		add(t, server, "poddisruptionbudgets", read.Items)
	}
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	server.URL = listener.URL
	return server
}

// AddClusters adds NstanceClusters.
func (s *Server) AddClusters(t *testing.T, clusters ...v1beta1.NstanceCluster) {
	add(t, s, "nstanceclusters", clusters)
}

func add[T any](t *testing.T, s *Server, resource string, items []T) {
	t.Helper()
	for i := range items {
		data, err := json.Marshal(&items[i])
		if err != nil {
			t.Fatal(err)
		}
		meta, ok := any(&items[i]).(metav1.Object)
		if !ok {
			t.Fatalf("%T is no object", &items[i])
		}
		s.objects[resource] = append(s.objects[resource], object{meta, data})
	}
}

// Requests returns the requests for a resource, or with "" all.
func (s *Server) Requests(resource string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.requests), func(r Request) bool { return resource != "" && r.Resource != resource })
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, version := parse(r)
	if request.Method == http.MethodPatch {
		body, _ := io.ReadAll(r.Body)
		request.Patch = string(body)
	}
	s.mu.Lock()
	s.requests = append(s.requests, request)
	expired := request.Continue != "" && s.Expire == request.Resource
	if expired {
		s.Expire = ""
	}
	s.mu.Unlock()
	kind := kinds[request.Resource]
	switch {
	case slices.Contains(s.Forbidden, request.Resource):
		fail(w, http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	case slices.Contains(s.Missing, request.Resource):
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	case expired:
		fail(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	matching := s.matching(request)
	patched := request.Method == http.MethodPatch && (request.DryRun == metav1.DryRunAll || slices.Contains(s.Writable, request.Resource))
	if request.Method != http.MethodGet && !patched {
		fail(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if request.Name != "" {
		if len(matching) == 0 {
			fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		reply := map[string]any{}
		_ = json.Unmarshal(matching[0].json, &reply)
		reply["apiVersion"], reply["kind"] = version, kind
		applied := struct{ Spec map[string]any }{}
		if patched && json.Unmarshal([]byte(request.Patch), &applied) == nil {
			spec, _ := reply["spec"].(map[string]any)
			maps.Copy(spec, applied.Spec)
		}
		_ = json.NewEncoder(w).Encode(reply)
		return
	}
	begin, _ := strconv.Atoi(request.Continue)
	end, next := len(matching), ""
	if request.Limit != "" && end-begin > s.PageSize {
		end = begin + s.PageSize
		next = strconv.Itoa(end)
	}
	items := []json.RawMessage{}
	for _, found := range matching[begin:end] {
		items = append(items, found.json)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": version, "kind": kind + "List", "metadata": map[string]any{"continue": next}, "items": items,
	})
}

// parse returns what a request reads, and the version of the API.
func parse(r *http.Request) (request Request, version string) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if parts[0] == "api" {
		version, parts = parts[1], parts[2:]
	} else {
		version, parts = parts[1]+"/"+parts[2], parts[3:]
	}
	query := r.URL.Query()
	request = Request{Method: r.Method, LabelSelector: query.Get("labelSelector"), FieldSelector: query.Get("fieldSelector"),
		Limit: query.Get("limit"), Continue: query.Get("continue"), DryRun: query.Get("dryRun"), FieldManager: query.Get("fieldManager")}
	if parts[0] == "namespaces" && len(parts) > 2 {
		request.Namespace, parts = parts[1], parts[2:]
	}
	request.Resource = parts[0]
	if len(parts) > 1 {
		request.Name = parts[1]
	}
	return request, version
}

// matching returns the objects that a request selects. The only supported field selector is
// spec.nodeName; other field selectors select everything.
func (s *Server) matching(request Request) []object {
	selector, err := labels.Parse(request.LabelSelector)
	if err != nil {
		return nil
	}
	node, ofNode := strings.CutPrefix(request.FieldSelector, "spec.nodeName=")
	var found []object
	for _, candidate := range s.objects[request.Resource] {
		inNamespace := request.Namespace == "" || candidate.meta.GetNamespace() == request.Namespace || request.Resource == "events"
		named := request.Name == "" || candidate.meta.GetName() == request.Name
		pod, isPod := candidate.meta.(*corev1.Pod)
		onNode := !ofNode || isPod && pod.Spec.NodeName == node
		if inNamespace && named && onNode && selector.Matches(labels.Set(candidate.meta.GetLabels())) {
			found = append(found, candidate)
		}
	}
	return found
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason),
	})
}
