// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

func TestWatch(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.NodeSpec{ProviderID: "a"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.NodeSpec{ProviderID: "b"}},
	), 0)
	nodes := factory.Core().V1().Nodes().Informer()
	seen := make(chan string, 2)
	watched := Watched{
		What:     "Nodes",
		Informer: nodes,
		Indexers: cache.Indexers{"id": func(obj any) ([]string, error) { return []string{obj.(*corev1.Node).Spec.ProviderID}, nil }},
		Handler:  OnChange(func(_, after *corev1.Node) { seen <- after.Name }),
	}
	registrations, err := Watch(watched)
	if err != nil || len(registrations) != 1 {
		t.Fatalf("%d registrations, error %v", len(registrations), err)
	}
	if _, err := Watch(watched); err == nil || !strings.Contains(err.Error(), "index Nodes") {
		t.Errorf("an index of the same name: error %v", err)
	}

	factory.StartWithContext(t.Context())
	<-registrations[0].HasSyncedChecker().Done()
	if len(seen) != 2 {
		t.Errorf("the handler has seen %d objects when it says that it has seen all, want 2", len(seen))
	}
	got := Indexed[corev1.Node](nodes.GetIndexer(), "id", "b")
	if len(got) != 1 || got[0].Name != "other" {
		t.Errorf("found %v under b", got)
	}
	if got := Indexed[corev1.Pod](nodes.GetIndexer(), "id", "b"); len(got) > 0 {
		t.Errorf("found %v of another type", got)
	}
}

func TestOnChange(t *testing.T) {
	before, after := &corev1.Node{}, &corev1.Node{}
	tests := map[string]struct {
		event                 func(cache.ResourceEventHandler)
		wantBefore, wantAfter *corev1.Node
		calls                 int
	}{
		"an addition has no before": {
			event:     func(h cache.ResourceEventHandler) { h.OnAdd(after, true) },
			wantAfter: after, calls: 1,
		},
		"an update has both": {
			event:      func(h cache.ResourceEventHandler) { h.OnUpdate(before, after) },
			wantBefore: before, wantAfter: after, calls: 1,
		},
		"a deletion has no after": {
			event:      func(h cache.ResourceEventHandler) { h.OnDelete(before) },
			wantBefore: before, calls: 1,
		},
		"a missed deletion comes with the last known state": {
			event: func(h cache.ResourceEventHandler) {
				h.OnDelete(cache.DeletedFinalStateUnknown{Key: "node", Obj: before})
			},
			wantBefore: before, calls: 1,
		},
		"a missed deletion of an unknown state is left out": {
			event: func(h cache.ResourceEventHandler) { h.OnDelete(cache.DeletedFinalStateUnknown{Key: "node"}) },
		},
		"an object of another type is left out": {
			event: func(h cache.ResourceEventHandler) {
				h.OnAdd(&corev1.Pod{}, false)
				h.OnUpdate(&corev1.Pod{}, &corev1.Pod{})
				h.OnDelete(&corev1.Pod{})
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			calls := 0
			test.event(OnChange(func(before, after *corev1.Node) {
				calls++
				if before != test.wantBefore || after != test.wantAfter {
					t.Errorf("called with %p, %p; want %p, %p", before, after, test.wantBefore, test.wantAfter)
				}
			}))
			if calls != test.calls {
				t.Errorf("called %d times, want %d", calls, test.calls)
			}
		})
	}
}
