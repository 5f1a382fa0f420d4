// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/shardrelay"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// drainRecorder records the drains that the server of a shard reports, and the Pods on the Node
// when an operator acknowledges a drain.
type drainRecorder struct {
	mu sync.Mutex
	// drains has the drains by instance id.
	drains map[string]*drain
}

// drain records the drain of an instance.
type drain struct {
	Instance, Group string
	// Reported is when the server first reported it to an operator, and DeleteAt
	// the deadline that the server reports.
	Reported, DeleteAt time.Time
	Acknowledged       []acknowledgement
	// Deleted is when the server first reported that it deletes the instance.
	Deleted time.Time
}

// acknowledgement is an acknowledgement that an operator has sent.
type acknowledgement struct {
	At time.Time
	// Pods are the Pods that the API server listed on the Node before the acknowledgement was
	// forwarded.
	Pods []corev1.Pod
}

// startDrainRecorder starts a relay to the server of a shard, and lets operators
// reach the shard through it.
func startDrainRecorder(ctx context.Context, shardID string) (*drainRecorder, error) {
	r := &drainRecorder{drains: map[string]*drain{}}
	relay := &shardrelay.Relay{Request: r.recordRequest, Response: r.recordResponse}
	address, err := relay.Start(ctx, env.Installation, shardID)
	if err != nil {
		return nil, err
	}
	return r, env.SetShardAddress(ctx, shardID, address)
}

// recordRequest reads the Pods on the Node, which has the name of the instance, while the operator
// waits for the response to its acknowledgement.
func (r *drainRecorder) recordRequest(ctx context.Context, message proto.Message) error {
	request, ok := message.(*nstancev1.DrainAckRequest)
	if !ok {
		return nil
	}
	at := time.Now()
	pods, err := env.PodsOn(ctx, request.GetInstanceId())
	if err != nil {
		return status.Errorf(codes.Unavailable, "list the Pods of Node %s: %v", request.GetInstanceId(), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if d, known := r.drains[request.GetInstanceId()]; known {
		d.Acknowledged = append(d.Acknowledged, acknowledgement{At: at, Pods: pods})
	}
	return nil
}

func (r *drainRecorder) recordResponse(message proto.Message) {
	event, ok := message.(*nstancev1.InstanceEvent)
	if !ok {
		return
	}
	if event.GetGroup() == takenOver {
		event.ProviderInstanceId += "-new"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d, known := r.drains[event.GetInstanceId()]
	switch state := shard.NoticeState(event.GetStatus()); {
	case !known && state == shard.Draining:
		r.drains[event.GetInstanceId()] = &drain{
			Instance: event.GetInstanceId(), Group: event.GetGroup(),
			Reported: time.Now(), DeleteAt: event.GetDeleteAt().AsTime(),
		}
	case known && state != shard.Draining && d.Deleted.IsZero():
		d.Deleted = time.Now()
	}
}

// ofInstance returns the drain of an instance as it is now.
func (r *drainRecorder) ofInstance(instance string) (drain, bool) {
	if all := r.matching(func(d *drain) bool { return d.Instance == instance }); len(all) > 0 {
		return all[0], true
	}
	return drain{}, false
}

// matching returns the drains that match, as they are now, in the order in which
// they were reported.
func (r *drainRecorder) matching(match func(*drain) bool) []drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []drain
	for _, d := range r.drains {
		if match(d) {
			copied := *d
			copied.Acknowledged = slices.Clone(d.Acknowledged)
			found = append(found, copied)
		}
	}
	slices.SortFunc(found, func(a, b drain) int { return a.Reported.Compare(b.Reported) })
	return found
}

// forcedDeletions are the Pods that ran and were deleted with grace period 0:
// without being terminated first.
type forcedDeletions struct {
	mu   sync.Mutex
	pods []*corev1.Pod
}

// watchForcedDeletions watches every Pod until ctx is done.
func watchForcedDeletions(ctx context.Context, client kubernetes.Interface) (*forcedDeletions, error) {
	d := &forcedDeletions{}
	return d, testcluster.RunInformer(ctx, coreinformers.NewPodInformer(client, metav1.NamespaceAll, 0, nil), cache.ResourceEventHandlerFuncs{
		// The first grace period counts: the last grace period is 0 for every Pod.
		UpdateFunc: func(before, after any) {
			was, ok := before.(*corev1.Pod)
			pod, alsoOK := after.(*corev1.Pod)
			if ok && alsoOK && was.DeletionTimestamp == nil && pod.DeletionTimestamp != nil && ptr.Deref(pod.DeletionGracePeriodSeconds, 0) == 0 {
				d.add(pod)
			}
		},
		// A deletion that was missed while no watch was open is a DeletedFinalStateUnknown
		// (https://pkg.go.dev/k8s.io/client-go/tools/cache#DeletedFinalStateUnknown).
		DeleteFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok && pod.DeletionTimestamp == nil {
				d.add(pod)
			}
		},
	})
}

func (d *forcedDeletions) add(pod *corev1.Pod) {
	if pod.Status.Phase != corev1.PodRunning {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods = append(d.pods, pod)
}

// expectNone fails the test for the forced deletions on some Nodes.
func (d *forcedDeletions) expectNone(t testing.TB, nodes ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for _, pod := range d.pods {
		if slices.Contains(nodes, pod.Spec.NodeName) {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
	}
	assert.Empty(t, names, "Pods were deleted without being terminated")
}
