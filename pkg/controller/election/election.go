// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package election elects a leader among the replicas of an operator, and fences what a
// former leader does.
package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// ErrLost makes the process exit, because another one may be the leader.
var ErrLost = errors.New("leader election lost")

// Lead runs work while this process is the leader, and returns when ctx is done. It
// stops work first and waits for it, so that the Lease is released only when nothing
// of ours runs any more. When the Lease is lost, or seen to be another's, Lead returns
// at once without waiting, and the process must exit.
func Lead(ctx context.Context, lock *Lease, watchdog *leaderelection.HealthzAdaptor, work func(context.Context) error) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "identity", lock.Identity())

	started, stopped := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name:          lock.name,
		Lock:          lock,
		LeaseDuration: lock.timing.LeaseDuration,
		RenewDeadline: lock.timing.RenewDeadline,
		RetryPeriod:   lock.timing.RetryPeriod,
		// ReleaseOnCancel would also release a Lease that could not be renewed, and call
		// OnStoppedLeading only after that attempt. Until then work would run beside the
		// next leader's.
		ReleaseOnCancel: false,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(started) },
			OnStoppedLeading: func() { close(stopped) },
			OnNewLeader: func(leader string) {
				logger.Info("Leader elected", "leader", leader, "self", leader == lock.Identity())
			},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the leader election: %w", err)
	}

	watchdog.SetLeaderElection(elector)

	// The elector outlives ctx, because it is stopped last.
	electorCtx, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	go elector.Run(electorCtx)

	select {
	case <-started:
	case <-stopped:
		return ErrLost
	case <-lock.restored:
		return ErrRestored
	case <-ctx.Done():
		resign()
		<-stopped
		release(electorCtx, lock, lock.timing.RenewDeadline)
		return nil
	}

	workCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	finished := make(chan error, 1)
	go func() { finished <- work(workCtx) }()

	select {
	case <-stopped:
		return ErrLost
	case <-lock.lost:
		return ErrLost
	case <-lock.restored:
		return ErrRestored
	case err = <-finished:
	}
	resign()
	<-stopped
	release(electorCtx, lock, lock.timing.RenewDeadline)
	return err
}

// release releases the Lease if this process is its holder, so that a standby need not
// wait until it expires. Nothing else may use lock any more.
func release(ctx context.Context, lock resourcelock.Interface, timeout time.Duration) {
	logger := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	record, _, err := lock.Get(ctx)
	if err != nil {
		if !apierrors.IsNotFound(err) {
			logger.Error(err, "Cannot read the Lease, it will expire", "lease", lock.Describe())
		}
		return
	}
	if record.HolderIdentity != lock.Identity() {
		return
	}
	now := metav1.Now()
	err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaseDurationSeconds: 1,
		AcquireTime:          now,
		RenewTime:            now,
		LeaderTransitions:    record.LeaderTransitions,
	})
	if err != nil {
		logger.Error(err, "Cannot release the Lease, it will expire", "lease", lock.Describe())
	}
}
