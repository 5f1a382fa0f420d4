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

// allTargets selects the targets that are scraped.
const allTargets = ""

// undisturbed runs a part of a test when no alert is active. The part returns the alerts that
// it does not expect. They fail the test, unless scrapes of targets that run have failed
// meanwhile: to the alerts, a target that does not respond on a busy machine is down. The part
// runs again then.
func undisturbed(t *testing.T, prometheus prometheusAPI, running string, part func(begun time.Time) (unexpected []string)) {
	t.Helper()
	const attempts = 4
	for range attempts {
		testcluster.EventuallyEvery(t, time.Second, 5*time.Minute, "every rule is evaluated and no alert is active", prometheus.quiet)
		begun := time.Now()
		unexpected := part(begun)
		if len(unexpected) == 0 {
			return
		}
		failed, err := prometheus.failedScrapes(t.Context(), running, begun)
		require.NoError(t, err)
		require.NotEmpty(t, failed, "alerts that are not expected: %q", unexpected)
		t.Logf("unexpected alerts: %q. Scrapes have failed: %q", unexpected, failed)
	}
	require.Fail(t, "scrapes have failed each time")
}

// quietAtRest expects that no alert becomes pending for ten minutes of the short rules.
func quietAtRest(t *testing.T, prometheus prometheusAPI) {
	t.Helper()
	undisturbed(t, prometheus, allTargets, func(begun time.Time) []string {
		return observe(t, prometheus, "ALERTS", begun, 20*time.Second)
	})
}

// quietWhileScaled scales a pool up and down for so long, every few minutes if there is
// time for that, and expects that no alert fires.
func quietWhileScaled(t *testing.T, prometheus prometheusAPI, name string, replicas int32, period time.Duration) {
	t.Helper()
	const firing = `ALERTS{alertstate="firing"}`
	scale := func(size int32) {
		env.Scale(t, name, size)
		env.UntilRunning(t, name, size)
	}
	undisturbed(t, prometheus, allTargets, func(begun time.Time) []string {
		for more := true; time.Since(begun) < period; more = !more {
			size := replicas
			if more {
				size += 2
			}
			scale(size)
			if found := observe(t, prometheus, firing, begun, min(3*time.Minute, period/4)); len(found) > 0 {
				return found
			}
		}
		scale(replicas)
		return observe(t, prometheus, firing, begun, 5*time.Second)
	})
}

// observe returns the results that a query of ALERTS has had since a time, as soon as there
// are any, or none after a period.
func observe(t *testing.T, prometheus prometheusAPI, selector string, since time.Time, period time.Duration) (found []string) {
	t.Helper()
	begin := time.Now()
	testcluster.EventuallyEvery(t, time.Second, period+time.Minute, "the time without alerts is over", func(ctx context.Context) (err error) {
		found, err = prometheus.alerts(ctx, fmt.Sprintf("count_over_time(%s[%ds])", selector, seconds(time.Since(since))))
		if passed := time.Since(begin); err == nil && len(found) == 0 && passed < period {
			err = fmt.Errorf("%s of %s", passed, period)
		}
		return err
	})
	return found
}
