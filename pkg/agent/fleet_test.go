// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/agent/internal/retry"
	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/rotation"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/testing/runtest"
	"nstance.dev/operator/pkg/testing/tier"
)

// maxReconnect is the longest time that a reconnection may take on a busy machine: after an
// attempt that fails, a client waits for 5 s and more.
const maxReconnect = 15 * time.Second

// fleet is a cluster with several shards, and operators that follow the groups of each shard.
type fleet struct {
	t         *testing.T
	shards    []*fleetShard
	operators []*operator
}

type fleetShard struct {
	*servertest.Server
	id   string
	size int
	// machines have started agents, and registered has when each of them has registered.
	machines   map[string]*machine
	registered map[string]time.Time
	// next is a machine whose agent was not started yet.
	next *machine
}

// startFleet starts a shard for each size, and the operators of tenants.
func startFleet(t *testing.T, sizes []int, tenants ...string) *fleet {
	t.Helper()
	f := &fleet{t: t}
	for n, size := range sizes {
		id := fmt.Sprintf("us-west-2%c", 'a'+n)
		options := servertest.Options{
			Agents: true, ID: fmt.Sprint(n + 1), Shard: id, Groups: staticGroup(size), CertificateTTL: "30m", AgentCertificateTTL: "30m",
			// As long as machines of this test boot.
			RegistrationTimeout: "10m",
		}
		if n > 0 {
			options.SharedBucket = f.shards[0].Bucket()
		}
		s := &fleetShard{
			Server: servertest.Start(t, options), id: id, size: size,
			machines: map[string]*machine{}, registered: map[string]time.Time{},
		}
		f.shards = append(f.shards, s)
		runtest.Eventually(t, "the instances were created", func() bool { return len(s.Created()) == size })
		for instanceID := range s.Created() {
			s.start(newMachineFor(t, s.Server, instanceID))
		}
	}
	f.untilRegistered()
	for _, tenant := range tenants {
		o := registerOperator(t, f.shards[0].Server, tenant)
		f.operators = append(f.operators, o)
		for _, s := range f.shards {
			o.follow(s.Server)
		}
	}
	return f
}

func staticGroup(size int) string {
	return fmt.Sprintf(`{"default": {"main": {"template": "worker", "size": %d}}}`, size)
}

func (s *fleetShard) start(m *machine) {
	m.Options.ReportInterval = time.Second
	m.start()
	s.machines[m.Options.InstanceID] = m
}

// create creates a machine on each shard, with the authorities of the present userdata.
func (f *fleet) create() {
	f.t.Helper()
	for _, s := range f.shards {
		s.size++
		s.SetConfig(func(o *servertest.Options) { o.Groups = staticGroup(s.size) })
		var created string
		runtest.Eventually(f.t, "another instance was created", func() bool {
			for created = range s.Created() {
				if s.machines[created] == nil {
					return true
				}
			}
			return false
		})
		s.next = newMachineFor(f.t, s.Server, created)
	}
}

// boot starts the agents of the machines that create has created.
func (f *fleet) boot() {
	f.t.Helper()
	for _, s := range f.shards {
		s.start(s.next)
	}
	f.untilRegistered()
}

// untilRegistered waits until all agents that were started have registered.
func (f *fleet) untilRegistered() {
	f.t.Helper()
	for _, s := range f.shards {
		for id := range s.machines {
			var present *instance.Registration
			runtest.Eventually(f.t, "agent "+id+" has registered", func() bool {
				present = s.registration(id)
				return present != nil
			})
			if _, known := s.registered[id]; !known {
				s.registered[id] = present.RegisteredAt
			}
		}
	}
}

func (s *fleetShard) registration(id string) *instance.Registration {
	t := s.machines[id].t
	t.Helper()
	parsed, err := puidv7.Parse(id)
	require.NoError(t, err)
	record, err := instance.UnmarshalRecord(s.ReadFile(storage.InstanceKey(s.id, "default", parsed.StorageKey())))
	require.NoError(t, err)
	return record.Registration
}

// untilFollowed waits until each server, agent and operator has followed the present phase. As in
// the product, an operator that has not renews its certificate.
func (f *fleet) untilFollowed() {
	f.t.Helper()
	var names string
	unanswered := map[*operator]bool{}
	err := wait.PollUntilContextTimeout(f.t.Context(), 100*time.Millisecond, runtest.Timeout, true, func(context.Context) (bool, error) {
		// Machines do not boot for longer, and operators do not use the certificate of before.
		names = behind(f.t, f.shards[0].Server, time.Now().Add(11*time.Minute)) //nolint:contextcheck // it has the context of the test
		for _, o := range f.operators {
			if !unanswered[o] && !strings.Contains(names, "operator/"+o.tenant+"/") {
				continue
			}
			// A server that has loaded other authorities closes its connections, maybe after it has
			// recorded the certificate.
			err := o.tryRenew() //nolint:contextcheck // as above
			if unanswered[o] = status.Code(err) == codes.Unavailable; !unanswered[o] {
				require.NoError(f.t, err)
			}
		}
		return names == "" && !slices.Contains(slices.Collect(maps.Values(unanswered)), true), nil
	})
	require.NoError(f.t, err, "behind are %q", names)
	f.untilReported()
}

// untilReported waits until all agents report, and checks that their registrations are the first.
func (f *fleet) untilReported() {
	f.t.Helper()
	for _, s := range f.shards {
		follow(f.t, s.Server)
		after := time.Now()
		for id, m := range s.machines {
			m.untilReport(s.Server, after)
			assert.Equal(f.t, s.registered[id].UTC(), s.registration(id).RegisteredAt.UTC(), "registration of %s", id)
		}
	}
}

// checkStreams checks that no client was without a stream for longer than a reconnection.
func (f *fleet) checkStreams() {
	f.t.Helper()
	for _, s := range f.shards {
		for id := range s.machines {
			client := pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}
			f.checkGaps("agent "+id, s.Streams(client, "SubmitHealthReport"))
			f.checkGaps("agent "+id, s.Streams(client, "ReceiveFiles"))
		}
		for _, o := range f.operators {
			streams := s.Streams(pki.Client{ID: servertest.ClusterID, Tenant: o.tenant, Role: pki.RoleOperator}, "WatchGroups")
			f.checkGaps("operator "+o.tenant+" at "+s.id, streams)
			assert.Greater(f.t, len(streams), 3, "each of three phases closes the connections")
		}
	}
}

func (f *fleet) checkGaps(name string, streams []servertest.Stream) {
	f.t.Helper()
	if !assert.NotEmpty(f.t, streams, name) {
		return
	}
	now := time.Now()
	covered := streams[0].Begin
	for _, stream := range append(streams, servertest.Stream{Begin: now, End: now}) {
		assert.Less(f.t, stream.Begin.Sub(covered), maxReconnect, "%s has no stream %s", name, stream.Method)
		if stream.End.IsZero() {
			stream.End = now
		}
		if stream.End.After(covered) {
			covered = stream.End
		}
	}
}

// follow keeps a stream of groups open at a server, with the present certificate and authorities,
// until the end of the test.
func (o *operator) follow(s *servertest.Server) {
	runtest.Start(o.t, func(ctx context.Context) {
		retry.Loop(ctx, "Following groups", func(ctx context.Context) error {
			stream, err := o.connectTo(s).WatchGroups(ctx, &emptypb.Empty{})
			for err == nil {
				_, err = stream.Recv()
			}
			return err
		})
	})
}

// TestTheCAOfManyIsReplacedWithoutDowntime: no registration is lost, and no stream for longer than a
// reconnection, while three shards with their agents and two operators go through all phases.
// Machines boot in each phase with the userdata of the phase before.
func TestTheCAOfManyIsReplacedWithoutDowntime(t *testing.T) {
	t.Parallel()
	// In each phase a shard gets another machine: there are 50 agents in the full size.
	f := startFleet(t, tier.Pick([]int{2, 2, 1}, []int{14, 14, 13}), "default", "other")
	store, secrets := f.shards[0].Storage, f.shards[0].Secrets
	old := f.shards[0].Authority.CertificatePEM()

	f.create()
	require.NoError(t, clusterkeys.Begin(t.Context(), store, secrets))
	f.boot()
	f.untilFollowed()

	f.create()
	require.NoError(t, clusterkeys.Switch(t.Context(), store))
	f.boot()
	f.untilFollowed()

	f.create()
	require.NoError(t, clusterkeys.Finish(t.Context(), store, secrets))
	f.boot()
	f.untilReported()
	for _, s := range f.shards {
		for _, m := range s.machines {
			runtest.Eventually(t, "the agent trusts only the new authority", func() bool {
				present := authorities.Fingerprints(m.read("identity/ca.crt"))
				return len(present) == 1 && present[0] != authorities.Fingerprints(old)[0]
			})
		}
		assert.Len(t, s.Created(), s.size, "no instance was replaced")
	}
	f.untilReported()
	for _, o := range f.operators {
		o.renew()
		assert.Equal(t, f.shards[0].Authority.CertificatePEM(), o.trusted)
	}
	f.checkStreams()
	found, err := rotation.Check(t.Context(), store, time.Now())
	require.NoError(t, err)
	assert.Empty(t, found)
}
