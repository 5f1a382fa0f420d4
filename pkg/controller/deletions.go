// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// deletionPeriod is the time in which a cache is expected to show that an object is being
// deleted.
const deletionPeriod = time.Minute

// Deletions are the objects whose deletion was requested a short time ago. The cache may
// not show it yet, and each sync until then would request it again.
type Deletions struct {
	clock clock.PassiveClock

	mu sync.Mutex
	at map[types.UID]time.Time
}

// NewDeletions returns Deletions without any.
func NewDeletions(clock clock.PassiveClock) *Deletions {
	return &Deletions{clock: clock, at: make(map[types.UID]time.Time)}
}

// Record records that the API server has accepted the deletion of object.
func (d *Deletions) Record(object metav1.Object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock.Now()
	maps.DeleteFunc(d.at, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= deletionPeriod })
	d.at[object.GetUID()] = now
}

// Requested reports whether the deletion of object was recorded a short time ago.
func (d *Deletions) Requested(object metav1.Object) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.at[object.GetUID()]
	return ok && d.clock.Since(at) < deletionPeriod
}
