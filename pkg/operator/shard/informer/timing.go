// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// timing contains the intervals and timeouts of the informers.
type timing struct {
	// connectTimeout is how long the watch may take to open before the first list,
	// whose error is then the reason why the shard is not reachable.
	connectTimeout time.Duration
	// listInterval is the time between lists, plus or minus listJitter. The
	// keepalive of connections depends on it. Together with callTimeout it limits how
	// long a shard that does not respond seems reachable: 43 s by default.
	listInterval time.Duration
	// callTimeout is the timeout of a list.
	callTimeout time.Duration
	// retryMin and retryMax bound the delay before a retry.
	retryMin, retryMax time.Duration
	// unimplementedDelay is the delay before a stream is opened again on a server
	// that does not implement it.
	unimplementedDelay time.Duration
	// reopenInterval is the time after which the watch of instances is opened again, plus
	// or minus listJitter: a server that another client has connected to may send nothing
	// more to the first one (docs/protocol.md#watches).
	reopenInterval time.Duration
	// settleQuiet is the time without instance events after which the snapshot of a
	// watch of instances is considered complete. Servers send the snapshot right
	// after the opening and do not mark its end. settleQuiet is much longer than the
	// time between two events of a snapshot, and much shorter than a drain.
	settleQuiet time.Duration
	// settleTimeout is when the snapshot is considered complete even though events
	// are being received: a busy shard may send events for hours without a pause.
	settleTimeout time.Duration
	// retention is the minimum time for which the notice of a deletion is cached. The
	// notice expires within another tenth of it.
	retention time.Duration
}

// DefaultProbeInterval is the default of Options.ProbeInterval, and MinProbeInterval and
// MaxProbeInterval are its limits. With rarer lists the keepalive of connections would
// exceed what servers accept.
const (
	DefaultProbeInterval = 30 * time.Second
	MinProbeInterval     = time.Second
	MaxProbeInterval     = DefaultProbeInterval
)

var defaultTiming = timing{
	connectTimeout:     2 * time.Second,
	listInterval:       DefaultProbeInterval,
	callTimeout:        10 * time.Second,
	retryMin:           500 * time.Millisecond,
	retryMax:           15 * time.Second,
	unimplementedDelay: 5 * time.Minute,
	reopenInterval:     10 * time.Minute,
	settleQuiet:        2 * time.Second,
	settleTimeout:      10 * time.Second,
	retention:          10 * time.Minute,
}

// listJitter spreads the lists, and the openings, of shards that were connected at the
// same time.
const listJitter = 0.1

// probing returns t with lists at an interval. A list that takes longer than the interval
// fails, and is retried within it.
func (t timing) probing(interval time.Duration) timing {
	t.listInterval = interval
	t.callTimeout = min(t.callTimeout, interval)
	t.retryMax = min(t.retryMax, interval)
	return t
}

// newBackoff returns a backoff from retryMin to retryMax without a time limit.
func (t timing) newBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(t.retryMin),
		backoff.WithMaxInterval(t.retryMax),
		backoff.WithMaxElapsedTime(0),
	)
}

func jitter(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * (1 - listJitter + 2*listJitter*rand.Float64()))
}
