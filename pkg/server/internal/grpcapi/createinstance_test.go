// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// createRequest returns a request for an instance of a group.
func createRequest(group string) *nstancev1.CreateInstanceRequest {
	return &nstancev1.CreateInstanceRequest{Config: &nstancev1.InstanceConfig{Group: group}}
}

// create creates an instance, which must succeed, and returns its record.
func (s *service) create(request *nstancev1.CreateInstanceRequest) instance.Record {
	s.t.Helper()
	response, err := s.CreateInstance(s.ctx(), request)
	require.NoError(s.t, err)
	i, known := s.Instances.Get(response.InstanceId)
	if !known || response.Status != instanceStatus(&i) {
		s.t.Fatalf("the response is %v for %+v", response, i)
	}
	return i.Record
}

// records returns the number of records in the storage.
func (s *service) records() int {
	s.t.Helper()
	infos, err := s.storage.List(s.t.Context(), storage.InstancePrefix("us-west-2a"))
	require.NoError(s.t, err)
	return len(infos)
}

func TestCreateInstance(t *testing.T) {
	s := newService(t)
	request := createRequest("plain")
	request.IdempotencyKey = "a key"
	request.Config.InstanceType, request.Config.SubnetPool = "c7i.large", "open"
	request.Config.Vars = map[string]string{"a": "b"}
	record := s.create(request)
	id, err := puidv7.Parse(record.ID)
	if err != nil || id.Prefix != "knd" {
		t.Errorf("the id is %s: %v", record.ID, err)
	}
	group, _ := s.Store.Get(record.Key())
	want := instance.Record{
		ID: record.ID, Tenant: "default", Group: "plain", OnDemand: true, IdempotencyKey: "a key",
		InstanceType: "c7i.large", SubnetPool: "open", Vars: map[string]string{"a": "b"},
		InfraConfigHash: group.InfraConfigHash, CreatedAt: record.CreatedAt,
	}
	if diff := cmp.Diff(want, record); diff != "" || record.CreatedAt.IsZero() || record.InfraConfigHash == "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if changed := s.takeChanged(); !slices.Equal(changed, []instance.GroupKey{record.Key()}) {
		t.Errorf("changed groups are %v", changed)
	}

	// A template in the request determines the kind.
	request = createRequest("plain")
	request.Config.Template = "arm"
	if record := s.create(request); record.ID[:3] != "arm" || record.Template != "arm" || record.InstanceType != "" {
		t.Errorf("with another template the record is %+v", record)
	}
	// The group's own subnet pool is allowed.
	request = createRequest("main")
	request.Config.SubnetPool = "closed"
	s.create(request)
}

func TestRejectedCreateRequests(t *testing.T) {
	s := newService(t)
	c := newConfig()
	c.Groups["default"]["fixed"] = config.Group{Template: "fixed"}
	require.NoError(t, s.Store.Reconfigure(t.Context(), c))
	with := func(edit func(*nstancev1.CreateInstanceRequest)) *nstancev1.CreateInstanceRequest {
		request := createRequest("plain")
		edit(request)
		return request
	}
	type request = nstancev1.CreateInstanceRequest
	tests := []struct {
		name    string
		request *request
		code    codes.Code
		want    string
	}{
		{"no config", with(func(r *request) { r.Config = nil }), codes.InvalidArgument, "config: Required value"},
		{"no group", createRequest(""), codes.InvalidArgument, "config.group: Required value"},
		{"ill-formed group", createRequest("a--b"), codes.InvalidArgument, `Invalid value: "a--b"`},
		{"unknown group", createRequest("nothing"), codes.FailedPrecondition, `config.group: group "nothing" does not exist`},
		{"unknown template", with(func(r *request) { r.Config.Template = "a" }), codes.InvalidArgument, `template: Invalid value: "a"`},
		{"unknown type", with(func(r *request) { r.Config.InstanceType = "a" }), codes.InvalidArgument, `instance_type: Invalid value: "a"`},
		{"type of another architecture", with(func(r *request) { r.Config.InstanceType = "m7g.large" }), codes.InvalidArgument, `instance_type: Invalid value: "m7g.large": no instance type of architecture "amd64"`},
		{"template that does not fit the type", with(func(r *request) { r.Config.Template, r.Config.InstanceType = "arm", "m7i.large" }), codes.InvalidArgument, `architecture "arm64"`},
		{"unknown pool", with(func(r *request) { r.Config.SubnetPool = "a" }), codes.InvalidArgument, `subnet_pool: Invalid value: "a"`},
		{"pool that is not allowed", with(func(r *request) { r.Config.SubnetPool = "closed" }), codes.InvalidArgument, `subnet_pool: Unsupported value: "closed": supported values: "open"`},
		{"template with a pool that is not allowed", with(func(r *request) { r.Config.Template = "inside" }), codes.InvalidArgument, `subnet_pool: Unsupported value: "closed"`},
		{"group without instances on demand", createRequest("fixed"), codes.InvalidArgument, `config.group: Forbidden: group "fixed" has no on-demand instances: limits.on_demand of the server's configuration allows them`},
		{"such a group with a template that has some", with(func(r *request) { r.Config.Group, r.Config.Template = "fixed", "worker" }), codes.InvalidArgument, `config.group: Forbidden: group "fixed" has no on-demand instances`},
		{"template of another tenant", with(func(r *request) { r.Config.Template = "foreign" }), codes.InvalidArgument, `config.template: Invalid value: "foreign": unknown template, known are "arm", "fixed", "inside", "worker"`},
		{"type that is not allowed", with(func(r *request) { r.Config.Template, r.Config.InstanceType = "inside", "c7i.large" }), codes.InvalidArgument, `config.instance_type: Forbidden: "c7i.large" is not allowed: the server's configuration allows m7i.*`},
		{"var that is not allowed", with(func(r *request) { r.Config.Template, r.Config.Vars = "inside", map[string]string{"a": "b"} }), codes.InvalidArgument, `config.vars[a]: Forbidden: "a" is not allowed`},
		{"load balancer that is not allowed", with(func(r *request) { r.Config.LoadBalancers = []string{"web"} }), codes.InvalidArgument, `config.load_balancers[0]: Forbidden: "web" is not allowed: the server's configuration allows nothing (limits.load_balancers)`},
		{"var with a control character", with(func(r *request) { r.Config.Vars = map[string]string{"a": "\a"} }), codes.InvalidArgument, `config.vars[a]: Forbidden: has the control character '\a'`},
		{"Pod that has no name", with(func(r *request) { r.Config.Vars = map[string]string{"pod_name": "$(reboot)"} }), codes.InvalidArgument, `config.vars[pod_name]: Invalid value: "$(reboot)"`},
		{"no id", with(func(r *request) { r.InstanceId = "a" }), codes.InvalidArgument, `instance_id: Invalid value: "a"`},
		{"id of another kind", with(func(r *request) { r.InstanceId = newID(t, "abc") }), codes.InvalidArgument, `must begin with "knd"`},
		{"id of the group's kind with another template", with(func(r *request) { r.InstanceId, r.Config.Template = newID(t, "knd"), "arm" }), codes.InvalidArgument, `must begin with "arm"`},
	}
	for _, tc := range tests {
		_, err := s.CreateInstance(s.ctx(), tc.request)
		expectStatus(t, tc.name, err, tc.code, tc.want)
	}
	_, err := s.CreateInstance(as(t.Context(), "Ill--Formed"), createRequest("plain"))
	expectStatus(t, "ill-formed tenant", err, codes.InvalidArgument, "tenant: Invalid value")
	if n := s.records(); n != 0 || len(s.takeChanged()) != 0 {
		t.Errorf("%d records were written", n)
	}
}

// TestRepeatedCreateRequestReturnsSameInstance unless its parameters differ.
func TestRepeatedCreateRequestReturnsSameInstance(t *testing.T) {
	id := newID(t, "knd")
	others := map[string]func(*nstancev1.CreateInstanceRequest){
		"group":    func(r *nstancev1.CreateInstanceRequest) { r.Config.Group = "main" },
		"template": func(r *nstancev1.CreateInstanceRequest) { r.Config.Template = "worker" },
		"type":     func(r *nstancev1.CreateInstanceRequest) { r.Config.InstanceType = "m7i.large" },
		"pool":     func(r *nstancev1.CreateInstanceRequest) { r.Config.SubnetPool = "" },
		"vars":     func(r *nstancev1.CreateInstanceRequest) { r.Config.Vars = map[string]string{"a": "c"} },
		"balancer": func(r *nstancev1.CreateInstanceRequest) { r.Config.LoadBalancers = []string{"web"} },
	}
	for _, tc := range []struct {
		name    string
		request *nstancev1.CreateInstanceRequest
		others  map[string]func(*nstancev1.CreateInstanceRequest)
		code    codes.Code
	}{
		{
			"by key", &nstancev1.CreateInstanceRequest{IdempotencyKey: "a key"},
			map[string]func(*nstancev1.CreateInstanceRequest){
				"id": func(r *nstancev1.CreateInstanceRequest) { r.InstanceId = newID(t, "knd") },
			}, codes.InvalidArgument,
		},
		{
			"by id", &nstancev1.CreateInstanceRequest{InstanceId: id},
			map[string]func(*nstancev1.CreateInstanceRequest){
				"key": func(r *nstancev1.CreateInstanceRequest) { r.IdempotencyKey = "a key" },
			}, codes.AlreadyExists,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newService(t)
			tc.request.Config = &nstancev1.InstanceConfig{Group: "plain", SubnetPool: "open", Vars: map[string]string{"a": "b"}}
			record := s.create(tc.request)
			s.takeChanged()
			again := func(when, want string) {
				t.Helper()
				response, err := s.CreateInstance(s.ctx(), tc.request)
				if err != nil || response.InstanceId != record.ID || response.Status != want {
					t.Errorf("%s: got %v, %v, want %s of %s", when, response, err, want, record.ID)
				}
				maps.Copy(tc.others, others)
				for what, edit := range tc.others {
					other := proto.CloneOf(tc.request)
					edit(other)
					_, err := s.CreateInstance(s.ctx(), other)
					expectStatus(t, when+" with another "+what, err, tc.code, "was used before")
				}
			}
			again("at once", "pending")
			s.show(record.ID, instance.Running)
			require.NoError(s.t, s.Instances.SetProviderID(t.Context(), record.ID, "id-"+record.ID))
			again("when it runs", "running")
			require.NoError(s.t, s.cache.Close())
			s.start(filepath.Join(t.TempDir(), "another cache"))
			again("after a restart without the cache", "running")
			require.NoError(s.t, s.Instances.SetDeleting(t.Context(), record.ID, instance.ReasonRequested))
			again("while it is being deleted", "terminating")
			s.provider.Remove(record.ID)
			cachePath := filepath.Join(t.TempDir(), "cache")
			require.NoError(s.t, s.cache.Close())
			s.start(cachePath)
			require.NoError(s.t, s.Instances.SetDeleting(t.Context(), record.ID, instance.ReasonRequested))
			require.NoError(s.t, s.Instances.Remove(t.Context(), record.ID))
			again("after it was deleted", "terminated")
			require.NoError(s.t, s.cache.Close())
			s.start(cachePath)
			again("after it was deleted and a restart", "terminated")
			if n := s.records(); n != 0 || len(s.takeChanged()) != 0 {
				t.Errorf("%d records were written, and groups were changed", n)
			}
		})
	}
}

func TestIdempotencyKeysArePerTenantAndIDsAreNot(t *testing.T) {
	s := newService(t)
	request := createRequest("plain")
	request.IdempotencyKey = "a key"
	record := s.create(request)
	response, err := s.CreateInstance(as(t.Context(), "other"), request)
	if err != nil || response.InstanceId == record.ID {
		t.Errorf("another tenant with the same key got %v, %v", response, err)
	}
	request.InstanceId, request.IdempotencyKey = record.ID, ""
	_, err = s.CreateInstance(as(t.Context(), "other"), request)
	expectStatus(t, "another tenant's id", err, codes.AlreadyExists, record.ID)
	// Nothing but the tenant differs.
	request.InstanceId = newID(t, "knd")
	s.create(request)
	_, err = s.CreateInstance(as(t.Context(), "other"), request)
	expectStatus(t, "another tenant's id without a key", err, codes.AlreadyExists, request.InstanceId)
	// No request created a managed instance.
	request.InstanceId = s.add().ID
	_, err = s.CreateInstance(s.ctx(), request)
	expectStatus(t, "a managed instance's id", err, codes.AlreadyExists, request.InstanceId)
}

func TestConcurrentCreateRequestsWithOneKey(t *testing.T) {
	s := newService(t)
	const callers = 1000
	ids := make([]string, callers)
	var calling sync.WaitGroup
	for i := range callers {
		calling.Go(func() {
			request := createRequest("plain")
			request.IdempotencyKey = "a key"
			response, err := s.CreateInstance(s.ctx(), request)
			if err != nil {
				t.Error(err)
			}
			ids[i] = response.GetInstanceId()
		})
	}
	calling.Wait()
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) != 1 || s.records() != 1 {
		t.Errorf("%d callers got %d instances, and there are %d records", callers, len(ids), s.records())
	}
}

// TestConcurrentCreateRequestsWithOneIDAndManyKeys: at most one gets the instance.
func TestConcurrentCreateRequestsWithOneIDAndManyKeys(t *testing.T) {
	s := newService(t)
	id := newID(t, "knd")
	errs := make([]error, 100)
	var calling sync.WaitGroup
	for i := range errs {
		calling.Go(func() {
			request := createRequest("plain")
			request.InstanceId, request.IdempotencyKey = id, fmt.Sprint("key ", i)
			_, errs[i] = s.CreateInstance(s.ctx(), request)
		})
	}
	calling.Wait()
	codesOf := map[codes.Code]int{}
	for _, err := range errs {
		codesOf[status.Code(err)]++
	}
	if codesOf[codes.OK] != 1 || codesOf[codes.AlreadyExists] != len(errs)-1 || s.records() != 1 {
		t.Errorf("the calls got %v, and there are %d records", codesOf, s.records())
	}
}

// TestLostResponseOfStorage: the record may be stored or not. A repeated request
// does not create a second instance.
func TestLostResponseOfStorage(t *testing.T) {
	for name, request := range map[string]*nstancev1.CreateInstanceRequest{
		"by key": {IdempotencyKey: "a key"}, "by id": {InstanceId: newID(t, "knd")},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			request.Config = &nstancev1.InstanceConfig{Group: "plain"}
			s.storage.loseResponse = true
			_, err := s.CreateInstance(s.ctx(), request)
			expectStatus(t, "the response was lost", err, codes.Unavailable, "the connection was lost")
			other := proto.CloneOf(request)
			other.Config.InstanceType = "c7i.large"
			if _, err = s.CreateInstance(s.ctx(), other); err == nil || status.Code(err) == codes.Unavailable {
				t.Errorf("another request with that name got %v", err)
			}
			record := s.create(request)
			if n := s.records(); n != 1 {
				t.Errorf("there are %d records", n)
			}
			require.NoError(s.t, s.cache.Close())
			s.start(filepath.Join(t.TempDir(), "another cache"))
			if again := s.create(request); again.ID != record.ID {
				t.Errorf("after a restart it is %s, before it was %s", again.ID, record.ID)
			}
			if len(s.createRequests.unconfirmed) != 0 {
				t.Errorf("unconfirmed records are left: %v", s.createRequests.unconfirmed)
			}
		})
	}
}

// TestCancelledCreateRequestIsUnavailable so that the operator retries it.
func TestCancelledCreateRequestIsUnavailable(t *testing.T) {
	s := newService(t)
	ctx, cancel := context.WithCancel(s.ctx())
	cancel()
	_, err := s.CreateInstance(ctx, createRequest("plain"))
	expectStatus(t, "a cancelled call", err, codes.Unavailable, "")
}

// TestOldIDIsRejected: the id may belong to an instance that was deleted and forgotten.
func TestOldIDIsRejected(t *testing.T) {
	s := newService(t)
	id := newID(t, "knd")
	c := *newConfig()
	c.Shard.GarbageCollection.DeletedRecordRetention = time.Nanosecond
	require.NoError(t, s.Store.Reconfigure(t.Context(), &c))
	_, err := s.CreateInstance(s.ctx(), &nstancev1.CreateInstanceRequest{InstanceId: id, Config: &nstancev1.InstanceConfig{Group: "plain"}})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "make a new one") {
		t.Errorf("got %v", err)
	}
}

// TestIDFromTheFutureIsRejected: it would be accepted again long after its instance was deleted and
// forgotten.
func TestIDFromTheFutureIsRejected(t *testing.T) {
	s := newService(t)
	c := *newConfig()
	c.Shard.GarbageCollection.DeletedRecordRetention = 30 * time.Minute
	require.NoError(t, s.Store.Reconfigure(t.Context(), &c))
	for dated, want := range map[time.Duration]string{
		-26 * time.Minute: "is older than 25m0s", -24 * time.Minute: "", 0: "", 4 * time.Minute: "", 6 * time.Minute: "correct the clock that has made it", 1e6 * time.Hour: "correct the clock",
	} {
		id, err := puidv7.New("knd")
		require.NoError(t, err)
		at := time.Now().Add(dated).UnixMilli()
		for n := range 6 {
			id.UUID[n] = byte(at >> (8 * (5 - n)))
		}
		_, err = s.CreateInstance(s.ctx(), &nstancev1.CreateInstanceRequest{InstanceId: id.String(), Config: &nstancev1.InstanceConfig{Group: "plain"}})
		if want == "" {
			assert.NoError(t, err, "dated %s", dated)
			continue
		}
		expectStatus(t, "an id that is dated "+dated.String(), err, codes.InvalidArgument, want)
	}
}

// TestUnconfirmedRecordsAreLimited: the oldest records are forgotten.
func TestUnconfirmedRecordsAreLimited(t *testing.T) {
	var requests createRequests
	begin := time.Now()
	for n := range maxUnconfirmed + 10 {
		record := instance.Record{Tenant: "default", ID: fmt.Sprint(n), CreatedAt: begin.Add(time.Duration(n))}
		requests.done(requestKeyOf(record), record, errors.New("no answer"))
	}
	if len(requests.unconfirmed) != maxUnconfirmed {
		t.Errorf("there are %d records", len(requests.unconfirmed))
	}
	if _, found := requests.unconfirmedRecord(requestKey{"default", "9"}); found {
		t.Error("an old record was kept")
	}
	if _, found := requests.unconfirmedRecord(requestKey{"default", fmt.Sprint(maxUnconfirmed + 9)}); !found {
		t.Error("the latest record was forgotten")
	}
}

// fullSubnets are the subnets without capacity.
type fullSubnets map[string]bool

func (f fullSubnets) CheckCapacity(spec provider.Spec) error {
	if f[spec.Subnet] {
		return provider.OutOfCapacity("no room in subnet %s", spec.Subnet)
	}
	return nil
}

// A request that may have been accepted is accepted again, with or without capacity: the
// operator would otherwise request a second instance from another shard.
func TestARequestThatMayBeStoredIsNotDeclined(t *testing.T) {
	s := newService(t)
	full := fullSubnets{}
	s.Capacity = full
	create := func(key string) (string, error) {
		reply, err := s.CreateInstance(s.ctx(), &nstancev1.CreateInstanceRequest{
			IdempotencyKey: key, Config: &nstancev1.InstanceConfig{Group: "plain"},
		})
		return reply.GetInstanceId(), err
	}
	accepted, err := create("accepted")
	require.NoError(t, err)
	s.storage.loseResponse = true
	_, err = create("lost")
	require.Equal(t, codes.Unavailable, status.Code(err))

	full["subnet-a"] = true
	_, err = create("new")
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	again, err := create("accepted")
	require.NoError(t, err)
	assert.Equal(t, accepted, again)
	lost, err := create("lost")
	require.NoError(t, err)
	assert.NotEmpty(t, lost)
	// The declined request left no instance.
	assert.Len(t, s.Instances.List(key("plain")), 2)
}

// An instance with a subnet pool of its own needs no capacity of the group's.
func TestCapacityIsThatOfTheInstance(t *testing.T) {
	s := newService(t)
	s.Capacity = fullSubnets{"subnet-b": true}
	create := func(group, pool string) error {
		_, err := s.CreateInstance(s.ctx(), &nstancev1.CreateInstanceRequest{
			Config: &nstancev1.InstanceConfig{Group: group, SubnetPool: pool},
		})
		return err
	}
	assert.Equal(t, codes.ResourceExhausted, status.Code(create("main", "")))
	assert.NoError(t, create("main", "open"))
}
