// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// tokenEnv has the API token in tests.
const tokenEnv = "NSTANCE_TEST_PROXMOX_TOKEN"

var (
	testShard = provider.Shard{ClusterID: "test", ID: "a", Region: "region", Zone: "zone"}
	testType  = provider.InstanceType{Name: "small", CPU: resource.MustParse("2"), Memory: resource.MustParse("1Gi"), Arch: provider.ArchAMD64}
	largeType = provider.InstanceType{Name: "large", CPU: resource.MustParse("4"), Memory: resource.MustParse("4Gi"), Arch: provider.ArchAMD64}
	workers   = instance.GroupKey{Tenant: "default", Group: "workers"}
)

// newCluster returns a cluster that does not serve yet. It has two nodes. One of them has the
// template "debian" on a shared storage.
func newCluster() *pvetest.Server {
	s := pvetest.New("pve1", "pve2")
	s.AddStorage("full", 0)
	s.AddTemplate(9000, "pve1", "debian", "ceph", 4)
	return s
}

// testOptions returns the options for a cluster that serves.
func testOptions(s *pvetest.Server) *Options {
	return &Options{
		Connection: Connection{Endpoints: []string{s.URL}, TokenEnv: tokenEnv, Fingerprints: []string{s.Fingerprint}},
		Nodes:      []string{"pve1", "pve2"},
		Image:      Image{Template: "debian"},
		FullClone:  true,
		ISOStorage: "local", MemoryCommit: 100,
		Subnets: map[string]Subnet{
			"subnet": {Bridge: "vmbr0", Storage: "ceph"},
			"two":    {Bridge: "vmbr0", Storage: "ceph", Instances: ptr.To[int32](2)},
			"full":   {Bridge: "vmbr0", Storage: "full"},
			"off":    {Bridge: "vmbr9", Storage: "ceph"},
		},
		CommonOptions: provider.CommonOptions{InstanceTypes: provider.Catalogue{testType.Name: testType, largeType.Name: largeType}},
	}
}

// inBubble runs a test in a bubble of synctest with a cluster that serves in memory.
func inBubble(t *testing.T, s *pvetest.Server, test func(*testing.T, *world)) {
	synctest.Test(t, func(t *testing.T) {
		s.StartInMemory(t)
		w := &world{t: t, Server: s, options: testOptions(s)}
		w.api = w.newAPI(testShard)
		test(t, w)
	})
}

// world is a cluster and the calls to it.
type world struct {
	*pvetest.Server
	t       *testing.T
	options *Options
	api     *API
}

// newAPI returns the calls of another process.
func (w *world) newAPI(shard provider.Shard) *API {
	w.t.Helper()
	api, err := newAPI(w.options, shard, w.Dial)
	require.NoError(w.t, err)
	return api
}

// request returns one for a new instance.
func request(t *testing.T) cloud.Request {
	t.Helper()
	return cloudtest.NewRequest(t, testType, "subnet")
}

// launch launches a machine with as many calls as that takes.
func (w *world) launch(r cloud.Request) cloud.VM {
	w.t.Helper()
	for {
		m, err := w.api.Launch(w.t.Context(), r)
		if !assert.ObjectsAreEqual(nil, err) && isInProgress(err) {
			time.Sleep(time.Second)
			continue
		}
		require.NoError(w.t, err)
		return m
	}
}

// list lists the machines by id.
func (w *world) list() map[string]cloud.VM {
	w.t.Helper()
	return cloudtest.ListByID(w.t, w.api)
}

// vmid returns the only virtual machine of an instance.
func (w *world) vmid(id string) int {
	w.t.Helper()
	vmids := w.VMs(id)
	require.Len(w.t, vmids, 1, "virtual machines of instance %s", id)
	return vmids[0]
}

// started returns the instances whose virtual machines exist and were started: before, they
// are a part of a launch.
func started(s *pvetest.Server) []string {
	var ids []string
	for _, started := range s.Started() {
		if slices.Contains(s.VMs(started.Name), started.VMID) && !slices.Contains(ids, started.Name) {
			ids = append(ids, started.Name)
		}
	}
	return ids
}
