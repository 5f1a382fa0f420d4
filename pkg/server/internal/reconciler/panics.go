// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"k8s.io/klog/v2"
)

var errPanic = errors.New("the shard server has panicked, its log has the details")

// protect calls do, and returns an error if that panics. A fault that one group or one
// instance triggers must not end the process, and then that of the next leader, which
// does the same: no group of the shard would be reconciled any more. What do has
// written is durable, and what it has left out is planned again, as after a crash.
func (r *Reconciler) protect(ctx context.Context, do func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			r.Metrics.panics.Inc()
			klog.FromContext(ctx).Error(nil, "Reconciliation panicked", "panic", cause, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", errPanic, cause)
		}
	}()
	return do()
}
