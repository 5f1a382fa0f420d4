// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"errors"

	"k8s.io/client-go/tools/cache"
)

// Follow calls a handler for the objects of an informer until ctx is done. It returns
// after the calls for those that exist.
func Follow(ctx context.Context, informer cache.SharedIndexInformer, handler cache.ResourceEventHandlerFuncs) error {
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return err
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return errors.New("the informer has not synced")
	}
	return nil
}
