// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package nodeless finds the instances of pools that run for long without a Node.
package nodeless

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

const (
	// After is how long an instance runs without a Node before that is a problem: a kubelet
	// registers within seconds.
	After = 5 * time.Minute
	// maxListed is the number of instances that a message names.
	maxListed = 3
)

// Instance is an instance that runs without a Node.
type Instance struct{ ID, Shard, ProviderID string }

// Found is what is known of the instances of a pool that run without a Node.
type Found struct {
	// Known is false while the Nodes are not known.
	Known bool
	// Late are the instances that have no Node for long, in the order of their ids.
	Late []Instance
	// Wait is when another instance will be late, zero for never.
	Wait time.Duration
	// Since is since when all instances without a Node have run, by provider id.
	Since map[string]time.Time
}

// Message says which instances are late, "" if all have a Node or are not late yet.
func (f Found) Message() string {
	var named []string
	for _, i := range f.Late[:min(len(f.Late), maxListed)] {
		named = append(named, fmt.Sprintf("instance %s on shard %s has no Node with the provider id %q", i.ID, i.Shard, i.ProviderID))
	}
	if more := len(f.Late) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(named, "; ")
}

// Times remembers since when instances run without a Node, and publishes how many are late. It is
// kept in memory only: another process begins again.
type Times struct {
	late *prometheus.GaugeVec

	mu    sync.Mutex
	pools map[cache.ObjectName]poolTimes
}

// poolTimes has the times by provider id.
type poolTimes struct {
	uid   types.UID
	since map[string]time.Time
}

// NewTimes returns empty Times, and registers their metric.
func NewTimes(registry prometheus.Registerer) *Times {
	t := &Times{
		late: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nstance_operator_instances_without_node",
			Help: fmt.Sprintf("Instances that have run without a Node for %s.", After),
		}, []string{"pool"}),
		pools: map[cache.ObjectName]poolTimes{},
	}
	registry.MustRegister(t.late)
	return t
}

// Observe records all instances of a pool that run without a Node at present.
func (t *Times) Observe(pool cache.ObjectName, uid types.UID, without []Instance, now time.Time) Found {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.pools[pool]
	next := poolTimes{uid: uid, since: make(map[string]time.Time, len(without))}
	found := Found{Known: true, Since: next.since}
	for _, i := range without {
		since, was := before.since[i.ProviderID]
		if !was || before.uid != uid {
			since = now
		}
		next.since[i.ProviderID] = since
		switch left := since.Add(After).Sub(now); {
		case left <= 0:
			found.Late = append(found.Late, i)
		case found.Wait == 0 || left < found.Wait:
			found.Wait = left
		}
	}
	slices.SortFunc(found.Late, func(a, b Instance) int { return strings.Compare(a.ID, b.ID) })
	if t.pools[pool] = next; len(without) == 0 {
		delete(t.pools, pool)
	}
	if len(found.Late) == 0 {
		t.late.DeleteLabelValues(pool.Name)
	} else {
		t.late.WithLabelValues(pool.Name).Set(float64(len(found.Late)))
	}
	return found
}

// Forget forgets the instances of a pool.
func (t *Times) Forget(pool cache.ObjectName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pools, pool)
	t.late.DeleteLabelValues(pool.Name)
}
