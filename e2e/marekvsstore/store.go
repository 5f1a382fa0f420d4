// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package marekvsstore acts as the kubelet of Pods of marekvs, and as their processes, whose
// metrics are set by hand.
package marekvsstore

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// Store acts as the kubelet of every Pod of the store in a namespace, and as their processes:
// each Pod has an address of this machine, at which its metrics are served.
type Store struct {
	kube      kubernetes.Interface
	namespace string
	port      int

	mu sync.Mutex
	// pods are those that run, by address.
	pods map[string]*process
	// addresses are given to Pods in their order.
	addresses int
	// rates are the commands per second of each cluster, and under its partitions with too
	// few owners.
	rates map[string]float64
	under map[string]int
	// failing are the images that do not start.
	failing map[string]bool
	// mostTerminating is how many Pods were deleted at the same time, by cluster.
	mostTerminating map[string]int
}

type process struct {
	pod, cluster string
	uid          types.UID
	commands     float64
	started      time.Time
	last         time.Time
	// stops is when a Pod that is being deleted ends.
	stops time.Time
}

// NodeName is the Node of all Pods.
const NodeName = "marekvs"

// heartbeat keeps the Node ready.
func (s *Store) heartbeat(ctx context.Context) {
	body, _ := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
		"type": corev1.NodeReady, "status": "True", "lastHeartbeatTime": metav1.Now(), "lastTransitionTime": metav1.Now(),
	}}}})
	_, _ = s.kube.CoreV1().Nodes().Patch(ctx, NodeName, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
}

// drainTime is how long a Pod takes to end.
const drainTime = time.Second

// Start starts a store for the Pods of a namespace, with a Node that is theirs. The metrics are
// served at a port, 0 for a free one. It ends with ctx.
func Start(ctx context.Context, kube kubernetes.Interface, namespace string, port int) (*Store, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		return nil, err
	}
	s := &Store{
		kube: kube, namespace: namespace, port: listener.Addr().(*net.TCPAddr).Port,
		pods: map[string]*process{}, rates: map[string]float64{}, under: map[string]int{},
		failing: map[string]bool{}, mostTerminating: map[string]int{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", s.serve)
	mux.HandleFunc("POST "+clustersPath+"{cluster}", s.control)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName, Labels: map[string]string{v1alpha1.LabelName: v1alpha1.ApplicationName}}}
	if _, err := kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create the Node of all Pods: %w", err)
	}
	go wait.UntilWithContext(ctx, s.heartbeat, 10*time.Second)
	go wait.UntilWithContext(ctx, s.sync, 100*time.Millisecond)
	return s, nil
}

// serve writes the metrics of the Pod whose address was called.
func (s *Store) serve(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[host]
	if p == nil {
		http.Error(w, "silent", http.StatusServiceUnavailable)
		return
	}
	members := 0
	for _, other := range s.pods {
		if other.cluster == p.cluster && other.stops.IsZero() {
			members++
		}
	}
	now := time.Now()
	p.commands += s.rates[p.cluster] / float64(max(members, 1)) * now.Sub(p.last).Seconds()
	p.last = now
	rounds := int(now.Sub(p.started) / (300 * time.Millisecond))
	_, _ = fmt.Fprintf(w, "marekvs_commands_total{cmd=\"get\"} %d\nmarekvs_cluster_members %d\nmarekvs_ae_rounds_total %d\n"+
		"marekvs_cluster_underreplicated_partitions %d\n", int64(p.commands), members, rounds, s.under[p.cluster])
}

// Port returns the port of the metrics.
func (s *Store) Port() int { return s.port }

// SetRate sets the commands per second of a cluster.
func (s *Store) SetRate(cluster string, rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rates[cluster] = rate
}

// SetUnderreplicated sets the number of partitions of a cluster with too few owners.
func (s *Store) SetUnderreplicated(cluster string, partitions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.under[cluster] = partitions
}

// Fail makes an image one that does not start.
func (s *Store) Fail(image string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing[image] = true
}

// MostTerminating returns how many Pods of a cluster were deleted at the same time.
func (s *Store) MostTerminating(cluster string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mostTerminating[cluster]
}

// sync starts and ends Pods.
func (s *Store) sync(ctx context.Context) {
	list, err := s.kube.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelName + "=" + v1alpha1.ApplicationName})
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	terminating, exists := map[string]int{}, map[types.UID]bool{}
	for i := range list.Items {
		pod := &list.Items[i]
		exists[pod.UID] = true
		if pod.DeletionTimestamp != nil {
			terminating[pod.Labels[v1alpha1.LabelApp]]++
			s.end(ctx, pod)
			continue
		}
		s.start(ctx, pod)
	}
	for cluster, count := range terminating {
		s.mostTerminating[cluster] = max(s.mostTerminating[cluster], count)
	}
	for address, p := range s.pods {
		if !exists[p.uid] {
			delete(s.pods, address)
		}
	}
}

func (s *Store) start(ctx context.Context, pod *corev1.Pod) {
	image := pod.Spec.Containers[0].Image
	if pod.Status.PodIP != "" {
		return
	}
	if pod.Spec.NodeName == "" {
		// A Pod without a Node would be deleted at once.
		_ = s.kube.CoreV1().Pods(s.namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: NodeName},
		}, metav1.CreateOptions{})
		return
	}
	status := map[string]any{"phase": corev1.PodPending, "containerStatuses": []any{map[string]any{
		"name": pod.Spec.Containers[0].Name, "image": image, "imageID": "", "ready": false, "restartCount": 0,
		"state": map[string]any{"waiting": map[string]any{"reason": "ErrImagePull"}},
	}}}
	var started *process
	if !s.failing[image] {
		s.addresses++
		address := fmt.Sprintf("127.77.%d.%d", s.addresses/200, 1+s.addresses%200)
		now := time.Now()
		started = &process{pod: pod.Name, cluster: pod.Labels[v1alpha1.LabelApp], uid: pod.UID, started: now, last: now}
		s.pods[address] = started
		status = map[string]any{
			"phase": corev1.PodRunning, "podIP": address, "podIPs": []any{map[string]any{"ip": address}},
			"containerStatuses": []any{map[string]any{
				"name": pod.Spec.Containers[0].Name, "image": image, "imageID": "", "ready": true, "restartCount": 0,
				"state": map[string]any{"running": map[string]any{"startedAt": metav1.Now()}},
			}},
			"conditions": []any{map[string]any{"type": corev1.PodReady, "status": "True", "lastTransitionTime": metav1.Now()}},
		}
	}
	patch, _ := json.Marshal(map[string]any{"status": status})
	_, _ = s.kube.CoreV1().Pods(s.namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

func (s *Store) end(ctx context.Context, pod *corev1.Pod) {
	if p := s.pods[pod.Status.PodIP]; p != nil && p.uid == pod.UID {
		if p.stops.IsZero() {
			p.stops = time.Now().Add(drainTime)
		}
		if time.Now().Before(p.stops) {
			return
		}
	}
	grace := int64(0)
	_ = s.kube.CoreV1().Pods(s.namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
}
