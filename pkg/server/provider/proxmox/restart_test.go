// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/proxmox"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// inMemory are options for a cluster in memory.
type inMemory struct {
	*proxmox.Options
	cluster *pvetest.Server
}

func (o inMemory) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	return o.NewProviderIn(o.cluster, shard, callContext)
}

// hostMachines is how many machines the host has that is restarted.
const hostMachines = 30

// TestAServerWhoseHostRestarts: a whole server terminates and replaces no machine of a host that
// restarts, however slowly the host starts them within restart_grace, and launches a machine of
// another group meanwhile as fast as before.
func TestAServerWhoseHostRestarts(t *testing.T) {
	for name, between := range map[string]time.Duration{"fast": 2 * time.Second, "slow": 9 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testAHostThatRestarts(t, between) })
		})
	}
}

func testAHostThatRestarts(t *testing.T, between time.Duration) {
	cluster := pvetest.New("pve1", "pve2")
	cluster.AddTemplate(9000, "pve1", "debian", "ceph", 4)
	cluster.StartInMemory(t)
	options := inMemory{proxmox.OptionsOf(cluster), cluster}
	s := servertest.Start(t, servertest.Options{
		InMemory: true, SubnetPools: `{"default": ["subnet"]}`,
		Templates: `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "small", "subnet_pool": "default", "tenants": ["*"]}}`,
		Providers: provider.Registry{kwoktest.Name: func(*jsonc.Object) provider.Options { return options }},
	})
	scale := func(group string, size int32) {
		_, err := s.Operator("default").UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: group, Config: &nstancev1.GroupConfig{Template: "worker", Size: size}})
		require.NoError(t, err)
	}
	// started returns how long it takes until some machines have been started.
	started := func(machines int) time.Duration {
		began := time.Now()
		for len(cluster.Started()) < machines {
			require.Less(t, time.Since(began), time.Hour, "%d machines were started", len(cluster.Started()))
			time.Sleep(time.Second)
		}
		return time.Since(began)
	}

	// All machines but the last are on pve2.
	cluster.SetLoad("pve1", 60<<30, 1)
	scale("first", 1)
	usual := started(1)
	scale("workers", hostMachines-1)
	started(hostMachines)
	cluster.SetLoad("pve1", 0, 0)
	time.Sleep(5 * time.Minute)
	vmids := cluster.VMs("")
	require.Len(t, vmids, hostMachines)
	require.Len(t, cluster.Made(), hostMachines, "machines that were made, the last launches after more than a minute")
	for _, vmid := range vmids {
		node, status := cluster.Status(vmid)
		require.Equal(t, "pve2 running", node+" "+status)
	}
	cluster.Calls()

	cluster.SetOnline("pve2", false)
	time.Sleep(3 * time.Minute)
	for _, vmid := range vmids {
		cluster.SetStatus(vmid, "stopped")
	}
	cluster.SetOnline("pve2", true)
	for n, vmid := range vmids {
		time.Sleep(between)
		if n == hostMachines/2 {
			scale("other", 1)
			assert.LessOrEqual(t, started(hostMachines+1), usual+15*time.Second, "a launch of another group while a host restarts")
		}
		cluster.SetStatus(vmid, "running")
	}
	time.Sleep(time.Hour)
	for call, count := range cluster.Calls() {
		if strings.HasPrefix(call, "DELETE") && strings.Contains(call, "/qemu/") || strings.HasSuffix(call, "/status/stop") {
			t.Errorf("%d calls %s", count, call)
		}
	}
	assert.Len(t, cluster.Made(), hostMachines+1, "machines that were ever made")
	assert.Subset(t, cluster.VMs(""), vmids)
	s.Stop()
}
