// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

// Terminate requests the deletion of virtual machines and their disks. It does not wait:
// lists show when they are deleted, and the caller requests a failed deletion again.
func (a *API) Terminate(ctx context.Context, list []cloud.VM) map[string]error {
	var mu sync.Mutex
	errs := map[string]error{}
	group := new(errgroup.Group)
	group.SetLimit(parallel)
	for _, vm := range list {
		group.Go(func() error {
			if err := a.terminate(ctx, vm.ID); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs[vm.ID] = err
			}
			return nil
		})
	}
	_ = group.Wait() // the errors are in the map
	return errs
}

func (a *API) terminate(ctx context.Context, id string) error {
	if _, err := puidv7.Parse(id); err != nil {
		return err
	}
	// Each call needs a new id: the same id would select the operation of a deletion that has
	// failed. The HTTP client may repeat the request, with the same id.
	requestID, err := uuid.NewRandom()
	if err != nil {
		return err
	}
	a.step("delete the machine")
	op, err := a.delete(ctx, id, requestID.String())
	switch response, ok := googleapi.AsError(err); {
	case isNotFound(err, id):
		return fmt.Errorf("%w: %w", cloud.ErrNotFound, err)
	case ok && response.Has("resourceNotReady"):
		return nil // it is being stopped or deleted, and listed until it is deleted
	case err != nil:
		return throttled(err)
	}
	a.step("return")
	if op.Status == statusDone {
		return op.failure()
	}
	return nil
}
