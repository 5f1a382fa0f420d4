// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clientrate_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"nstance.dev/operator/pkg/server/internal/clientrate"
)

// allowed returns how many of many attempts at this moment are allowed.
func allowed(limits *clientrate.Limits, client string, limit rate.Limit, burst int) int {
	count := 0
	for range 1000 {
		if limits.Allow(client, limit, burst) {
			count++
		}
	}
	return count
}

func TestEachClientHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var limits clientrate.Limits
		assert.Equal(t, 30, allowed(&limits, "a", 1, 30))
		assert.Equal(t, 30, allowed(&limits, "b", 1, 30), "another client")
		<-time.After(2 * time.Second)
		assert.Equal(t, 2, allowed(&limits, "a", 1, 30))
		<-time.After(time.Hour)
		assert.Equal(t, 30, allowed(&limits, "a", 1, 30), "no more than at the start")
	})
}

// Another configuration applies to clients that are known.
func TestAnotherLimitIsInForceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var limits clientrate.Limits
		assert.Equal(t, 30, allowed(&limits, "a", 1, 30))
		assert.Zero(t, allowed(&limits, "a", 100, 500), "a larger limit gives nothing for the time before")
		<-time.After(2 * time.Second)
		assert.Equal(t, 200, allowed(&limits, "a", 100, 500))
		<-time.After(time.Hour)
		assert.Equal(t, 3, allowed(&limits, "a", 1, 3), "a smaller limit")
	})
}

// Many clients neither make room for a client that has reached its limit, nor stay for ever.
func TestClientsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var limits clientrate.Limits
		assert.Equal(t, 1, allowed(&limits, "busy", 1.0/7200, 1))
		for n := range 100_000 {
			require.True(t, limits.Allow(fmt.Sprint(n), 1, 1))
			if n%1000 == 0 {
				<-time.After(time.Second)
			}
		}
		assert.Less(t, clientrate.Known(&limits), 5000)
		assert.Zero(t, allowed(&limits, "busy", 1.0/7200, 1))
	})
}
