// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestPollReportsTheErrorBeforeTheTimeout with a check that ends at the deadline of its
// context, as calls of gRPC do.
func TestPollReportsTheErrorBeforeTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		err := Poll(t.Context(), time.Second, 10*time.Second, "all exist", func(ctx context.Context) error {
			if checks++; checks == 1 {
				return errors.New("some are missing")
			}
			deadline, _ := ctx.Deadline()
			time.Sleep(time.Until(deadline))
			return context.DeadlineExceeded
		})
		if err == nil || err.Error() != "all exist: not within 10s: some are missing" {
			t.Errorf("got %v", err)
		}
	})
}

func TestPollByProgressTakesAsLongAsThereIsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, checks := time.Now(), 0
		err := pollByProgress(t.Context(), time.Minute, "all exist", func(context.Context) (int, error) {
			checks++
			if created := int(time.Since(begin) / (50 * time.Second)); created < 20 {
				return created, errors.New("some are missing")
			}
			return 20, nil
		})
		if err != nil {
			t.Error(err)
		}
		if want := int(time.Since(begin)/(2*time.Second)) + 1; checks > want {
			t.Errorf("%d checks, want at most %d", checks, want)
		}
	})
}

func TestPollByProgressFailsWithoutProgress(t *testing.T) {
	for name, progress := range map[string]func(minutes int) int{
		"constant":     func(int) int { return 3 },
		"alternating":  func(minutes int) int { return minutes % 2 },
		"then falling": func(minutes int) int { return 5 - minutes },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err := pollByProgress(ctx, 5*time.Minute, "all exist", func(context.Context) (int, error) {
					return progress(int(time.Since(begin) / time.Minute)), errors.New("some are missing")
				})
				if err == nil || !strings.Contains(err.Error(), "all exist: no progress for 5m0s: some are missing") {
					t.Errorf("got %v", err)
				}
				if took := time.Since(begin); took > 10*time.Minute {
					t.Errorf("failed after %s", took)
				}
			})
		})
	}
}
