// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import "k8s.io/client-go/tools/cache"

// backgroundInformer is an informer of the workload cluster. The operator starts before its
// cache is complete, so that sizes are also changed while that cluster is not reachable.
// HasSynced of the informer is as without it.
type backgroundInformer struct {
	cache.SharedIndexInformer
}

// AddEventHandler adds a handler that the operator does not wait for.
func (i backgroundInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := i.SharedIndexInformer.AddEventHandler(handler)
	if err != nil {
		return nil, err
	}
	return backgroundRegistration{registration}, nil
}

// backgroundRegistration is a registration that counts as synced from the start.
type backgroundRegistration struct {
	cache.ResourceEventHandlerRegistration
}

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (backgroundRegistration) HasSynced() bool { return true }

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (r backgroundRegistration) HasSyncedChecker() cache.DoneChecker {
	return done(r.ResourceEventHandlerRegistration.HasSyncedChecker().Name())
}

// done is the name of something that is done.
type done string

// Name implements cache.DoneChecker.
func (d done) Name() string { return string(d) }

// Done implements cache.DoneChecker.
func (done) Done() <-chan struct{} {
	closed := make(chan struct{})
	close(closed)
	return closed
}
