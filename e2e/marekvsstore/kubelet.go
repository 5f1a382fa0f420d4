// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvsstore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/storetest"
)

// NodeName is the Node of all Pods, unless Options.Scheduled is set.
const NodeName = "marekvs"

// selector selects the Pods and the volume claims of all clusters.
const selector = v1alpha1.LabelName + "=" + v1alpha1.ApplicationName

// container describes a run of a container.
type container struct {
	name, image string
	restarts    int
}

// status returns the status of a running container.
func (c container) status() map[string]any {
	return map[string]any{
		"name": c.name, "image": c.image, "imageID": "", "ready": true, "restartCount": c.restarts,
		"state": map[string]any{"running": map[string]any{"startedAt": metav1.Now()}},
	}
}

func (s *Store) createNode(ctx context.Context) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName, Labels: map[string]string{v1alpha1.LabelName: v1alpha1.ApplicationName}}}
	if _, err := s.Kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the Node of all Pods: %w", err)
	}
	return nil
}

// heartbeat keeps the Node ready.
func (s *Store) heartbeat(ctx context.Context) {
	body, _ := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
		"type": corev1.NodeReady, "status": "True", "lastHeartbeatTime": metav1.Now(), "lastTransitionTime": metav1.Now(),
	}}}})
	_, _ = s.Kube.CoreV1().Nodes().Patch(ctx, NodeName, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
}

// sync starts and ends Pods.
func (s *Store) sync(ctx context.Context) {
	list, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return
	}
	if s.Scheduled {
		s.createVolumes(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	terminating, exists := map[string]int{}, map[types.UID]bool{}
	for i := range list.Items {
		pod := &list.Items[i]
		exists[pod.UID] = !s.dead[pod.Spec.NodeName]
		if !exists[pod.UID] {
			continue
		}
		if pod.DeletionTimestamp != nil {
			terminating[pod.Labels[v1alpha1.LabelApp]]++
			s.end(ctx, pod)
			continue
		}
		s.start(ctx, pod)
	}
	for name, count := range terminating {
		c := s.cluster(name)
		c.mostTerminating = max(c.mostTerminating, count)
	}
	for address, p := range s.pods {
		if !exists[p.uid] {
			delete(s.pods, address)
			s.network.Stop(address)
			s.free = append(s.free, address)
		}
	}
	s.work()
}

func (s *Store) start(ctx context.Context, pod *corev1.Pod) {
	if pod.Status.PodIP != "" {
		s.report(ctx, pod)
		return
	}
	// No Pod starts with a claim that is being deleted.
	claim, err := s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, claimOf(pod.Name), metav1.GetOptions{})
	if err != nil || claim.DeletionTimestamp != nil {
		return
	}
	switch {
	case pod.Spec.NodeName == "" && (s.Scheduled || s.lost[claim.UID]):
		return
	case pod.Spec.NodeName == "":
		// A Pod without a Node would be deleted at once.
		_ = s.Kube.CoreV1().Pods(s.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: cmp.Or(s.places[pod.Name], NodeName)},
		}, metav1.CreateOptions{})
		return
	}
	run := container{name: pod.Spec.Containers[0].Name, image: pod.Spec.Containers[0].Image}
	if s.failing[run.image] {
		_ = s.patchStatus(ctx, pod.Name, map[string]any{"phase": corev1.PodPending, "containerStatuses": []any{map[string]any{
			"name": run.name, "image": run.image, "imageID": "", "ready": false, "restartCount": 0,
			"state": map[string]any{"waiting": map[string]any{"reason": "ErrImagePull"}},
		}}})
		return
	}
	ordinal, err := strconv.ParseInt(pod.Labels[podIndexLabel], 10, 32)
	if err != nil {
		return
	}
	factor, err := strconv.Atoi(variable(pod, "MAREKVS_REPLICAS_N"))
	if err != nil {
		return
	}
	name := pod.Labels[v1alpha1.LabelApp]
	if s.awaitsVolume(ctx, s.cluster(name).volumes[int32(ordinal)], claim) {
		return
	}
	address, now := s.newAddress(), time.Now()
	p := &process{
		pod: pod.Name, cluster: name, container: run, uid: pod.UID, nextRound: now.Add(roundTime),
		node: &storetest.Node{Ordinal: int32(ordinal), Factor: factor},
		peer: &storetest.Peer{
			Cluster: cmp.Or(variable(pod, "MAREKVS_CLUSTER"), storetest.DefaultGossipCluster), Node: int32(ordinal), Address: address,
		},
	}
	s.cluster(name).open(p.node, factor, claim)
	s.network.Start(p.peer, s.addressesOf(name)...)
	s.pods[address] = p
	if err := s.patchStatus(ctx, pod.Name, map[string]any{
		"phase": corev1.PodRunning, "podIP": address, "podIPs": []any{map[string]any{"ip": address}},
		"containerStatuses": []any{run.status()},
	}); err != nil {
		delete(s.pods, address) // the next sync starts it again
		s.network.Stop(address)
	}
}

// claimOf returns the name of the volume claim of a Pod.
func claimOf(pod string) string { return "data-" + pod }

// awaitsVolume reports whether a claim is about to get the volume that its node had before: an administrator has let
// it go from the claim that had it.
func (s *Store) awaitsVolume(ctx context.Context, kept string, claim *corev1.PersistentVolumeClaim) bool {
	if kept == "" || claim.Spec.VolumeName != "" {
		return false
	}
	volume, err := s.Kube.CoreV1().PersistentVolumes().Get(ctx, kept, metav1.GetOptions{})
	if err != nil || volume.Spec.ClaimRef == nil {
		return false
	}
	return volume.Spec.ClaimRef.Name == claim.Name && (volume.Spec.ClaimRef.UID == "" || volume.Spec.ClaimRef.UID == claim.UID)
}

// open starts a node on the volume of its claim, which is empty if the claim is another one than before and has another
// volume.
func (c *cluster) open(n *storetest.Node, factor int, claim *corev1.PersistentVolumeClaim) {
	before, kept := c.claims[n.Ordinal], c.volumes[n.Ordinal]
	if before != "" && before != claim.UID && (kept == "" || kept != claim.Spec.VolumeName) {
		c.data.Delete(n.Ordinal)
	}
	c.claims[n.Ordinal], c.data.Factor = claim.UID, factor
	c.data.Open(n)
}

// newAddress returns an address for a Pod: the address of a Pod that has ended, if there are some.
func (s *Store) newAddress() string {
	if len(s.free) > keptFree {
		address := s.free[0]
		s.free = s.free[1:]
		return address
	}
	s.addresses++
	return fmt.Sprintf("127.77.%d.%d", s.addresses/200, 1+s.addresses%200)
}

// keptFree is how many addresses of ended Pods are not given to other Pods yet.
const keptFree = 2

// addressesOf returns the addresses of the running Pods of a cluster, which its headless Service has.
func (s *Store) addressesOf(name string) []string {
	var addresses []string
	for address, p := range s.pods {
		if p.cluster == name {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// variable returns the value of an environment variable of the only container of a Pod.
func variable(pod *corev1.Pod, name string) string {
	for _, v := range pod.Spec.Containers[0].Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// report makes a Pod ready whose node has joined. It also makes it ready again: the node controller
// makes the Pods of a Node that has not reported in time not ready, and only the kubelet takes that
// back.
func (s *Store) report(ctx context.Context, pod *corev1.Pod) {
	p := s.pods[pod.Status.PodIP]
	ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	if p == nil || p.uid != pod.UID || ready || !p.node.Active() {
		return
	}
	_ = s.patchStatus(ctx, pod.Name, map[string]any{"conditions": readyCondition()})
}

func readyCondition() []any {
	return []any{map[string]any{"type": corev1.PodReady, "status": "True", "lastTransitionTime": metav1.Now()}}
}

// podIndexLabel is set by the StatefulSet controller.
const podIndexLabel = "apps.kubernetes.io/pod-index"

func (s *Store) end(ctx context.Context, pod *corev1.Pod) {
	if p := s.pods[pod.Status.PodIP]; p != nil && p.uid == pod.UID {
		if p.stops.IsZero() {
			p.stops = time.Now().Add(drainTime)
			claim, err := s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, claimOf(pod.Name), metav1.GetOptions{})
			if err == nil {
				s.cluster(p.cluster).volumes[p.node.Ordinal] = claim.Spec.VolumeName
			}
		}
		if time.Now().Before(p.stops) {
			return
		}
	}
	grace := int64(0)
	_ = s.Kube.CoreV1().Pods(s.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
}

// Restart restarts the container of a Pod, whose counters begin at 0.
func (s *Store) Restart(ctx context.Context, pod string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.running(pod)
	if p == nil {
		return fmt.Errorf("restart Pod %s: it does not run", pod)
	}
	s.execute(p.cluster, time.Now())
	p.commands, p.scrapes = 0, 0
	p.node = &storetest.Node{Ordinal: p.node.Ordinal, Factor: p.node.Factor}
	s.cluster(p.cluster).data.Open(p.node)
	p.container.restarts++
	return s.patchStatus(ctx, pod, map[string]any{"containerStatuses": []any{p.container.status()}})
}

func (s *Store) patchStatus(ctx context.Context, pod string, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = s.Kube.CoreV1().Pods(s.Namespace).Patch(ctx, pod, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// createVolumes creates a volume for each claim without a volume. Every Node can use it.
func (s *Store) createVolumes(ctx context.Context) {
	list, err := s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return
	}
	for i := range list.Items {
		claim := &list.Items[i]
		if claim.Spec.VolumeName != "" {
			continue
		}
		_, _ = s.Kube.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "marekvs-" + string(claim.UID)},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests,
				ClaimRef: &corev1.ObjectReference{
					APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
				},
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
			},
		}, metav1.CreateOptions{})
	}
}

// DeleteVolumes deletes every volume of the store, whose claims must be deleted.
func (s *Store) DeleteVolumes(ctx context.Context) error {
	list, err := s.Kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if claim := list.Items[i].Spec.ClaimRef; claim == nil || claim.Namespace != s.Namespace {
			continue
		}
		if err := s.Kube.CoreV1().PersistentVolumes().Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// Place chooses the Node of a Pod that is created from now on.
func (s *Store) Place(pod, node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places[pod] = node
}

// LoseNode ends a Node: its processes end, and its kubelet does nothing any more. Its Pods become not ready, as
// the node controller does after some time.
func (s *Store) LoseNode(ctx context.Context, node string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead[node] = true
	list, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return fmt.Errorf("list the Pods of Node %s: %w", node, err)
	}
	for i := range list.Items {
		if pod := &list.Items[i]; pod.Spec.NodeName == node {
			if err := s.patchStatus(ctx, pod.Name, map[string]any{"conditions": []any{map[string]any{
				"type": corev1.PodReady, "status": "False", "lastTransitionTime": metav1.Now(),
			}}}); err != nil {
				return fmt.Errorf("make Pod %s not ready: %w", pod.Name, err)
			}
		}
	}
	return nil
}

// LoseVolume loses the volume of a Pod: its data is lost, and no Node accepts a Pod with its claim. It deletes the
// Pod.
func (s *Store) LoseVolume(ctx context.Context, pod string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	claim, err := s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, claimOf(pod), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the claim of Pod %s: %w", pod, err)
	}
	s.lost[claim.UID] = true
	grace := int64(0)
	if err := s.Kube.CoreV1().Pods(s.Namespace).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		return fmt.Errorf("delete Pod %s: %w", pod, err)
	}
	return nil
}
