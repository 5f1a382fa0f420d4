// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllertest

import (
	"context"
	"fmt"
	"path"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/controller"
)

// Enqueued returns the names of the keys that change enqueues, and when, sorted, as
// "workers at 1s". It replaces queue, which is that of the controller.
func Enqueued[Key comparable](t *testing.T, queue **controller.Queue[Key], change func()) []string {
	t.Helper()
	var enqueued []string
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		*queue = controller.NewQueue("test", func(_ context.Context, key Key) (time.Duration, error) {
			enqueued = append(enqueued, fmt.Sprintf("%s at %s", path.Base(fmt.Sprint(key)), time.Since(start)))
			return 0, nil
		})
		change()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		(*queue).Run(ctx, 1)
	})
	slices.Sort(enqueued)
	return enqueued
}
