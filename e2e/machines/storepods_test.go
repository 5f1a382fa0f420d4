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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/e2e/testcluster"
)

// leftMessage is what the store writes when it has terminated after its preStop hook.
const leftMessage = "drained, handed over"

// storePods records the Pods of the store.
type storePods struct {
	mu sync.Mutex
	// present are the Pods by name, and ended how the containers of earlier ones have
	// terminated that have served, by name of the Pod.
	present map[string]*corev1.Pod
	ended   map[string][]corev1.ContainerStateTerminated
	// complete is set when five Pods were ready once, and fewest is the least number that
	// were since. most is how many Pods were being deleted at the same time.
	complete     bool
	fewest, most int
}

// followStorePods records the Pods of the store until the end of the test.
func followStorePods(t *testing.T) *storePods {
	t.Helper()
	p := &storePods{present: map[string]*corev1.Pod{}, ended: map[string][]corev1.ContainerStateTerminated{}}
	informer := informers.NewSharedInformerFactoryWithOptions(env.Kube, 0, informers.WithNamespace(storeName)).Core().V1().Pods().Informer()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	require.NoError(t, testcluster.Follow(ctx, informer, cache.ResourceEventHandlerFuncs{
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
	p.count()
}

func (p *storePods) remove(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Terminated != nil && status.RestartCount == 0 {
			p.ended[pod.Name] = append(p.ended[pod.Name], *status.State.Terminated)
		}
	}
	delete(p.present, pod.Name)
	p.count()
}

// count counts the Pods that are ready. p.mu must be locked.
func (p *storePods) count() {
	ready, ending := 0, 0
	for _, pod := range p.present {
		switch {
		case pod.DeletionTimestamp != nil:
			ending++
		case isReady(pod):
			ready++
		}
	}
	p.most = max(p.most, ending)
	if !p.complete {
		p.complete, p.fewest = ready == 5, ready
		return
	}
	p.fewest = min(p.fewest, ready)
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

// fewestReady returns the least number of Pods that were ready at any time since five were.
func (p *storePods) fewestReady() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fewest
}

// images returns how many Pods have which image.
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
