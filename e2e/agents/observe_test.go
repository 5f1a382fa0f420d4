// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// reported has the status of an instance that the leader reports.
type reported struct {
	status   string
	lastSeen time.Time
}

// observe returns the status of all instances that the leader reports, by id.
func (s *shard) observe(ctx context.Context) (map[string]reported, error) {
	leader, err := s.leader()
	if err != nil {
		return nil, err
	}
	list, err := leader.operator.ListGroups(ctx, &emptypb.Empty{})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	all := map[string]reported{}
	var calls errgroup.Group
	calls.SetLimit(8)
	for _, group := range list.Groups {
		for _, i := range group.GetInstances().GetInstances() {
			calls.Go(func() error {
				status, err := leader.operator.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: i.Id})
				if err != nil {
					return err
				}
				r := reported{status: status.GetStatus()}
				if status.LastSeen != nil {
					r.lastSeen = status.LastSeen.AsTime()
				}
				mu.Lock()
				defer mu.Unlock()
				all[i.Id] = r
				return nil
			})
		}
	}
	return all, calls.Wait()
}

// settled returns nil when there are as many instances as the groups have to have, all of them run
// and have reported to the leader since a time, and each has a machine and a record and there are
// no others.
func (s *shard) settled(ctx context.Context, since time.Time) error {
	all, err := s.observe(ctx)
	if err != nil {
		return err
	}
	size := s.size()
	if len(all) != size {
		return fmt.Errorf("there are %d instances, want %d", len(all), size)
	}
	waiting := 0
	var ids []string
	for id, r := range all {
		ids = append(ids, id)
		if r.status != "running" || r.lastSeen.Before(since) {
			waiting++
		}
	}
	if waiting > 0 {
		return fmt.Errorf("%d of %d instances do not run or have not reported", waiting, size)
	}
	slices.Sort(ids)
	if machines := s.cloud.Existing(); !slices.Equal(machines, ids) {
		return fmt.Errorf("there are %d machines, which are not those of the %d instances", len(machines), size)
	}
	var stored []string
	for _, record := range s.records() {
		stored = append(stored, record.ID)
	}
	if slices.Sort(stored); !slices.Equal(stored, ids) {
		return fmt.Errorf("there are %d records, which are not those of the %d instances", len(stored), size)
	}
	return nil
}

// untilSettled waits until the shard is settled with reports since a time.
func (s *shard) untilSettled(since time.Time) {
	s.t.Helper()
	testcluster.EventuallyEvery(s.t, 500*time.Millisecond, timeout, "all instances run and report", func(ctx context.Context) error {
		return s.settled(ctx, since)
	})
}

// records returns all records of instances.
func (s *shard) records() []instance.Record {
	s.t.Helper()
	folder := s.object(storage.InstancePrefix(shardID))
	entries, err := os.ReadDir(folder)
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(s.t, err)
	}
	var records []instance.Record
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".json") || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // it was removed since the list
		}
		require.NoError(s.t, err)
		var record instance.Record
		require.NoError(s.t, json.Unmarshal(data, &record))
		records = append(records, record)
	}
	return records
}

// checkMade checks that so many machines were ever created, each for another instance, and that
// the servers have not terminated any.
func (s *shard) checkMade(count int) {
	s.t.Helper()
	made := s.cloud.Made()
	assert.Equal(s.t, count, len(made), "machines that were ever created")
	slices.Sort(made)
	assert.Equal(s.t, count, len(slices.Compact(made)), "instances that have ever had a machine")
	assert.Empty(s.t, s.cloud.Terminated(), "machines that the servers have terminated")
}

// without returns the ids that are not in others.
func without(ids, others []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(others, id) })
}

// lines returns how many lines of the log of an instance's machine contain a text.
func (s *shard) lines(id, text string) int {
	s.t.Helper()
	log, err := os.ReadFile(s.cloud.Log(id))
	require.NoError(s.t, err)
	return strings.Count(string(log), text)
}

// watchErrors returns the errors that the leader reports from now on.
func (s *shard) watchErrors() <-chan *nstancev1.ErrorEvent {
	s.t.Helper()
	leader, err := s.leader()
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	s.t.Cleanup(cancel)
	watch, err := leader.operator.WatchErrors(ctx, &emptypb.Empty{})
	require.NoError(s.t, err)
	_, err = watch.Header()
	require.NoError(s.t, err)
	failures := make(chan *nstancev1.ErrorEvent, 1000)
	go func() {
		defer close(failures)
		for {
			event, err := watch.Recv()
			if err != nil {
				return
			}
			failures <- event
		}
	}()
	return failures
}

// untilError returns the first error with a text.
func (s *shard) untilError(failures <-chan *nstancev1.ErrorEvent, text string) *nstancev1.ErrorEvent {
	s.t.Helper()
	deadline := time.After(timeout)
	for {
		select {
		case event, open := <-failures:
			require.True(s.t, open, "the watch of errors ended before %q", text)
			if strings.Contains(event.GetError(), text) {
				return event
			}
		case <-deadline:
			require.Fail(s.t, "no such error", "%q", text)
		}
	}
}
