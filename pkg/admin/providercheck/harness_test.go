// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/admin"
	"nstance.dev/operator/pkg/admin/providercheck"
	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// steps are all steps of a check that finds an instance of an earlier one.
var steps = []string{
	"list the instances",
	"remove what an earlier check has left",
	"read the room of the subnet",
	"create an instance",
	"wait until it runs",
	"list it as another process does",
	"find it by its id",
	"terminate it",
	"confirm as another process that it does not exist",
}

const cleanup = "remove what the check has created"

// shardConfig is the configuration of the shard, with one template.
const shardConfig = `{
	"cluster": {"id": "prod", "secrets": {"encryption_key": {"env": "NSTANCE_ENCRYPTION_KEY"}}},
	"shard": {
		"id": "a",
		"infra": {"provider": "fake", "region": "region", "zone": "zone"},
		"bind": {"health_addr": ":1", "election_addr": ":2", "registration_addr": ":3", "operator_addr": ":4"},
		"subnet_pools": {"default": ["subnet", "small"]},
	},
	"templates": {"worker": {
		"kind": "knd", "arch": "amd64", "instance_type": "large", "subnet_pool": "default",
		"args": {"name": "{{.Instance.ID}} {{.Vars.a}}"}, "vars": {"a": "b"},
		"userdata": "{{.Instance.ID}} {{.Nonce}} a secret",
	}},
}`

// serverShard is the shard of a server with that configuration.
var serverShard = provider.Shard{ClusterID: "prod", ID: "a", Region: "region", Zone: "zone"}

// fakeOptions are the options of the provider "fake", whose VMs are in a cloud in memory.
type fakeOptions struct{ *world }

func (fakeOptions) Validate(*field.Path, sets.Set[string]) field.ErrorList   { return nil }
func (fakeOptions) ValidateArgs(*field.Path, map[string]any) field.ErrorList { return nil }
func (fakeOptions) ImmutableFields(*field.Path) []provider.ImmutableField    { return nil }
func (o fakeOptions) Catalogue() provider.Catalogue                          { return o.types }
func (o fakeOptions) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	if o.ignoreShard {
		shard = serverShard
	}
	api := &mortal{API: o.faults.Wrap(o.cloud.API(shard)), world: o.world}
	return balanced{cloud.New(api, cloud.Options{CallContext: callContext}), o.balancers}, nil
}

// Examine implements provider.Examiner.
func (o fakeOptions) Examine(shard provider.Shard) (provider.Examination, error) {
	e := provider.Examination{CleanUp: o.removeThings}
	for _, question := range o.questions {
		e.Assumptions = append(e.Assumptions, provider.Assumption{
			Subject: question.subject, Question: question.name, Expected: "what is expected", Source: question.source,
			Ask: func(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
				if o.dead.Load() {
					return provider.Answer{}, errKilled
				}
				return question.ask(ctx, &mortal{API: o.faults.Wrap(o.cloud.API(shard)), world: o.world}, t)
			},
		})
	}
	return e, nil
}

// removeThings removes what questions have created apart from instances.
func (w *world) removeThings(context.Context) ([]string, error) {
	if w.dead.Load() {
		return nil, errKilled
	}
	removed := w.things
	w.things = nil
	return removed, nil
}

// ReadLoadBalancer implements provider.LoadBalancerOptions.
func (fakeOptions) ReadLoadBalancer(o *jsonc.Object) provider.LoadBalancerSettings {
	return providertest.BalancerOptions{}.ReadLoadBalancer(o)
}

// balanced is a provider with load balancers.
type balanced struct {
	*cloud.Provider
	*providertest.Balancers
}

// mortal are the calls of a process that may be killed: then they have no effect.
type mortal struct {
	cloud.API
	*world
}

var errKilled = errors.New("the process was killed")

func (m *mortal) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	if m.dead.Load() {
		return cloud.VM{}, errKilled
	}
	m.requests = append(m.requests, r)
	launched, err := m.API.Launch(ctx, r)
	if m.dieInLaunch {
		m.dead.Store(true)
		return cloud.VM{}, errKilled
	}
	return launched, err
}

func (m *mortal) Terminate(ctx context.Context, list []cloud.VM) map[string]error {
	if m.dead.Load() {
		errs := map[string]error{}
		for _, vm := range list {
			errs[vm.ID] = errKilled
		}
		return errs
	}
	return m.API.Terminate(ctx, list)
}

func (m *mortal) List(ctx context.Context) ([]cloud.VM, error) {
	if m.dead.Load() {
		return nil, errKilled
	}
	return m.API.List(ctx)
}

func (m *mortal) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	if m.dead.Load() {
		return cloud.VM{}, false, errKilled
	}
	return m.API.Find(ctx, id)
}

// world is a cloud with the machine of a server, and the output of the last check.
type world struct {
	t      *testing.T
	cloud  *cloudtest.Cloud
	faults *cloudtest.Faults
	types  provider.Catalogue
	// balancers are web and api.
	balancers *providertest.Balancers
	// ignoreShard is true of a provider that knows one shard only.
	ignoreShard bool
	// dead is true once the process is killed, and dieInLaunch if the next launch does it.
	dead        atomic.Bool
	dieInLaunch bool
	// timer kills the process.
	timer *time.Timer
	// requests are the requests of all checks.
	requests []cloud.Request
	// at has what happens when a step begins.
	at map[string]func()
	// questions are what the check asks, and things what they have created apart from instances.
	questions []question
	things    []string
	// config replaces the configuration.
	config string
	// server is the instance of the server.
	server string
	output strings.Builder
}

// question is a question about the cloud in memory.
type question struct {
	subject, name, source string
	ask                   func(ctx context.Context, api cloud.API, t *provider.Trial) (provider.Answer, error)
}

// inBubble runs a test on a fake clock, with an instance of a server.
func inBubble(t *testing.T, test func(*testing.T, *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, cloud: cloudtest.NewCloud(), faults: cloudtest.NewFaults(), at: map[string]func(){}, config: shardConfig,
			balancers: providertest.NewBalancers("web", "api"),
			types: provider.Catalogue{
				"large": {Name: "large", Arch: "amd64", CPU: resource.MustParse("8"), Memory: resource.MustParse("8Gi")},
				"small": {Name: "small", Arch: "amd64", CPU: resource.MustParse("2"), Memory: resource.MustParse("2Gi")},
				"less":  {Name: "less", Arch: "amd64", CPU: resource.MustParse("2"), Memory: resource.MustParse("1Gi")},
				"none":  {Name: "none", Arch: "amd64", CPU: resource.MustParse("1"), Memory: resource.MustParse("1Gi"), Quota: new(int32)},
				"arm":   {Name: "arm", Arch: "arm64", CPU: resource.MustParse("1"), Memory: resource.MustParse("1Gi")},
			},
		}
		w.faults.DelayVisibility(10 * time.Second)
		w.server = w.launch(serverShard, instance.GroupKey{Tenant: "default", Group: "workers"})
		test(t, w)
		assert.Contains(t, w.cloud.Existing(), w.server, "instances that exist, with that of the server")
		assert.NotContains(t, w.cloud.Terminated(), w.server, "terminated instances")
	})
}

// launch creates an instance of a shard.
func (w *world) launch(shard provider.Shard, group instance.GroupKey) string {
	w.t.Helper()
	id := providertest.NewID(w.t)
	_, err := w.cloud.API(shard).Launch(w.t.Context(), cloud.Request{Token: id, Spec: provider.Spec{ID: id, Group: group, Subnet: "subnet"}})
	require.NoError(w.t, err)
	return id
}

// leave creates an instance as a check leaves it that was killed.
func (w *world) leave() string {
	return w.launch(provider.Shard{ClusterID: "check--prod", ID: "a", Region: "region", Zone: "zone"},
		instance.GroupKey{Tenant: "check--tenant", Group: "check--group"})
}

// Write is the standard output of the command.
func (w *world) Write(data []byte) (int, error) {
	w.output.Write(data)
	step, isBegin := strings.CutSuffix(string(data), " ... ")
	if do := w.at[step]; isBegin && do != nil {
		delete(w.at, step)
		do()
	}
	return len(data), nil
}

// check runs the command and returns its exit code.
func (w *world) check(ctx context.Context, args ...string) (code int) {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "shard.jsonc")
	require.NoError(w.t, os.WriteFile(path, []byte(w.config), 0o600))
	w.output.Reset()
	command := providercheck.NewCommand(provider.Registry{"fake": func(o *jsonc.Object) provider.Options { //nolint:contextcheck // ctx is that of the command
		o.Finish()
		return fakeOptions{w}
	}})
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetOut(w)
	command.SetArgs(append([]string{"--config", path}, args...))
	err := command.ExecuteContext(klog.NewContext(ctx, logr.Discard()))
	if err != nil {
		w.output.WriteString(err.Error())
	}
	return admin.ExitCode(err)
}

// expectOnlyServer expects that no instance of a check exists.
func (w *world) expectOnlyServer() {
	w.t.Helper()
	time.Sleep(w.cloud.StopTime)
	assert.Equal(w.t, []string{w.server}, w.cloud.Existing(), "instances that exist after:\n%s", w.output.String())
}

// begun returns the steps that have begun, in order.
func (w *world) begun() []string {
	var names []string
	for line := range strings.Lines(w.output.String()) {
		if step, _, isStep := strings.Cut(line, " ... "); isStep {
			names = append(names, step)
		}
	}
	return names
}
