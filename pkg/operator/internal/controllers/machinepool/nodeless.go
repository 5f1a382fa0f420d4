// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

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
	// nodelessAfter is how long an instance runs without a Node before that is a problem: a kubelet
	// registers within seconds.
	nodelessAfter = 5 * time.Minute
	// maxListedNodeless is the number of instances that a message names.
	maxListedNodeless = 3
)

// nodelessInstance is an instance that runs without a Node.
type nodelessInstance struct{ ID, Shard, ProviderID string }

// nodeless is what is known of the instances of a pool that run without a Node.
type nodeless struct {
	// Known is false while the Nodes are not known.
	Known bool
	// Late are the instances that have no Node for long, in the order of their ids.
	Late []nodelessInstance
	// Wait is when another instance will be late, zero for never.
	Wait time.Duration
}

// message says which instances are late, "" if all have a Node or are not late yet.
func (f nodeless) message() string {
	var named []string
	for _, i := range f.Late[:min(len(f.Late), maxListedNodeless)] {
		named = append(named, fmt.Sprintf("instance %s on shard %s has no Node with the provider id %q", i.ID, i.Shard, i.ProviderID))
	}
	if more := len(f.Late) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(named, "; ")
}

// nodelessTimes remembers since when instances run without a Node, and publishes how many are late. It is
// kept in memory only: another process begins again.
type nodelessTimes struct {
	late *prometheus.GaugeVec

	mu    sync.Mutex
	pools map[cache.ObjectName]nodelessPool
}

// nodelessPool has the times by provider id.
type nodelessPool struct {
	uid   types.UID
	since map[string]time.Time
}

// newNodelessTimes returns empty nodelessTimes, and registers their metric.
func newNodelessTimes(registry prometheus.Registerer) *nodelessTimes {
	t := &nodelessTimes{
		late: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nstance_operator_instances_without_node",
			Help: fmt.Sprintf("Instances that have run without a Node for %s.", nodelessAfter),
		}, []string{"pool"}),
		pools: map[cache.ObjectName]nodelessPool{},
	}
	registry.MustRegister(t.late)
	return t
}

// observe records all instances of a pool that run without a Node at present.
func (t *nodelessTimes) observe(pool cache.ObjectName, uid types.UID, without []nodelessInstance, now time.Time) nodeless {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.pools[pool]
	found := nodeless{Known: true}
	next := nodelessPool{uid: uid, since: make(map[string]time.Time, len(without))}
	for _, i := range without {
		since, was := before.since[i.ProviderID]
		if !was || before.uid != uid {
			since = now
		}
		next.since[i.ProviderID] = since
		switch left := since.Add(nodelessAfter).Sub(now); {
		case left <= 0:
			found.Late = append(found.Late, i)
		case found.Wait == 0 || left < found.Wait:
			found.Wait = left
		}
	}
	slices.SortFunc(found.Late, func(a, b nodelessInstance) int { return strings.Compare(a.ID, b.ID) })
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

// forget forgets the instances of a pool.
func (t *nodelessTimes) forget(pool cache.ObjectName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pools, pool)
	t.late.DeleteLabelValues(pool.Name)
}
