// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"crypto/ed25519"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/base/audit/audittest"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/agents/agenthealth"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// The groups of the tests. The drain timeout of workers is 5 minutes, and of nodrain zero.
var (
	workersKey = instance.GroupKey{Tenant: "default", Group: "workers"}
	otherKey   = instance.GroupKey{Tenant: "default", Group: "other"}
	noDrainKey = instance.GroupKey{Tenant: "default", Group: "nodrain"}
)

// newConfig returns the configuration of a shard with the static group nodrain.
func newConfig() *config.Config {
	return &config.Config{
		ClusterID: "test",
		Shard: config.Shard{
			ID: "a",
			Infra: config.Infra{Provider: "fake", InstanceTypes: provider.Catalogue{
				"small": {Name: "small", Arch: provider.ArchAMD64},
				"large": {Name: "large", Arch: provider.ArchAMD64},
			}},
			SubnetPools:         map[string][]string{"pool": {"subnet-1", "subnet-2"}, "second": {"subnet-3"}},
			DefaultDrainTimeout: 5 * time.Minute,
			GarbageCollection:   config.GarbageCollection{DeletedRecordRetention: time.Hour},
		},
		Templates: map[string]config.Template{
			"worker": {Kind: "knd", Arch: provider.ArchAMD64, InstanceType: "small", SubnetPool: "pool"},
		},
		Groups: map[string]map[string]config.Group{
			"default": {"nodrain": {Template: "worker", Size: new(int32(0)), DrainTimeout: new(time.Duration(0))}},
		},
	}
}

// server is the part of a shard server that the reconciler uses. Only the
// storage, the cloud and possibly the cache survive a restart.
type server struct {
	t testing.TB
	// dir contains the cache.
	dir string
	// objects contains the storage.
	objects string
	config  *config.Config
	storage storage.Store
	cloud   *cloud
	// withAgents is true if instances run agents.
	withAgents bool
	// losses are the losses that are accepted in later terms, nil to limit none.
	losses *acceptedLosses
	// targets knows the targets of load balancers; it may be nil.
	targets Targets
	// log collects the log lines of the next term; nil for the log of the process.
	log *audittest.Log
	// beforeCall is called before every call to storage or cloud, for one call at a time.
	beforeCall func()
	// calling has an entry while beforeCall is called.
	calling chan struct{}
	// unrecorded is called before instances without a record are looked up.
	unrecorded func()
	// storingID is called before each provider id is stored; it may be nil.
	storingID func()

	// agents follows the agents; nil if instances run no agents.
	agents *agenthealth.Tracker

	cache      *cache.DB
	groups     *groups.Store
	instances  *instancestore.Store
	reconciler *Reconciler
	metrics    *prometheus.Registry
	running    sync.WaitGroup
	cancel     context.CancelFunc

	mu       sync.Mutex
	events   []event
	failures []failure
	// reported are the provider ids of every group when its last change was
	// reported.
	reported map[instance.GroupKey][]string
	// shortfalls are the different shortfalls of every group when changes were reported.
	shortfalls map[instance.GroupKey][]string
}

// start runs a server in a bubble of synctest until the end of the test.
func start(t testing.TB, c *config.Config) *server {
	t.Helper()
	return startServer(t, c, false)
}

// startServer is start for instances with or without agents.
func startServer(t testing.TB, c *config.Config, agents bool) *server {
	t.Helper()
	objects := t.TempDir()
	files, err := file.Open(objects)
	require.NoError(t, err)
	s := &server{t: t, dir: t.TempDir(), objects: objects, config: c, storage: serialStorage(files), cloud: newCloud(), reported: map[instance.GroupKey][]string{}, shortfalls: map[instance.GroupKey][]string{}, withAgents: agents, calling: make(chan struct{}, 1)}
	s.lead()
	t.Cleanup(func() { s.stop() })
	return s
}

// lead begins a term with the current storage, cache and cloud.
func (s *server) lead() {
	s.t.Helper()
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	if s.log != nil {
		ctx = s.log.Context(ctx)
	}
	var err error
	s.cache, err = cache.Open(ctx, filepath.Join(s.dir, "cache.sqlite"))
	require.NoError(s.t, err)
	s.groups, err = groups.Open(ctx, nil, s.config, s.storage)
	require.NoError(s.t, err)
	options := instancestore.Options{Storage: s.storage, Cache: s.cache, Provider: s.cloud, Shard: "a", Clock: clock.RealClock{}}
	if s.withAgents {
		s.agents = s.newAgents()
		options.Agents = s.agents
	}
	s.instances, err = instancestore.Open(ctx, options)
	require.NoError(s.t, err)
	s.metrics = prometheus.NewRegistry()
	s.reconciler = New(Options{
		Groups:    s.groups,
		Instances: watchedInstances{s.instances, s},
		Provider:  s.cloud,
		Specs: provision.New(provision.Options{
			Config: s.groups.Config, Nonces: registration.NewNonceSigner(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))),
		}),
		Events:  s,
		Changed: s.reportChange,
		Failed:  s.reportFailure,
		CallContext: func(ctx context.Context) (context.Context, context.CancelFunc) {
			if s.beforeCall != nil {
				s.calling <- struct{}{}
				s.beforeCall()
				<-s.calling
			}
			return context.WithTimeout(ctx, 30*time.Second)
		},
		Metrics:    NewMetrics(s.metrics),
		Shortfalls: &Shortfalls{},
		Targets:    s.targets,
	})
	reconciler := s.reconciler
	if s.losses != nil {
		reconciler.Losses = s.losses
	}
	s.running.Go(func() { _ = s.cloud.Run(ctx, reconciler.Enqueue, s.reportFailure) })
	synctest.Wait()
	require.NoError(s.t, reconciler.Adopt(ctx))
	s.running.Go(func() { reconciler.Run(ctx) })
	if s.withAgents {
		s.running.Go(func() { s.agents.Run(ctx, s.instances) })
	}
	synctest.Wait()
}

// watchedInstances are the instances of a server.
type watchedInstances struct {
	Instances
	s *server
}

func (w watchedInstances) Unrecorded() []instance.VM {
	if w.s.unrecorded != nil {
		w.s.unrecorded()
	}
	return w.Instances.Unrecorded()
}

func (w watchedInstances) SetProviderID(ctx context.Context, id, providerID string) error {
	if w.s.storingID != nil {
		w.s.storingID()
	}
	return w.Instances.SetProviderID(ctx, id, providerID)
}

// stop stops the term.
func (s *server) stop() {
	s.cancel()
	s.running.Wait()
	assert.NoError(s.t, s.cache.Close())
}

// loseCache deletes the cache of a server that does not lead.
func (s *server) loseCache() {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(filepath.Join(s.dir, "cache.sqlite"+suffix))
	}
}

// reconfigure activates another configuration and waits until the reconciler is
// idle.
func (s *server) reconfigure(change func(*config.Config)) {
	s.t.Helper()
	s.config = newConfig()
	change(s.config)
	require.NoError(s.t, s.groups.Reconfigure(s.t.Context(), s.config))
	for _, key := range s.groups.Keys() {
		s.reconciler.Enqueue(key)
	}
	synctest.Wait()
}

// scale sets the size of a group and waits until the reconciler is idle.
func (s *server) scale(key instance.GroupKey, size int) {
	s.t.Helper()
	_, _, err := s.groups.Upsert(s.t.Context(), key, sizeOf(size))
	require.NoError(s.t, err)
	s.reconcile(key)
}

// remove deletes a group.
func (s *server) remove(key instance.GroupKey) {
	s.t.Helper()
	_, err := s.groups.Delete(s.t.Context(), key, nil)
	require.NoError(s.t, err)
	s.reconcile(key)
}

// reconcile enqueues a group and waits until the reconciler is idle.
func (s *server) reconcile(key instance.GroupKey) {
	s.reconciler.Enqueue(key)
	synctest.Wait()
}

// settle lets the cloud finish its work until nothing is left.
func (s *server) settle() {
	for range 20 {
		s.cloud.settle()
		synctest.Wait()
	}
}

// run sets the size of a group and starts its instances.
func (s *server) run(key instance.GroupKey, size int) []string {
	s.t.Helper()
	s.scale(key, size)
	s.settle()
	ids := s.cloud.ids(key)
	require.Len(s.t, ids, size, "instances of group %s", key)
	s.cloud.takeCalls()
	s.takeEvents()
	return ids
}

// pass lets time pass, and waits until the reconciler is idle.
func (s *server) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// onDemand stores the record of an on-demand instance, as CreateInstance does.
func (s *server) onDemand(key instance.GroupKey, change func(*instance.Record)) string {
	s.t.Helper()
	id, err := puidv7.New("knd")
	require.NoError(s.t, err)
	record := instance.Record{ID: id.String(), Tenant: key.Tenant, Group: key.Group, OnDemand: true, CreatedAt: time.Now()}
	change(&record)
	require.NoError(s.t, s.instances.Add(s.t.Context(), record))
	s.reconcile(key)
	return record.ID
}

// acknowledge reports a finished drain, as an operator does.
func (s *server) acknowledge(key instance.GroupKey, id string) {
	s.t.Helper()
	require.NoError(s.t, s.instances.Acknowledge(s.t.Context(), id))
	s.reconcile(key)
}

// sizeOf returns an operator's request for a size.
func sizeOf(size int) groups.Change {
	return groups.Change{Settings: groups.Settings{Template: "worker"}, Size: int32(size)}
}

// event is an event for operators.
type event struct {
	status string
	id     string
	reason string
	at     time.Time
}

// failure is a failure that the reconciler reported.
type failure struct {
	group instance.GroupKey
	id    string
	text  string
}

func (s *server) Draining(i instance.Instance) { s.record("draining", &i, i.Drain.Reason) }
func (s *server) Deleting(i instance.Instance) { s.record("deleting", &i, i.DeleteReason) }
func (s *server) Deleted(i instance.Instance)  { s.record("deleted", &i, i.DeleteReason) }

func (s *server) record(status string, i *instance.Instance, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event{status, i.ID, reason, time.Now()})
}

func (s *server) reportChange(key instance.GroupKey) {
	var ids []string
	for _, i := range s.instances.List(key) {
		ids = append(ids, i.ProviderID)
	}
	shortfall := s.shortfallOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reported[key] = ids
	if before := s.shortfalls[key]; len(before) == 0 || before[len(before)-1] != shortfall {
		s.shortfalls[key] = append(before, shortfall)
	}
}

func (s *server) reportFailure(group instance.GroupKey, id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, failure{group, id, err.Error()})
}

// takeEvents returns the events since its last call, as status, id and reason.
func (s *server) takeEvents() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []string
	for _, e := range s.events {
		events = append(events, e.status+" "+e.id+" "+e.reason)
	}
	s.events = nil
	return events
}

func (s *server) takeFailures() []failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	failures := s.failures
	s.failures = nil
	return failures
}

// want compares the events since the last call.
func (s *server) want(events ...string) {
	s.t.Helper()
	assert.Equal(s.t, events, s.takeEvents(), "reported")
}

// wantCalls compares the calls to the cloud since the last call.
func (s *server) wantCalls(calls ...string) {
	s.t.Helper()
	assert.Equal(s.t, calls, describeCalls(s.cloud.takeCalls()), "called")
}
