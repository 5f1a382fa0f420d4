// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// nodeLookup finds out by a live list of all Nodes whether there is a Node with a
// provider id. One list serves all requests that were made before it started.
type nodeLookup struct {
	client kubernetes.Interface
	clock  clock.PassiveClock
	// enqueue enqueues a drain after a delay.
	enqueue func(Key, time.Duration)
	queue   *controller.Queue[string]

	mu sync.Mutex
	// requested are the notices of the instances whose Nodes to look up, and requestedAt the
	// times of the first requests.
	requested   map[Key]*shard.DeletionNotice
	requestedAt map[Key]time.Time
	// notFoundAt is the time of the list that did not contain the Node, and mismatches are the
	// Nodes of the last list that may be the Node although they have another provider id.
	notFoundAt map[Key]time.Time
	mismatches map[Key]*mismatch
	// err is the error of the last list, nil after a success.
	err error
}

// mismatch is a Node that has another provider id than an instance, and its name or an address.
// It may be the Node of the instance: a kubelet whose Node name was used before takes over the
// Node of the former instance, and the provider id of a Node cannot be changed
// (https://kubernetes.io/docs/concepts/architecture/nodes/#node-name-uniqueness).
type mismatch struct {
	// node and providerID are the name and the provider id of the Node, common is what it has in
	// common with the instance.
	node, providerID, common string
	// since is when a list contained the Node first, listAgainAt the time of the next list.
	since, listAgainAt time.Time
}

// allNodes is the only key of the queue.
const allNodes = "nodes"

func newNodeLookup(client kubernetes.Interface, clock clock.PassiveClock, enqueue func(Key, time.Duration)) *nodeLookup {
	l := &nodeLookup{client: client, clock: clock, enqueue: enqueue,
		requested: map[Key]*shard.DeletionNotice{}, requestedAt: map[Key]time.Time{},
		notFoundAt: map[Key]time.Time{}, mismatches: map[Key]*mismatch{}}
	l.queue = controller.NewQueue("drain-nodes", l.sync)
	return l
}

// request requests a lookup of the Node of an instance. The drain is enqueued when the result is
// known.
func (l *nodeLookup) request(key Key, notice *shard.DeletionNotice) {
	l.mu.Lock()
	l.requested[key] = notice
	if _, ok := l.requestedAt[key]; !ok {
		l.requestedAt[key] = l.clock.Now()
	}
	l.mu.Unlock()
	l.queue.AddAfter(allNodes, nodeListDelay)
}

// failed returns the error of the last list, nil after a success.
func (l *nodeLookup) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// result reports whether a recent list did not contain the Node, and the Node that may be it
// although it has another provider id. The mismatch must not be changed.
func (l *nodeLookup) result(key Key) (notFound bool, other *mismatch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.notFoundAt[key]
	return ok && l.clock.Since(at) < nodeNotFoundTTL, l.mismatches[key]
}

// forget removes request and result of a drain.
func (l *nodeLookup) forget(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.requested, key)
	delete(l.requestedAt, key)
	delete(l.notFoundAt, key)
	delete(l.mismatches, key)
}

func (l *nodeLookup) sync(ctx context.Context, _ string) (time.Duration, error) {
	l.mu.Lock()
	requested := maps.Clone(l.requested)
	l.mu.Unlock()
	if len(requested) == 0 {
		return 0, nil
	}
	listed, err := listNodes(ctx, l.client)
	l.mu.Lock()
	l.err = err
	l.mu.Unlock()
	if err != nil {
		// The drains report the error.
		for key := range requested {
			l.enqueue(key, blockedAfter)
		}
		return 0, err
	}
	for key, notice := range requested {
		l.setResult(key, notice, listed)
	}
	return 0, nil
}

// nodeList are the Nodes of a live list, with names and provider ids only.
type nodeList struct {
	// byID has the Nodes by the keys of their provider ids, byHost by their names and addresses.
	byID, byHost map[string][]*corev1.Node
}

// listNodes lists all Nodes. It bypasses the caches: an instance whose Node is not in the cache
// is acknowledged only if the Node is not in this list either.
func listNodes(ctx context.Context, client kubernetes.Interface) (*nodeList, error) {
	listed := &nodeList{byID: map[string][]*corev1.Node{}, byHost: map[string][]*corev1.Node{}}
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Nodes().List(ctx, options)
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if node, ok := object.(*corev1.Node); ok {
			listed.add(node)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	return listed, nil
}

func (l *nodeList) add(node *corev1.Node) {
	kept := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: corev1.NodeSpec{ProviderID: node.Spec.ProviderID}}
	key := providerid.Key(node.Spec.ProviderID)
	l.byID[key] = append(l.byID[key], kept)
	// A Node may be named after its host with or without the domain.
	host, _, _ := strings.Cut(node.Name, ".")
	hosts := sets.New(host)
	for _, address := range node.Status.Addresses {
		hosts.Insert(address.Address)
	}
	for host := range hosts {
		l.byHost[host] = append(l.byHost[host], kept)
	}
}

// has reports whether a Node has the provider id.
func (l *nodeList) has(providerID string) bool {
	return slices.ContainsFunc(l.byID[providerid.Key(providerID)],
		func(node *corev1.Node) bool { return providerid.Match(providerID, node.Spec.ProviderID) })
}

// mismatch returns a Node with the name or an address of an instance that has no Node with its
// provider id, nil if there is no such Node. Machines of different zones may have the same
// address, so the provider ids must not name different zones.
func (l *nodeList) mismatch(instance string, notice *shard.DeletionNotice) *mismatch {
	if named := l.byHost[instance]; len(named) > 0 {
		return &mismatch{node: named[0].Name, providerID: named[0].Spec.ProviderID, common: "name"}
	}
	for _, address := range notice.Addresses {
		for _, node := range l.byHost[address] {
			if sameZone(notice.ProviderID, node.Spec.ProviderID) {
				return &mismatch{node: node.Name, providerID: node.Spec.ProviderID, common: "address " + address}
			}
		}
	}
	return nil
}

// sameZone reports whether two provider ids may name machines of one zone: they are the same
// before the last slash, as far as both have anything there.
func sameZone(a, b string) bool {
	zoneA, zoneB := strings.TrimSuffix(a, providerid.Key(a)), strings.TrimSuffix(b, providerid.Key(b))
	return zoneA == zoneB || zoneA == "" || zoneB == ""
}

// setResult stores the result of a lookup. A Node without a provider id may belong to the
// instance, so the lookup is repeated for a while. A Node with the name or an address of the
// instance may belong to it in any case, so the lookup is repeated until there is no such Node.
func (l *nodeLookup) setResult(key Key, notice *shard.DeletionNotice, listed *nodeList) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.requested[key]; now == nil || now.ProviderID != notice.ProviderID {
		return
	}
	delete(l.requested, key)
	if listed.has(notice.ProviderID) {
		l.enqueue(key, nodeCacheDelay)
		return
	}
	if other := listed.mismatch(key.Instance, notice); other != nil {
		other.since, other.listAgainAt = l.clock.Now(), l.clock.Now().Add(otherNodePeriod)
		if before := l.mismatches[key]; before != nil {
			other.since = before.since
		}
		l.mismatches[key] = other
		delete(l.notFoundAt, key)
		l.enqueue(key, 0)
		return
	}
	delete(l.mismatches, key)
	if len(listed.byID[""]) > 0 && l.clock.Since(l.requestedAt[key]) < unidentifiedNodeTimeout {
		l.enqueue(key, unidentifiedNodePeriod)
		return
	}
	l.notFoundAt[key] = l.clock.Now()
	l.enqueue(key, 0)
}

// annotationKeys are the annotations of a Node that is cordoned for a drain.
var annotationKeys = []string{v1beta1.AnnotationCordonedFor, v1beta1.AnnotationDrainReason, v1beta1.AnnotationDeleteAt}

// unreachable reports whether the kubelet of a Node has not reported for so long
// that it cannot confirm the deletion of Pods.
func unreachable(node *corev1.Node) bool {
	return controllers.ReadyCondition(node).Status == corev1.ConditionUnknown
}

// drainAnnotations returns the annotations of a Node that is cordoned for a drain.
func drainAnnotations(key Key, notice *shard.DeletionNotice) map[string]string {
	annotations := map[string]string{
		v1beta1.AnnotationCordonedFor: key.String(),
		v1beta1.AnnotationDrainReason: truncate(notice.Reason, maxNote),
	}
	if !notice.DeleteAt.IsZero() {
		annotations[v1beta1.AnnotationDeleteAt] = notice.DeleteAt.UTC().Format(time.RFC3339)
	}
	return annotations
}

// outdated reports whether a Node was cordoned for a drain and has another reason or time than
// the notice.
func outdated(node *corev1.Node, key Key, notice *shard.DeletionNotice) bool {
	if found, ok := cordonedFor(node); !ok || found != key {
		return false
	}
	want := drainAnnotations(key, notice)
	return slices.ContainsFunc(annotationKeys, func(name string) bool { return node.Annotations[name] != want[name] })
}

// applyCordon makes a Node unschedulable and annotates it with the drain, if the
// Node has not changed since the cache saw it: a Node that another client has
// cordoned in the meantime gets no annotation. A client that cordons the Node later
// becomes a second owner of the field, and its cordon stays when the operator removes its own
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/).
func (c *Controller) applyCordon(ctx context.Context, node *corev1.Node, key Key, notice *shard.DeletionNotice) error {
	_, err := c.applyNode(ctx, node, corev1ac.Node(node.Name).
		WithUID(node.UID).
		WithResourceVersion(node.ResourceVersion).
		WithAnnotations(drainAnnotations(key, notice)).
		WithSpec(corev1ac.NodeSpec().WithUnschedulable(true)))
	return err
}

// uncordon removes the fields that applyCordon has set, and reports whether the Node is
// schedulable then. A cordon that another client owns too stays. The annotations do not:
// because of AnnotationCordonedFor the Node would be uncordoned again and again.
func (c *Controller) uncordon(ctx context.Context, node *corev1.Node) (schedulable bool, err error) {
	written, err := c.applyNode(ctx, node, corev1ac.Node(node.Name).WithUID(node.UID))
	if err != nil || written == nil {
		return false, err
	}
	return !written.Spec.Unschedulable, c.removeAnnotations(ctx, written)
}

// removeAnnotations removes the annotations of a drain that a Node still has because another
// client owns them too, unless they have other values in the meantime.
func (c *Controller) removeAnnotations(ctx context.Context, node *corev1.Node) error {
	operations := []map[string]any{{"op": "test", "path": "/metadata/uid", "value": node.UID}}
	for _, name := range annotationKeys {
		if value, left := node.Annotations[name]; left {
			path := "/metadata/annotations/" + strings.ReplaceAll(name, "/", "~1")
			operations = append(operations,
				map[string]any{"op": "test", "path": path, "value": value}, map[string]any{"op": "remove", "path": path})
		}
	}
	if len(operations) == 1 {
		return nil
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return fmt.Errorf("encode the patch that removes the annotations of Node %s: %w", node.Name, err)
	}
	written, err := c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: controllers.FieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the annotations of the drain of Node %s: %w", node.Name, err)
	}
	c.writes.Record(written)
	return nil
}

// applyNode applies a configuration to a Node, and returns nil for a Node that does not
// exist.
func (c *Controller) applyNode(ctx context.Context, node *corev1.Node, configuration *corev1ac.NodeApplyConfiguration) (*corev1.Node, error) {
	written, err := c.client.CoreV1().Nodes().Apply(ctx, configuration, controllers.Apply)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("apply the cordon of Node %s: %w", node.Name, err)
	}
	c.writes.Record(written)
	return written, nil
}
