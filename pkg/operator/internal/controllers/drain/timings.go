// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// All times of a drain are here. A sync that finds its caches older than its last
// write is repeated after controller.StaleRetry.
const (
	// cordonTimeout is the time after which a cordon is applied again if the cache
	// does not show it.
	cordonTimeout = time.Second

	// nodeListDelay is the time between the first request for a list of all Nodes and
	// the list. Notices arrive in bursts, and one list serves all of them.
	nodeListDelay = 50 * time.Millisecond
	// nodeCacheDelay is the time in which the cache is expected to show a Node that a
	// live list contains.
	nodeCacheDelay = time.Second
	// nodeNotFoundTTL is the time for which it counts that a live list did not contain
	// the Node. If the shard cannot be reached for longer, the Nodes are listed again.
	nodeNotFoundTTL = time.Minute

	// unidentifiedNodeTimeout is the time for which a Node without a provider id may be
	// that of an instance without a Node: its provider id may be set later.
	unidentifiedNodeTimeout = time.Minute
	// unidentifiedNodePeriod is the time between two lists while there is such a Node.
	unidentifiedNodePeriod = 5 * time.Second

	// podListPeriod is the minimum time between two lists of the Pods of one Node. The
	// watch shows most changes within it, and a workload may create Pods one after
	// the other.
	podListPeriod = time.Second

	// unreadablePeriod is the time between two lists of Pods while DaemonSets cannot be read.
	unreadablePeriod = 5 * time.Second

	// evictionTimeout limits one attempt. The API server may demand a pause of 10 s,
	// after which the client repeats the request by itself; the next attempt is due
	// earlier.
	evictionTimeout = 4 * time.Second
	// blockedAfter is the time for which all evictions of a Pod, or other requests, fail
	// before the drain counts as blocked. Most disruption budgets allow a Pod within it. A Pod that is
	// being deleted has as long after its grace period: its kubelet kills it then.
	blockedAfter = 15 * time.Second

	// minGracePeriod is the minimum grace period. With a grace period of 0 the name of
	// the Pod would be free while its containers may still run.
	minGracePeriod = time.Second
	// defaultGracePeriod is the grace period of a Pod that sets none, as in the API
	// server.
	defaultGracePeriod = 30 * time.Second

	// volumeTimeout is the maximum time that an acknowledgement waits for the volumes
	// of evicted Pods to be detached. A detachment that fails must not block the
	// shard until the deadline of the drain.
	volumeTimeout = 2 * time.Minute

	// withdrawalPeriod is the time between two queries of an instance whose shard has
	// withdrawn the notice and still reports that the instance will be deleted.
	withdrawalPeriod = 10 * time.Second

	// minRequeue is the delay of a sync that is due already.
	minRequeue = time.Millisecond
)

var (
	// evictionBackoff is the time between the starts of two attempts to evict one Pod:
	// 1 s, 2 s, then 4 s. No Pod is attempted twice within a second, and a Pod is
	// evicted at most 5 s after its budget allows it. The jitter spreads Pods whose
	// evictions were rejected at the same time.
	evictionBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Steps: 8, Cap: 4 * time.Second, Jitter: 0.25}
	// acknowledgementBackoff is the time between two attempts to acknowledge a drain:
	// 1 s to 16 s. Each attempt lists the Pods of the Node.
	acknowledgementBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Steps: 8, Cap: 16 * time.Second}
)
