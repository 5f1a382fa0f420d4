// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package monitoring

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/testcluster"
)

// No alert that is shipped fires in quiet life, in which a pool is scaled every few
// minutes. It takes as long as NSTANCE_QUIET names ("make quiet-hour"), because nothing is
// shortened.
func TestNoAlertFiresInQuietLife(t *testing.T) {
	text := os.Getenv("NSTANCE_QUIET")
	if text == "" {
		t.Skip("NSTANCE_QUIET is not set. 'make quiet-hour' runs this test")
	}
	period, err := time.ParseDuration(text)
	require.NoError(t, err)
	prometheus := runPrometheus(t, shippedRules(t))
	const name, replicas = "quiet", 4
	env.CreatePoolForTest(t, name, replicas)
	env.UntilRunning(t, name, replicas)
	quietWhileScaled(t, prometheus, name, replicas, period)
}

// quietAtRest expects that no alert becomes pending for ten minutes of the short rules.
func quietAtRest(t *testing.T, prometheus prometheusAPI) {
	t.Helper()
	testcluster.EventuallyEvery(t, time.Second, timeout, "every rule is evaluated and no alert is active", prometheus.quiet)
	expectNone(t, prometheus, "ALERTS", time.Now(), 20*time.Second)
}

// quietWhileScaled scales a pool up and down for so long, every few minutes if there is
// time for that, and expects that no alert fires.
func quietWhileScaled(t *testing.T, prometheus prometheusAPI, name string, replicas int32, period time.Duration) {
	t.Helper()
	const firing = `ALERTS{alertstate="firing"}`
	begin := time.Now()
	for more := true; time.Since(begin) < period; more = !more {
		size := replicas
		if more {
			size += 2
		}
		env.Scale(t, name, size)
		env.UntilRunning(t, name, size)
		expectNone(t, prometheus, firing, begin, min(3*time.Minute, period/4))
	}
	env.Scale(t, name, replicas)
	env.UntilRunning(t, name, replicas)
	expectNone(t, prometheus, firing, begin, 5*time.Second)
}

// expectNone observes for so long that a query of ALERTS has had no result since a time.
func expectNone(t *testing.T, prometheus prometheusAPI, selector string, since time.Time, period time.Duration) {
	t.Helper()
	begin := time.Now()
	testcluster.EventuallyEvery(t, time.Second, period+time.Minute, "the time without alerts is over", func(ctx context.Context) error {
		found, err := prometheus.alerts(ctx, fmt.Sprintf("count_over_time(%s[%ds])", selector, seconds(time.Since(since))))
		if err != nil {
			return err
		}
		require.Empty(t, found, "alerts since %s", since)
		if passed := time.Since(begin); passed < period {
			return fmt.Errorf("%s of %s", passed, period)
		}
		return nil
	})
}
