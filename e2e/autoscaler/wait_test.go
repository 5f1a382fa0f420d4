// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/e2e/nstance"
)

// eventually waits until check succeeds, and fails the test with check's last
// error when it does not in time.
func eventually(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	eventuallyEvery(t, 100*time.Millisecond, patience, what, check)
}

// eventuallyEvery is eventually for a check that costs more, has to be made more
// often, or may take longer.
func eventuallyEvery(t testing.TB, interval, within time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	last := errors.New("never checked")
	err := wait.PollUntilContextTimeout(context.WithoutCancel(t.Context()), interval, within, true,
		func(ctx context.Context) (bool, error) {
			err := check(ctx)
			// What was in the way before the time was over tells more.
			if err == nil || ctx.Err() == nil {
				last = err
			}
			return err == nil, nil
		})
	if err != nil {
		t.Fatalf("%s: not within %s: %v", what, within, last)
	}
}

// untilLookedAgain waits until the operator has looked at as many shard groups as
// there are, twice, and two resyncs are over: time enough for what it might do by
// itself. Other tests make it look, too.
func untilLookedAgain(t testing.TB) {
	t.Helper()
	looks := func(ctx context.Context) (float64, error) {
		return nstance.Metric(ctx, env.operator.URL(), "workqueue_adds_total", map[string]string{"name": "shardgroup"})
	}
	start, err := looks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	groups, err := env.nstance.InfrastructureV1beta1().NstanceShardGroups(nstance.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, resynced := float64(2*len(groups.Items)), time.Now().Add(2*resync)
	eventually(t, "the operator looks at the shard groups", func(ctx context.Context) error {
		now, err := looks(ctx)
		if err == nil && (now-start < want || time.Now().Before(resynced)) {
			err = fmt.Errorf("%v of %v looks, and until %v", now-start, want, resynced)
		}
		return err
	})
}

// describe lists what a failure message is about, the first of it.
func describe[T any](list []T, line func(T) string) string {
	const most = 20
	var lines strings.Builder
	for i, item := range list {
		if i == most {
			fmt.Fprintf(&lines, "\n  and %d more", len(list)-most)
			break
		}
		lines.WriteString("\n  " + line(item))
	}
	return lines.String()
}
