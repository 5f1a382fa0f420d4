// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestTargetsWhileTheConfigurationChanges: an edit of the load balancers in the configuration
// of a server that runs makes a call for each target that it adds or removes, and none for
// the others. Neither does a server that starts with it.
func TestTargetsWhileTheConfigurationChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		balancers := providertest.NewBalancers("web", "api")
		balancers.Delay = 30 * time.Second
		var mu sync.Mutex
		calls := map[string]int{}
		balancers.Called = func(operation, endpoint string, ids []string) error {
			mu.Lock()
			defer mu.Unlock()
			if operation != "list" {
				calls[operation+" "+endpoint] += len(ids)
			}
			return nil
		}
		o := balanced(balancers)
		o.Kubernetes = kwoktest.NewClientset()
		s := servertest.Start(t, o)
		upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3})
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, map[string]int{"register web": 3}, calls)
		entries, list := o.LoadBalancers, `["web"]`
		for n, step := range []struct {
			entries, list string
			want          map[string]int
		}{
			{`{"web": {"endpoint": "web"}, "api": {"endpoint": "api"}}`, `["web", "api"]`, map[string]int{"register api": 3}},
			{`{"both": {"endpoint": "api", "other_endpoints": ["web"]}}`, `["both"]`, map[string]int{}},
			{`{"both": {"endpoint": "api", "other_endpoints": ["web"]}, "web": {"endpoint": "web"}}`, `["web"]`, map[string]int{"deregister api": 3}},
			{`{"web": {"endpoint": "web", "other_endpoints": ["api"]}}`, `["web"]`, map[string]int{"register api": 3}},
			{`{"api": {"endpoint": "api"}, "web": {"endpoint": "web"}}`, `["api"]`, map[string]int{"deregister web": 3}},
			{`{"web": {"endpoint": "web"}}`, `["web"]`, map[string]int{"deregister api": 3, "register web": 3}},
		} {
			mu.Lock()
			clear(calls)
			mu.Unlock()
			text, err := os.ReadFile(s.ConfigPath())
			require.NoError(t, err)
			// The server reads the file every second.
			text = []byte(strings.NewReplacer(entries, step.entries, list, step.list).Replace(string(text)))
			require.NoError(t, os.WriteFile(s.ConfigPath(), text, 0o600))
			o.Templates, o.LoadBalancers = strings.Replace(o.Templates, list, step.list, 1), step.entries
			entries, list = step.entries, step.list
			time.Sleep(5 * time.Second)
			if n%2 == 0 {
				s.Kill()
				o.DataDir, o.Authority = s.DataDir, s.Authority
				s = servertest.Start(t, o)
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			assert.Equal(t, step.want, calls, "step %d", n)
		}
		s.Stop()
	})
}
