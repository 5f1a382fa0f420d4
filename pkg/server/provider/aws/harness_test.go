// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"encoding/base64"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

var (
	testShard = provider.Shard{ClusterID: "test", ID: "a", Region: "us-test-1", Zone: ec2test.Zone}
	testType  = provider.InstanceType{Name: "m7i.large", CPU: resource.MustParse("2"), Memory: resource.MustParse("8Gi"), Arch: provider.ArchAMD64}
	otherType = provider.InstanceType{Name: "c7g.large", CPU: resource.MustParse("2"), Memory: resource.MustParse("4Gi"), Arch: provider.ArchAMD64}
	workers   = instance.GroupKey{Tenant: "default", Group: "workers"}
)

const (
	testImage      = "ami-0123456789abcdef0"
	largeSubnet    = "subnet-00000000000000001"
	smallSubnet    = "subnet-00000000000000002"
	rejectedSubnet = "subnet-00000000000000003"
)

// TestMain gives the SDK credentials, and nothing of the user's.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": ec2test.AccessKey, "AWS_SECRET_ACCESS_KEY": "secret",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_EC2_METADATA_DISABLED": "true",
	} {
		os.Setenv(name, value)
	}
	for _, name := range []string{"AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2"} {
		os.Unsetenv(name)
	}
	os.Exit(crashes.Main(m))
}

// newRegion returns a region that does not serve yet.
func newRegion() *ec2test.Server {
	s := ec2test.New()
	s.AddSubnet(largeSubnet, ec2test.Zone, 5000)
	s.AddSubnet(smallSubnet, ec2test.Zone, 2)
	s.AddSubnet(rejectedSubnet, ec2test.Zone, 5)
	s.Exhaust(rejectedSubnet)
	s.AddImage(ec2test.Image{ID: testImage, Owner: "123456789012", Name: "node-1", Arch: "x86_64", Created: "2026-01-01T00:00:00.000Z"})
	s.AddType(testType.Name, "x86_64")
	s.AddType(otherType.Name, "x86_64")
	return s
}

// testOptions returns the options for a region that serves.
func testOptions(s *ec2test.Server) *Options {
	return &Options{
		Endpoint: s.URL, Image: testImage,
		CommonOptions: provider.CommonOptions{InstanceTypes: provider.Catalogue{testType.Name: testType, otherType.Name: otherType}},
	}
}

// inBubble runs a test in a bubble of synctest with a region that serves in memory.
func inBubble(t *testing.T, s *ec2test.Server, test func(*testing.T, *world)) {
	synctest.Test(t, func(t *testing.T) {
		s.StartInMemory(t)
		w := &world{t: t, Server: s, options: testOptions(s)}
		w.api = w.newAPI()
		test(t, w)
	})
}

// world is a region and the calls to it.
type world struct {
	*ec2test.Server
	t       *testing.T
	options *Options
	api     *API
}

// newAPI returns the calls of another process.
func (w *world) newAPI() *API {
	w.t.Helper()
	api, err := newAPI(w.options, testShard, w.Dial)
	require.NoError(w.t, err)
	return api
}

// startProvider starts the provider of a process.
func (w *world) startProvider() *providertest.Harness {
	w.t.Helper()
	return providertest.Start(w.t, func(callContext provider.CallContextFunc) provider.Provider {
		p, err := w.options.newProvider(testShard, callContext, w.Dial)
		require.NoError(w.t, err)
		return p
	})
}

// restart replaces the provider by a provider of another process, which knows the records.
func (w *world) restart(h *providertest.Harness, records ...instance.VM) *providertest.Harness {
	w.t.Helper()
	h.Stop()
	time.Sleep(time.Millisecond)
	h = w.startProvider()
	h.Provider.(provider.Expecter).Expect(records)
	return h
}

// spec returns a request for an instance.
func spec() provider.Spec {
	return provider.Spec{
		Group: workers, Kind: "knd", Template: "worker", Type: testType, Subnet: largeSubnet,
		CreatedAt: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC), Userdata: []byte("userdata"),
	}
}

// request returns one for a new instance.
func request(t *testing.T) cloud.Request {
	t.Helper()
	r := cloud.Request{Spec: spec()}
	r.ID = providertest.NewID(t)
	r.Token, r.Userdata = r.ID, []byte("userdata of "+r.ID)
	return r
}

// launch launches a machine.
func (w *world) launch(r cloud.Request) cloud.VM {
	w.t.Helper()
	m, err := w.api.Launch(w.t.Context(), r)
	require.NoError(w.t, err)
	return m
}

// list lists the machines by id.
func (w *world) list() map[string]cloud.VM {
	w.t.Helper()
	return cloudtest.ListByID(w.t, w.api)
}

// expectMade expects that each instance had exactly one machine.
func (w *world) expectMade(ids ...string) {
	w.t.Helper()
	var made []string
	for _, i := range w.Made() {
		made = append(made, i.Tag)
	}
	assert.ElementsMatch(w.t, ids, made, "instances that were launched")
}

func errorIs(err, target error) bool { return errors.Is(err, target) }

// find finds a machine by its tag.
func (w *world) find(id string) cloud.VM {
	w.t.Helper()
	m, found, err := w.api.Find(w.t.Context(), id)
	require.NoError(w.t, err)
	require.True(w.t, found)
	return m
}

// findKnown finds a machine by its provider id.
func (w *world) findKnown(known cloud.VM) cloud.VM {
	w.t.Helper()
	m, found, err := w.api.FindKnown(w.t.Context(), known)
	require.NoError(w.t, err)
	require.True(w.t, found)
	return m
}

// newLimiter returns a limit of calls that is full.
func newLimiter(perSecond float64, burst int) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(perSecond), burst)
}

// decode decodes userdata as the service returns it.
func decode(t *testing.T, text string) []byte {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(text)
	require.NoError(t, err)
	return data
}
