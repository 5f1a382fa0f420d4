// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcs

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/googleapi"
)

const (
	// maxAttempts is how many times a request is sent.
	maxAttempts = 4
	// minDelay is the shortest time between the first two, which doubles.
	minDelay = 100 * time.Millisecond
)

// transient are the statuses after which the same request may succeed.
var transient = []int{
	http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
	http.StatusServiceUnavailable, http.StatusGatewayTimeout,
}

// do makes a call, again if there is no response or the API is overloaded. It returns how many
// attempts there were: any but the last may have had an effect.
func (s *Store) do(ctx context.Context, call googleapi.Call) (response googleapi.Response, attempts int, err error) {
	delay := minDelay
	for attempts = 1; ; attempts++ {
		response, err = s.client.Do(ctx, call)
		if err == nil || attempts == maxAttempts || deadline.Check(ctx) != nil {
			return response, attempts, err
		}
		if e, ok := googleapi.AsError(err); ok && !slices.Contains(transient, e.Status) {
			return response, attempts, err
		}
		select {
		case <-ctx.Done():
			return response, attempts, err
		case <-time.After(delay + rand.N(delay)):
		}
		delay *= 2
	}
}
