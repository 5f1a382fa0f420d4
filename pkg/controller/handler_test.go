// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

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
