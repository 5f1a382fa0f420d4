// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/testing/tier"
)

const (
	// fullAgents is how many agents there are in make test-full and in the benchmark.
	fullAgents = 200
	// fullInterval is how often so many agents report: the default of a minute, and every time
	// that is counted in reports, is 7.5 times as long.
	fullInterval = 8 * time.Second
	// partitionIntervals is how many reports are lost in the partition: five minutes of the
	// default.
	partitionIntervals = 5
)

// startAgents starts a shard, and lets all machines register at the same moment. The machines are
// in five groups and two subnets.
func startAgents(t testing.TB, s settings, agents int, reportInterval time.Duration) *shard {
	t.Helper()
	s.userdata, s.reportInterval, s.registrationTimeout = userdata, reportInterval, 3*time.Minute
	sh := startShard(t, s, map[string]int{left: agents / 2})
	sh.registrations.Cut()
	sh.configure(func(s *settings) {
		s.groups = map[string]int{}
		for n := range 5 {
			s.groups[fmt.Sprintf("workers-%d", n)] = agents / 5
		}
	})
	testcluster.Eventually(t, timeout, "all agents register", func(context.Context) error {
		waiting, running := sh.registrations.Waiting(), len(sh.cloud.Running())
		if waiting < agents || running < agents {
			return fmt.Errorf("%d of %d that run do", waiting, running)
		}
		return nil
	})
	return sh
}

// TestManyAgents: exactly the machines that are lost are replaced, whatever else happens to
// the agents and their servers, and no machine is created twice.
func TestManyAgents(t *testing.T) {
	t.Parallel()
	agents := tier.Pick(50, fullAgents)
	sh := startAgents(t, pushSettings(), agents, tier.Pick(4*time.Second, fullInterval))
	sh.addPushed()
	storm := time.Now()
	sh.registrations.Heal()
	sh.untilSettled(storm)
	sh.checkMade(agents)
	first := sh.cloud.Existing()
	assert.Zero(t, sh.cloud.Rejected(), "requests for a machine in a subnet without room")
	assert.NotEmpty(t, sh.cloud.Subnet(left))
	assert.NotEmpty(t, sh.cloud.Subnet(right))
	for _, record := range sh.records() {
		require.NotNil(t, record.Registration, record.ID)
		assert.Equal(t, record.ID, record.Registration.Hostname)
		assert.Equal(t, 1, sh.lines(record.ID, "Registered the instance"), record.ID)
	}

	sh.partition(first)

	// A server leaves missing instances alone if they are more than a third of a group.
	losses := tier.Pick([]int{2, 1, 2}, []int{7, 6, 7})
	var lost []string
	lost = append(lost, sh.loseMachines(first[:losses[0]], "the leader is killed", sh.killLeader)...)
	lost = append(lost, sh.loseMachines(first[agents/2:agents/2+losses[1]], "the leader is paused", sh.pauseLeader)...)
	lost = append(lost, sh.loseMachines(first[agents-losses[2]:], "nothing else happens", func(do func()) { do() })...)
	sh.checkMade(agents + len(lost))
	assert.ElementsMatch(t, lost, without(first, sh.cloud.Existing()), "machines that were replaced")

	sh.push(3)
	sh.checkMade(agents + len(lost))
	sh.checkSecrets()
}

// partition loses the packets between half of the agents and the servers. Nothing is replaced.
func (s *shard) partition(all []string) {
	s.t.Helper()
	failures := s.watchErrors()
	cut, agents := s.cloud.Subnet(left), s.size()
	begin := time.Now()
	s.subnets[left].Cut()
	// The others report as if nothing had happened.
	testcluster.Eventually(s.t, timeout, "the other half reports all that time", func(ctx context.Context) error {
		seen, err := s.observe(ctx)
		if err != nil {
			return err
		}
		for id, r := range seen {
			if !slices.Contains(cut, id) && r.lastSeen.Sub(begin) < (partitionIntervals-1)*s.reportInterval {
				return fmt.Errorf("the last report of %s is %s old", id, time.Since(r.lastSeen))
			}
		}
		return nil
	})
	seen, err := s.observe(s.t.Context())
	require.NoError(s.t, err)
	assert.Len(s.t, seen, agents)
	for _, id := range cut {
		// The partition may have begun during a report.
		assert.Less(s.t, seen[id].lastSeen.Sub(begin), (partitionIntervals-2)*s.reportInterval, "%s reports", id)
		assert.Equal(s.t, "running", seen[id].status, id)
	}
	s.untilError(failures, fmt.Sprintf("of %d agents do not report", agents))
	s.checkMade(agents)
	healed := time.Now()
	s.subnets[left].Heal()
	s.untilSettled(healed)
	s.checkMade(agents)
	assert.Empty(s.t, without(all, s.cloud.Existing()), "machines that were replaced")
}

// loseMachines deletes the machines of instances while something happens, and returns the
// instances once exactly these are replaced.
func (s *shard) loseMachines(ids []string, what string, happen func(lose func())) []string {
	s.t.Helper()
	before := s.cloud.Existing()
	made := len(s.cloud.Made())
	var begin time.Time
	happen(func() {
		begin = time.Now()
		s.cloud.Vanish(ids...)
	})
	s.untilSettled(begin)
	s.checkMade(made + len(ids))
	assert.ElementsMatch(s.t, ids, without(before, s.cloud.Existing()), "machines that were replaced while %s", what)
	return ids
}

// killLeader kills the leader when machines are lost, and starts it again when the other
// server leads.
func (s *shard) killLeader(lose func()) {
	s.t.Helper()
	leader, err := s.leader()
	require.NoError(s.t, err)
	lose()
	require.NoError(s.t, leader.Kill(s.t.Context()))
	s.untilOtherLeads(leader)
	require.NoError(s.t, leader.Start(s.t.Context()))
}

// pauseLeader suspends the leader when machines are lost, and resumes it when all agents report to
// the other server. The resumed server changes nothing.
func (s *shard) pauseLeader(lose func()) {
	s.t.Helper()
	leader, err := s.leader()
	require.NoError(s.t, err)
	lose()
	begin := time.Now()
	require.NoError(s.t, testcluster.FreezeUnlocked(leader.Component, s.bucket()))
	thawed := false
	s.t.Cleanup(func() {
		if !thawed {
			_ = leader.Thaw()
		}
	})
	s.untilOtherLeads(leader)
	s.untilSettled(begin)
	objects, made := s.objects(), s.cloud.Made()
	require.NoError(s.t, leader.Thaw())
	thawed = true
	testcluster.Eventually(s.t, timeout, "the old leader rejects calls", func(ctx context.Context) error {
		_, err := leader.operator.ListGroups(ctx, &emptypb.Empty{})
		if status.Code(err) != codes.Unavailable {
			return fmt.Errorf("its status is %w", err)
		}
		return nil
	})
	assert.Equal(s.t, objects, s.objects(), "groups and records")
	assert.Equal(s.t, made, s.cloud.Made(), "machines that were ever created")
}

func (s *shard) untilOtherLeads(old server) {
	s.t.Helper()
	testcluster.Eventually(s.t, timeout, "the other server leads", func(ctx context.Context) error {
		now, err := s.leader()
		if err != nil {
			return err
		}
		if now.Name == old.Name {
			return fmt.Errorf("%s leads", now.Name)
		}
		_, err = now.operator.ListGroups(ctx, &emptypb.Empty{})
		return err
	})
}

// objects returns the groups and the records in the storage.
func (s *shard) objects() map[string]string {
	s.t.Helper()
	paths, err := filepath.Glob(s.object(storage.InstancePrefix(shardID)) + "/*.json")
	require.NoError(s.t, err)
	objects := map[string]string{}
	for _, path := range append(paths, s.object(storage.GroupsKey(shardID))) {
		if data, err := os.ReadFile(path); !os.IsNotExist(err) {
			require.NoError(s.t, err)
			objects[strings.TrimPrefix(path, s.bucket())] = string(data)
		}
	}
	require.NotEmpty(s.t, slices.Collect(maps.Keys(objects)))
	return objects
}

// badUserdata makes an agent that the server refuses to register.
var badUserdata = strings.Replace(userdata, "'{{.Nonce}}'", "'not {{.Nonce}}'", 1)

// neverJoins makes an agent that registers, receives its files and reports, on a machine that never
// becomes what it is for.
var neverJoins = strings.Replace(userdata, "NSTANCE_KEYS_DIR", "NSTANCE_READY_FILE=joined\nNSTANCE_KEYS_DIR", 1)

// TestBadUserdataStopsARotation: the rotation of a group stops after one machine, says why, and loses
// no capacity. With other userdata it continues.
func TestBadUserdataStopsARotation(t *testing.T) {
	t.Parallel()
	testBadUserdata(t, 10, badUserdata, "its agent has not registered within 10s", "Registration failed")
}

// TestMachinesThatNeverJoinStopARotation: their agents report, and their machines are not ready.
func TestMachinesThatNeverJoinStopARotation(t *testing.T) {
	t.Parallel()
	testBadUserdata(t, 3, neverJoins, "is not ready after 10s, file joined does not exist", "Readiness check failed")
}

// testBadUserdata rotates a group to bad userdata: operators get an error with a text, and the log of
// each agent has a line.
func testBadUserdata(t *testing.T, size int, bad, text, line string) {
	t.Helper()
	// The timeout is long enough to start an agent on a busy machine.
	const registrationTimeout = 30 * time.Second
	// badTimeout is the registration timeout of agents that cannot register.
	const badTimeout = 10 * time.Second
	require.NotEqual(t, userdata, bad)
	begin := time.Now()
	sh := startShard(t, settings{
		groups: map[string]int{"main": size}, userdata: userdata,
		reportInterval: time.Second, registrationTimeout: registrationTimeout,
	}, nil)
	sh.untilSettled(begin)
	sh.checkMade(size)
	first := sh.cloud.Existing()
	failures, fewest := sh.watchErrors(), sh.watchCapacity()

	sh.configure(func(s *settings) { s.userdata, s.registrationTimeout = bad, badTimeout })
	refused := 0
	for n := range 2 {
		event := sh.untilError(failures, text)
		assert.Equal(t, "main", event.GetGroup())
		assert.Contains(t, event.GetError(), `check the userdata of template "worker"`)
		assert.NotContains(t, first, event.GetInstanceId())
		assert.Equal(t, n+1, len(sh.cloud.Made())-size, "machines that were created with the bad userdata")
		refused += sh.lines(event.GetInstanceId(), line)
	}
	assert.Positive(t, refused, "%s in the logs of the agents", line)
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
	failed := len(sh.cloud.Made()) - 2*size
	assert.GreaterOrEqual(t, failed, 2)
	assert.LessOrEqual(t, failed, 3)
	assert.Len(t, sh.cloud.Terminated(), size+failed)
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
