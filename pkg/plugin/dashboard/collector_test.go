// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// counting returns a function that reads a pool at rest and takes some time, and the number
// of its calls.
func counting(takes time.Duration) (readFunc, *atomic.Int32) {
	var reads atomic.Int32
	return func(context.Context) (*objects.Snapshot, error) {
		reads.Add(1)
		time.Sleep(takes)
		return plugintest.AtRest(), nil
	}, &reads
}

// However many viewers there are, the objects are read once in an interval.
func TestViewersShareReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, reads := counting(0)
		c := newCollector(read, "", time.Second)
		go c.run(t.Context())
		var received atomic.Int32
		for range 10 {
			go func() {
				for version := 0; ; {
					latest, err := c.after(t.Context(), version)
					if err != nil {
						return
					}
					version = latest.version
					received.Add(1)
				}
			}()
		}
		time.Sleep(4500 * time.Millisecond)
		synctest.Wait()
		if reads.Load() != 5 || received.Load() != 50 {
			t.Errorf("%d reads and %d received states in 4.5 intervals, want 5 and 50", reads.Load(), received.Load())
		}
	})
}

// Nothing is read while no browser shows the page, and a page that is opened later is not
// old.
func TestNothingIsReadWithoutViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, reads := counting(0)
		c := newCollector(read, "", time.Second)
		go c.run(t.Context())
		time.Sleep(time.Hour)
		if got := reads.Load(); got != 0 {
			t.Errorf("%d reads before the first viewer", got)
		}
		for range 3 {
			_, err := c.after(t.Context(), 0)
			require.NoError(t, err)
		}
		if got := reads.Load(); got != 1 {
			t.Errorf("%d reads for pages that were opened at the same time, want 1", got)
		}
		time.Sleep(time.Hour)
		if got := reads.Load(); got != 1 {
			t.Errorf("%d reads without viewers", got-1)
		}
		opened := time.Now()
		latest, err := c.after(t.Context(), 0)
		require.NoError(t, err)
		if latest.view.ReadAt.Before(opened) {
			t.Errorf("a page opened at %s shows what was read at %s", opened, latest.view.ReadAt)
		}
	})
}

// Where a read takes long, it is repeated less often.
func TestSlowReadsAreRarer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, reads := counting(2 * time.Second)
		c := newCollector(read, "", time.Second)
		go c.run(t.Context())
		go func() {
			for version := 0; ; {
				latest, err := c.after(t.Context(), version)
				if err != nil {
					return
				}
				version = latest.version
			}
		}()
		time.Sleep(99 * time.Second)
		if got := reads.Load(); got != 10 {
			t.Errorf("%d reads of 2s each in 99s, want 10", got)
		}
	})
}

// After a read that has failed, the page shows why, and what was read before.
func TestFailedReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := true
		c := newCollector(func(context.Context) (*objects.Snapshot, error) {
			if fails {
				return nil, errors.New("cannot list nstancemachinepools: no connection")
			}
			return plugintest.AtRest(), nil
		}, "dev", time.Second)
		go c.run(t.Context())
		never, err := c.after(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, "cannot list nstancemachinepools: no connection", never.view.Failure)
		require.True(t, never.view.ReadAt.IsZero())
		require.NotContains(t, string(never.fragment), "There are no pools")
		fails = false
		read, err := c.after(t.Context(), never.version)
		require.NoError(t, err)
		require.Empty(t, read.view.Failure)
		fails = true
		again, err := c.after(t.Context(), read.version)
		require.NoError(t, err)
		require.Equal(t, read.view.ReadAt, again.view.ReadAt)
		require.Len(t, again.view.Pools, 1)
		require.Contains(t, string(again.fragment), "unknown: cannot list nstancemachinepools: no connection")
	})
}
