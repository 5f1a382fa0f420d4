// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage

import (
	"context"
	"time"
)

// Ended returns why ctx has ended, or nil. Unlike ctx.Err it looks at the clock
// too: in a process that was paused and goes on, ctx.Err is nil until the timer
// of ctx has had its turn. A Store calls it last before it writes.
func Ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}
