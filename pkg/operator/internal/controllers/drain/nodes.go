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
	// requested are the provider ids to look up, and requestedAt the times of the first
	// requests.
	requested   map[Key]string
	requestedAt map[Key]time.Time
	// notFoundAt is the time of the list that did not contain the Node.
	notFoundAt map[Key]time.Time
	// err is the error of the last list, nil after a success.
	err error
}

// allNodes is the only key of the queue.
const allNodes = "nodes"

func newNodeLookup(client kubernetes.Interface, clock clock.PassiveClock, enqueue func(Key, time.Duration)) *nodeLookup {
	l := &nodeLookup{client: client, clock: clock, enqueue: enqueue,
		requested: map[Key]string{}, requestedAt: map[Key]time.Time{}, notFoundAt: map[Key]time.Time{}}
	l.queue = controller.NewQueue("drain-nodes", l.sync)
	return l
}

// request requests a lookup of the Node with a provider id. The drain is enqueued
// when the result is known.
func (l *nodeLookup) request(key Key, providerID string) {
	l.mu.Lock()
	l.requested[key] = providerID
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

// notFound reports whether a recent list did not contain the Node.
func (l *nodeLookup) notFound(key Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.notFoundAt[key]
	return ok && l.clock.Since(at) < nodeNotFoundTTL
}

// forget removes request and result of a drain.
func (l *nodeLookup) forget(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.requested, key)
	delete(l.requestedAt, key)
	delete(l.notFoundAt, key)
}

func (l *nodeLookup) sync(ctx context.Context, _ string) (time.Duration, error) {
	l.mu.Lock()
	requested := maps.Clone(l.requested)
	l.mu.Unlock()
	if len(requested) == 0 {
		return 0, nil
	}
	ids, err := listProviderIDs(ctx, l.client)
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
	for key, providerID := range requested {
		l.setResult(key, providerID, ids[providerid.Key(providerID)], len(ids[""]) > 0)
	}
	return 0, nil
}

// listProviderIDs lists the provider ids of all Nodes, by their keys. It bypasses the caches:
// an instance whose Node is not in the cache is acknowledged only if the Node is not in this
// list either.
func listProviderIDs(ctx context.Context, client kubernetes.Interface) (map[string][]string, error) {
	ids := map[string][]string{}
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Nodes().List(ctx, options)
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if node, ok := object.(*corev1.Node); ok {
			key := providerid.Key(node.Spec.ProviderID)
			ids[key] = append(ids[key], node.Spec.ProviderID)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	return ids, nil
}

// setResult stores the result of a lookup: candidates are the provider ids of the Nodes that
// may match, and unidentified is set if a Node has no provider id. That Node may belong to the
// instance, so the lookup is repeated for a while.
func (l *nodeLookup) setResult(key Key, providerID string, candidates []string, unidentified bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requested[key] != providerID {
		return
	}
	delete(l.requested, key)
	for _, id := range candidates {
		if providerid.Match(providerID, id) {
			l.enqueue(key, nodeCacheDelay)
			return
		}
	}
	if unidentified && l.clock.Since(l.requestedAt[key]) < unidentifiedNodeTimeout {
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
