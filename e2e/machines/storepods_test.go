// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/e2e/testcluster"
)

// leftMessage is the message of the store when it has terminated after its preStop hook.
const leftMessage = "drained, handed over"

// storePods records the Pods of the store.
type storePods struct {
	mu sync.Mutex
	// present has the Pods by name, and ended has the exit states of the containers of earlier
	// Pods that have served, by the name of the Pod.
	present map[string]*corev1.Pod
	ended   map[string][]corev1.ContainerStateTerminated
	// served has the Pods that were ready once.
	served map[types.UID]bool
	// complete is set when all of the first Pods were ready once, and fewest is the least number of ready
	// Pods since, or since the last call of fewestReady. most is how many Pods were being deleted at the
	// same time.
	first        int
	complete     bool
	fewest, most int
}

// followStorePods records the Pods of the store, which has so many at first, until the end of the test.
func followStorePods(t *testing.T, first int) *storePods {
	t.Helper()
	p := &storePods{
		first: first, present: map[string]*corev1.Pod{}, ended: map[string][]corev1.ContainerStateTerminated{}, served: map[types.UID]bool{},
	}
	informer := informers.NewSharedInformerFactoryWithOptions(env.Kube, 0, informers.WithNamespace(storeName)).Core().V1().Pods().Informer()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	require.NoError(t, testcluster.RunInformer(ctx, informer, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { p.set(object.(*corev1.Pod)) },
		UpdateFunc: func(_, object any) { p.set(object.(*corev1.Pod)) },
		DeleteFunc: func(object any) {
			if deleted, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = deleted.Obj
			}
			p.remove(object.(*corev1.Pod))
		},
	}))
	return p
}

func (p *storePods) set(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.present[pod.Name] = pod
	p.served[pod.UID] = p.served[pod.UID] || isReady(pod)
	p.count()
}

func (p *storePods) remove(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, status := range pod.Status.ContainerStatuses {
		if p.served[pod.UID] && status.State.Terminated != nil && status.RestartCount == 0 {
			p.ended[pod.Name] = append(p.ended[pod.Name], *status.State.Terminated)
		}
	}
	delete(p.present, pod.Name)
	p.count()
}

// count counts the Pods that are ready, and those that are being deleted. p.mu must be locked.
func (p *storePods) count() {
	ready, ending := p.states()
	p.most = max(p.most, ending)
	if !p.complete {
		p.complete, p.fewest = ready == p.first, ready
		return
	}
	p.fewest = min(p.fewest, ready)
}

// states returns how many Pods are ready, and how many are being deleted. p.mu must be locked.
func (p *storePods) states() (ready, ending int) {
	for _, pod := range p.present {
		switch {
		case pod.DeletionTimestamp != nil:
			ending++
		case isReady(pod):
			ready++
		}
	}
	return ready, ending
}

// isReady reports whether a Pod is ready.
func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// mostEnding returns how many Pods were being deleted at the same time.
func (p *storePods) mostEnding() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

// fewestReady returns the least number of Pods that were ready at any time since all of the first were, or
// since the last call.
func (p *storePods) fewestReady() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	fewest := p.fewest
	p.fewest, _ = p.states()
	return fewest
}

// nodes returns the Node of each Pod.
func (p *storePods) nodes() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	nodes := map[string]string{}
	for name, pod := range p.present {
		nodes[name] = pod.Spec.NodeName
	}
	return nodes
}

// runs returns the UID and the number of restarts of each Pod.
func (p *storePods) runs() map[string]storeRun {
	p.mu.Lock()
	defer p.mu.Unlock()
	runs := map[string]storeRun{}
	for name, pod := range p.present {
		run := storeRun{pod: pod.UID}
		for _, status := range pod.Status.ContainerStatuses {
			run.restarts += status.RestartCount
		}
		runs[name] = run
	}
	return runs
}

// storeRun is a run of the container of a Pod.
type storeRun struct {
	pod      types.UID
	restarts int32
}

// images returns the number of Pods by image.
func (p *storePods) images() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	images := map[string]int{}
	for _, pod := range p.present {
		images[pod.Spec.Containers[0].Image]++
	}
	return images
}

// expectEnded waits until Pods have ended once more each: after their preStop hook, with their
// copies elsewhere, and not killed.
func (p *storePods) expectEnded(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		testcluster.Eventually(t, time.Minute, "Pod "+name+" has ended", func(context.Context) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.ended[name]) != 1 {
				return fmt.Errorf("it has ended %d times", len(p.ended[name]))
			}
			return nil
		})
		p.mu.Lock()
		end := p.ended[name][0]
		delete(p.ended, name)
		p.mu.Unlock()
		if end.ExitCode != 0 || end.Message != leftMessage {
			t.Errorf("Pod %s has ended with code %d, %q", name, end.ExitCode, end.Message)
		}
	}
}
