// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package election

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// fixedCache is a cache as of a resource version.
type fixedCache struct {
	cache.SharedIndexInformer
	version string
}

func (c fixedCache) LastSyncResourceVersion() string { return c.version }

func TestCachesMustNotBeNewerThanTheAPIServer(t *testing.T) {
	for name, test := range map[string]struct {
		cached, live string
		err          error
		failure      error
	}{
		"the same":                      {cached: "7", live: "7"},
		"an older cache":                {cached: "7", live: "10"},
		"the API server was restored":   {cached: "10", live: "7", err: ErrRestored},
		"the API server does not reply": {cached: "10", failure: assert.AnError, err: assert.AnError},
	} {
		t.Run(name, func(t *testing.T) {
			var options metav1.ListOptions
			err := CheckNotRestored(t.Context(), []CachedKind{{
				Name: "Nodes", Cache: fixedCache{version: test.cached},
				List: func(_ context.Context, o metav1.ListOptions) (metav1.ListInterface, error) {
					options = o
					return &metav1.ListMeta{ResourceVersion: test.live}, test.failure
				},
			}})
			assert.ErrorIs(t, err, test.err)
			// An older state would be as good as the cache with any resource version.
			assert.Equal(t, metav1.ListOptions{Limit: 1}, options)
		})
	}
}
