// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/provider/qemu/testguest"
)

func TestConformance(t *testing.T) {
	needPrograms(t)
	providertest.TestRemote(t, providertest.Config{
		// Machines need little of this machine, and most of the time is waiting.
		Run: func(t *testing.T, test func(*testing.T)) {
			t.Parallel()
			test(t)
		},
		NewBackend:     newBackend,
		Type:           testType,
		OtherType:      largeType,
		Subnet:         "subnet",
		LimitedSubnet:  "two",
		RejectedSubnet: "unplugged",
		QuietPeriod:    2 * time.Second,
	})
}

// newBackend returns a host without machines.
func newBackend(t *testing.T) providertest.Backend {
	options := testOptions(t, deafGuest)
	return &cloudtest.Backend{
		Faults: cloudtest.NewFaults(),
		New: func(shard provider.Shard, callContext provider.CallContextFunc, wrap func(cloud.API) cloud.API) provider.Provider {
			api := NewAPI(options, shard)
			api.limits.PollInterval, api.limits.IdleInterval = 100*time.Millisecond, 200*time.Millisecond
			return cloud.New(wrap(api), cloud.Options{CallContext: callContext, ExpectedNode: expectedNode(shard)})
		},
		Existing: func() []string {
			var ids []string
			for _, f := range allFolders(t, options.Dir) {
				ids = append(ids, f.id)
			}
			return ids
		},
		Remove: func(id string) {
			for _, f := range allFolders(t, options.Dir) {
				if f.id == id {
					destroy(t, f)
				}
			}
		},
	}
}

// TestDocumentedMetadata: the table of docs/providers.md has what an instance stores, and no
// more.
func TestDocumentedMetadata(t *testing.T) {
	names := providertest.JSONNames(t, newIdentity(testShard, providertest.MetadataSpec(t)))
	assert.Equal(t, providertest.DocumentedMetadata(t, Name), names)
}

// guestTimeout is much longer than Linux takes to boot without hardware support.
const guestTimeout = 2 * time.Minute

// linux returns the options of machines that boot Linux, and a request for one.
func linux(t *testing.T, userdata string) (*API, cloud.Request) {
	t.Helper()
	options, r := testOptions(t, deafGuest), request(t)
	kernel, initrd := testguest.Build(t, nil)
	options.Boot = Boot{Kernel: kernel, Initrd: initrd, Append: testguest.Append}
	options.ShutdownGrace = 24 * time.Hour
	r.Type.Memory, r.Userdata = resource.MustParse("192Mi"), []byte(userdata)
	return NewAPI(options, testShard), r
}

func TestGuest(t *testing.T) {
	reports := make(chan map[string]string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var report map[string]string
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&report))
		reports <- report
	}))
	defer server.Close()
	host, err := url.Parse(server.URL)
	require.NoError(t, err)
	// 3 KB are more than the usual userdata.
	userdata := fmt.Sprintf("REPORT_URL=http://10.0.2.2:%s/\nTEXT=\u00e4%s", host.Port(), strings.Repeat("x", 3000))
	api, r := linux(t, userdata)

	start := time.Now()
	f := launchOne(t, api, r)
	var report map[string]string
	select {
	case report = <-reports:
	case <-time.After(guestTimeout):
		serial, _ := os.ReadFile(f.file(serialFile))
		t.Fatalf("the guest did not report:\n%s", serial)
	}
	t.Logf("the guest reported after %v", time.Since(start))
	assert.Equal(t, userdata, report["smbios"])
	assert.Equal(t, userdata, report["user-data"])
	assert.JSONEq(t, fmt.Sprintf(`{"instance-id": %q, "local-hostname": %q}`, r.ID, r.ID), report["meta-data"])
	assert.Equal(t, "ds=nocloud", report["product_serial"])
	assert.Equal(t, instance.Running, find(t, api, f).State)

	// It shuts down when its power button is pressed.
	require.Empty(t, api.Terminate(t.Context(), []cloud.VM{{ID: r.ID}}))
	awaitNothing(t, api)
}

func TestGuestPanics(t *testing.T) {
	api, r := linux(t, "PANIC=1")
	f := launchOne(t, api, r)
	for deadline := time.Now().Add(guestTimeout); find(t, api, f).State == instance.Running && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
	}
	m := find(t, api, f)
	assert.Equal(t, instance.Failed, m.State)
	assert.Contains(t, m.Reason, "panicked")
	require.Empty(t, api.Terminate(t.Context(), []cloud.VM{m}))
	awaitNothing(t, api)
}
