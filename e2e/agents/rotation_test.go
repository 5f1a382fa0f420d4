// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/e2e/testcluster"
)

// badUserdata makes an agent that the server refuses to register.
var badUserdata = strings.Replace(userdata, "'{{.Nonce}}'", "'not {{.Nonce}}'", 1)

// TestBadUserdataStopsARotation: the rotation of a group of ten stops after one machine, says
// why, and loses no capacity. With other userdata it continues.
func TestBadUserdataStopsARotation(t *testing.T) {
	t.Parallel()
	const size = 10
	// A busy machine starts an agent in that time.
	const registrationTimeout = 30 * time.Second
	// badTimeout is that of agents that cannot register.
	const badTimeout = 10 * time.Second
	require.NotEqual(t, userdata, badUserdata)
	begin := time.Now()
	sh := startShard(t, settings{
		groups: map[string]int{"main": size}, userdata: userdata,
		reportInterval: time.Second, registrationTimeout: registrationTimeout,
	}, nil)
	sh.untilSettled(begin)
	sh.checkMade(size)
	first := sh.cloud.Existing()
	failures, fewest := sh.watchErrors(), sh.watchCapacity()

	sh.configure(func(s *settings) { s.userdata, s.registrationTimeout = badUserdata, badTimeout })
	refused := 0
	for n := range 2 {
		event := sh.untilError(failures, "its agent has not registered within 10s")
		assert.Equal(t, "main", event.GetGroup())
		assert.Contains(t, event.GetError(), `check the userdata of template "worker"`)
		assert.NotContains(t, first, event.GetInstanceId())
		assert.Equal(t, n+1, len(sh.cloud.Made())-size, "machines that were created with the bad userdata")
		refused += sh.lines(event.GetInstanceId(), "registration failed")
	}
	assert.Positive(t, refused, "refused registrations in the logs of the agents")
	assert.Empty(t, without(first, sh.cloud.Existing()), "machines that were replaced")

	sh.configure(func(s *settings) {
		s.userdata, s.registrationTimeout = userdata+"# the second version\n", registrationTimeout
	})
	mended := time.Now()
	testcluster.Eventually(t, timeout, "all machines are replaced", func(ctx context.Context) error {
		return sh.replaced(ctx, first, mended)
	})
	assert.Equal(t, size+1, sh.cloud.Most(), "machines at once")
	assert.Equal(t, int32(size), fewest(), "instances that run")
	// The third machine with the bad userdata may have been created before it was mended.
	bad := len(sh.cloud.Made()) - 2*size
	assert.GreaterOrEqual(t, bad, 2)
	assert.LessOrEqual(t, bad, 3)
	assert.Len(t, sh.cloud.Terminated(), size+bad)
	sh.checkSecrets()
}

// replaced returns nil when the shard is settled without any of these instances.
func (s *shard) replaced(ctx context.Context, ids []string, since time.Time) error {
	if err := s.settled(ctx, since); err != nil {
		return err
	}
	if rest := len(ids) - len(without(ids, s.cloud.Existing())); rest > 0 {
		return fmt.Errorf("%d instances were not replaced yet", rest)
	}
	return nil
}

// watchCapacity follows all changes of the groups. fewest returns the least number of
// instances of one group that have run at one time.
func (s *shard) watchCapacity() (fewest func() int32) {
	s.t.Helper()
	leader, err := s.leader()
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	s.t.Cleanup(cancel)
	watch, err := leader.operator.WatchGroups(ctx, &emptypb.Empty{})
	require.NoError(s.t, err)
	_, err = watch.Header()
	require.NoError(s.t, err)
	var least atomic.Int32
	least.Store(math.MaxInt32)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for {
			event, err := watch.Recv()
			if err != nil {
				return
			}
			least.Store(min(least.Load(), event.GetGroup().GetActualSize()))
		}
	}()
	return func() int32 {
		select {
		case <-finished:
			s.t.Error("the watch of groups ended")
		default:
		}
		return least.Load()
	}
}
