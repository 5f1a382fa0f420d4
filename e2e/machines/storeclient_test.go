// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/testcluster"
)

const (
	// storePort is where the store serves clients.
	storePort = 6379
	// writePeriod is the time between two new keys.
	writePeriod = 50 * time.Millisecond
	// dialTimeout limits how long the client waits for a node whose machine is lost.
	dialTimeout = time.Second
)

// storeClient writes new keys to the store, and reads earlier keys, all the time.
type storeClient struct {
	stop func()

	mu sync.Mutex
	// written are the keys that were acknowledged. The value of a key is the key.
	written []string
	lost    []error
}

// newStoreClient starts a client of the store, which runs until stop is called.
func newStoreClient(t *testing.T) *storeClient {
	t.Helper()
	c := &storeClient{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var work sync.WaitGroup
	work.Go(func() { c.run(ctx) })
	c.stop = func() {
		cancel()
		work.Wait()
	}
	t.Cleanup(c.stop)
	return c
}

func (c *storeClient) run(ctx context.Context) {
	tick := time.NewTicker(writePeriod)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		key := "key-" + strconv.Itoa(n)
		err := onStore(ctx, func(node *redis.Client) error { return node.Set(ctx, key, key, 0).Err() })
		c.mu.Lock()
		if err == nil {
			c.written = append(c.written, key)
		}
		var earlier string
		if len(c.written) > 0 {
			earlier = c.written[n*7919%len(c.written)]
		}
		c.mu.Unlock()
		if earlier != "" {
			_ = c.check(ctx, earlier)
		}
	}
}

// check reads a key that was acknowledged. It returns an error if no node responds, and records
// that the key is lost if a node responds without it.
func (c *storeClient) check(ctx context.Context, key string) error {
	return onStore(ctx, func(node *redis.Client) error {
		value, err := node.Get(ctx, key).Result()
		if errors.Is(err, redis.Nil) || err == nil && value != key {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.lost = append(c.lost, fmt.Errorf("%s: %s has %q: %w", time.Now().Format(time.StampMilli), key, value, err))
			return nil
		}
		return err
	})
}

// onStore calls a node of the store that is ready, as its Service would.
func onStore(ctx context.Context, call func(*redis.Client) error) error {
	list, err := env.Kube.DiscoveryV1().EndpointSlices(storeName).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + storeCluster, ResourceVersion: "0",
	})
	if err != nil {
		return err
	}
	var addresses []string
	for i := range list.Items {
		for _, endpoint := range list.Items[i].Endpoints {
			if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready {
				addresses = append(addresses, endpoint.Addresses...)
			}
		}
	}
	if len(addresses) == 0 {
		return errors.New("no node of the store is ready")
	}
	address := addresses[int(time.Now().UnixMilli())%len(addresses)]
	node := redis.NewClient(&redis.Options{
		Addr: net.JoinHostPort(address, strconv.Itoa(storePort)), MaxRetries: -1, Protocol: 2, DisableIdentity: true,
		DialTimeout: dialTimeout,
	})
	defer node.Close()
	return call(node)
}

// untilWritten waits until so many more keys were acknowledged.
func (c *storeClient) untilWritten(t *testing.T, more int) {
	t.Helper()
	count := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.written)
	}
	before := count()
	testcluster.Eventually(t, 2*time.Minute, "keys are written", func(context.Context) error {
		if now := count(); now < before+more {
			return fmt.Errorf("%d more keys", now-before)
		}
		return nil
	})
}

// expectNoLoss stops the client, reads every key that was acknowledged, and fails the test for
// each key that is missing or was missing at any time.
func (c *storeClient) expectNoLoss(t *testing.T) {
	t.Helper()
	c.stop()
	t.Logf("%d keys were acknowledged", len(c.written))
	for _, key := range c.written {
		require.NoError(t, testcluster.Poll(t.Context(), 100*time.Millisecond, time.Minute, "read "+key, func(ctx context.Context) error {
			return c.check(ctx, key)
		}))
	}
	const shown = 10
	for i, err := range c.lost {
		if i == shown {
			t.Errorf("and %d more", len(c.lost)-shown)
			return
		}
		t.Error(err)
	}
}
