// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package rotation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/tier"
)

// model is a pool whose servers follow their grants as docs/server.md#rotation says, one step of one
// server at a time, with reports and grants that arrive late, connections that are lost, operators
// that begin without reports, and configurations that change in the middle.
type model struct {
	random *rand.Rand
	policy Policy
	now    time.Time
	shards []*modelShard
	nextID int
	// target is the number of the configuration, and failures are the calls of fail.
	target, failures int
}

type modelShard struct {
	size      int32
	instances []*modelInstance
	// written is the grant that the operator has written, and inForce the grant of the server.
	written, inForce Grant
	// reported is the last report, and away is set while the server is not connected.
	reported Shard
	away     bool
	// target is the configuration that the server has.
	target int
}

type modelInstance struct {
	Instance
	pending, leaving bool
	// first is set if it leaves before its replacement is created.
	first bool
}

func newModel(seed uint64) *model {
	m := &model{random: rand.New(rand.NewPCG(seed, 0)), now: start}
	m.policy = Policy{MaxSurge: int32(m.random.IntN(5)), MaxUnavailable: int32(m.random.IntN(3)), ShardByShard: m.random.IntN(4) == 0}
	if m.policy.MaxSurge+m.policy.MaxUnavailable == 0 {
		m.policy.MaxUnavailable = 1
	}
	if m.random.IntN(2) == 0 {
		m.policy.MinReady = time.Minute
	}
	if m.random.IntN(4) == 0 {
		m.policy.Canary, m.policy.Bake = int32(1+m.random.IntN(3)), 5*time.Minute
	}
	if m.random.IntN(3) == 0 {
		m.policy.ProgressDeadline = 24 * time.Hour
	}
	for range []int{1, 2, 7}[m.random.IntN(3)] {
		shard := &modelShard{size: int32(m.random.IntN(6))}
		for range shard.size {
			shard.instances = append(shard.instances, &modelInstance{Instance: Instance{
				ID: m.id(), Outdated: true, Created: start.Add(-time.Hour), Ready: true, ReadySince: start.Add(-time.Hour),
			}})
		}
		m.report(shard)
		m.shards = append(m.shards, shard)
	}
	return m
}

// configure gives a server the newest configuration, as another server of the shard or an operator does:
// from then on none of its instances is up to date.
func (m *model) configure(s *modelShard) {
	if s.target == m.target {
		return
	}
	s.target = m.target
	for _, i := range s.instances {
		i.Outdated = true
	}
}

// report sends the state of a server to the operator.
func (m *model) report(s *modelShard) {
	c := s.count()
	inForce := s.inForce
	s.reported = Shard{
		Size: s.size, Connected: true, InForce: &inForce, Target: fmt.Sprint(s.target),
		Outdated: c.outdated, UpToDate: s.upToDate(), Above: max(0, c.total-s.size), Below: max(0, s.size-c.serving),
	}
	for _, i := range s.instances {
		if !i.leaving {
			s.reported.Instances = append(s.reported.Instances, i.Instance)
		}
	}
}

func (m *model) id() string {
	m.nextID++
	return fmt.Sprint("i", m.nextID)
}

// counts are what the server of a shard counts.
type counts struct {
	total, staying, serving, outdated, pending, leaving int32
}

func (s *modelShard) count() (c counts) {
	for _, i := range s.instances {
		c.total++
		switch {
		case i.leaving:
			c.leaving++
			continue
		case i.pending:
			c.pending++
		default:
			c.serving++
		}
		c.staying++
		if i.Outdated {
			c.outdated++
		}
	}
	return c
}

func (s *modelShard) moving() int32 {
	c := s.count()
	return max(c.pending, c.staying-s.size) + max(c.leaving, s.size-c.staying)
}

func (s *modelShard) upToDate() int32 {
	c := s.count()
	return max(s.size, c.staying) - c.outdated
}

// serve makes one step of the server of a shard.
func (m *model) serve(s *modelShard) {
	c, grant := s.count(), s.inForce
	worst := slices.IndexFunc(s.instances, func(i *modelInstance) bool { return i.Outdated && !i.leaving && !i.pending })
	startable := min(grant.UpToDate-s.upToDate(), grant.MaxSurge+grant.MaxUnavailable-s.moving())
	unavailable := grant.MaxUnavailable
	if grant.Target != "" && grant.Target != fmt.Sprint(s.target) {
		startable, unavailable = 0, 0
	}
	missing := min(s.size-c.staying, s.size+max(1, grant.MaxSurge)-c.total)
	if grant.MaxSurge == 0 && grant.MaxUnavailable > 0 {
		missing = min(missing, s.size-c.staying-c.leaving)
	}
	create := func() {
		s.instances = append(s.instances, &modelInstance{Instance: Instance{ID: m.id(), Created: m.now}, pending: true})
	}
	switch {
	case worst >= 0 && c.staying > s.size && c.serving-1 >= s.size-unavailable:
		s.instances[worst].leaving = true
	case missing > 0:
		create()
	case worst < 0 || startable <= 0:
	case c.staying >= s.size && c.total < s.size+grant.MaxSurge:
		create()
	case c.staying <= s.size && c.serving-1 >= s.size-grant.MaxUnavailable:
		s.instances[worst].leaving, s.instances[worst].first = true, true
	}
}

// live makes one random thing happen to a shard.
func (m *model) live(s *modelShard) {
	if len(s.instances) == 0 {
		return
	}
	n := m.random.IntN(len(s.instances))
	switch i := s.instances[n]; {
	case i.leaving:
		s.instances = slices.Delete(s.instances, n, n+1)
	case i.pending:
		i.pending = false
	case !i.Ready:
		i.Ready, i.ReadySince = true, m.now
	}
}

// observe returns what the operator knows: the last reports of the servers, of which it uses less if
// they are away.
func (m *model) observe() []Shard {
	var shards []Shard
	for n, s := range m.shards {
		shard, written := s.reported, s.written
		if s.away {
			shard = Shard{
				Size: s.size, InForce: s.reported.InForce, Unread: s.reported.InForce == nil, Instances: s.seen(),
				Above: s.reported.Above, Below: s.reported.Below,
			}
		}
		shard.ID, shard.Grant = fmt.Sprint(n), &written
		shards = append(shards, shard)
	}
	return shards
}

// seen returns the instances that a server has reported last, and what their Nodes show now.
func (s *modelShard) seen() []Instance {
	seen := slices.Clone(s.reported.Instances)
	for n := range seen {
		seen[n].Ready = false
		for _, i := range s.instances {
			if i.ID == seen[n].ID {
				seen[n].Ready, seen[n].ReadySince = i.Ready, i.ReadySince
			}
		}
	}
	return seen
}

// restart replaces the operator by another one, which has no reports of the servers that are away.
func (m *model) restart() {
	for _, s := range m.shards {
		if s.away {
			s.reported = Shard{}
		}
	}
}

// operate lets the operator look at the shards and write the grants, and checks them.
func (m *model) operate(t *testing.T) {
	t.Helper()
	decide := func() Decision {
		got := Grants(m.policy, m.observe(), m.now)
		var surge, unavailable int32
		for n, grant := range got.Grants {
			surge += max(grant.MaxSurge, m.shards[n].inForce.MaxSurge)
			unavailable += max(grant.MaxUnavailable, m.shards[n].inForce.MaxUnavailable)
		}
		require.LessOrEqual(t, surge, m.policy.MaxSurge, "the sum of what may be in force")
		require.LessOrEqual(t, unavailable, m.policy.MaxUnavailable, "the sum of what may be in force")
		for n, grant := range got.Grants {
			m.shards[n].written = grant
		}
		return got
	}
	first := decide()
	second := decide()
	require.Equal(t, first, second, "the same again changes nothing")
}

// fail lets something go wrong: a connection, the operator, or the mind of a user who changes the
// configuration again. After a while it does no more, so that the rotation ends.
func (m *model) fail(s *modelShard) {
	if m.failures++; m.failures > 500 || m.random.IntN(5) > 0 {
		return
	}
	switch m.random.IntN(4) {
	case 0:
		m.target++
	case 1:
		m.restart()
	default:
		s.away = true
	}
}

// check fails if the pool has more above or below its sizes than the policy allows, or a step more
// than one after the instances that are ready.
func (m *model) check(t *testing.T) {
	t.Helper()
	var surge, unavailable, unready int32
	for _, s := range m.shards {
		c := s.count()
		above := c.total - s.size
		for _, i := range s.instances {
			if i.leaving && i.first {
				// Its place is kept as long as the grant allows that fewer instances work. If the grant
				// is taken back meanwhile, its replacement is created at once.
				above--
			}
		}
		surge += max(0, above)
		unavailable += max(0, s.size-c.serving)
		unready += max(0, s.size-c.staying)
		for _, i := range s.instances {
			if !i.leaving && !i.Outdated && !i.Ready {
				unready++
			}
		}
	}
	require.LessOrEqual(t, surge, m.policy.MaxSurge, "instances above the sizes")
	require.LessOrEqual(t, unavailable, m.policy.MaxUnavailable, "instances below the sizes")
	if m.policy.steps() {
		require.LessOrEqual(t, unready, m.policy.MaxSurge+m.policy.MaxUnavailable, "instances that are up to date and not ready, or missing")
	}
}

// Rotations of random pools keep to the policy at each moment, whatever happens in which order, and
// end.
func TestRotationsKeepToThePolicyAndEnd(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(150, 1500)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			m := newModel(seed)
			for step := 0; ; step++ {
				if step == 200_000 {
					t.Fatalf("%+v does not end: %+v", m.policy, m.observe())
				}
				s := m.shards[m.random.IntN(len(m.shards))]
				switch m.random.IntN(8) {
				case 0:
					m.operate(t)
				case 1:
					// A server that is connected again gets the grant, and then reports.
					s.away, s.inForce = false, s.written
					m.report(s)
				case 2, 3:
					m.serve(s)
				case 4:
					m.live(s)
				case 5:
					m.now = m.now.Add(time.Duration(m.random.IntN(30)) * time.Second)
				case 6:
					if !s.away {
						m.configure(s)
						m.report(s)
					}
				case 7:
					m.fail(s)
				}
				m.check(t)
				done := !slices.ContainsFunc(m.shards, func(s *modelShard) bool {
					c := s.count()
					return s.away || s.target != m.target || c.outdated > 0 || c.leaving > 0 || c.pending > 0 || c.staying != s.size
				})
				if done {
					break
				}
			}
			// At the end every shard loses what it has not used.
			for range 3 {
				for _, s := range m.shards {
					m.report(s)
				}
				m.operate(t)
				for _, s := range m.shards {
					s.inForce = s.written
				}
			}
			for _, s := range m.shards {
				require.Equal(t, Grant{}, s.written)
			}
		})
	}
}

// Whenever nothing stops a rotation and nothing is moving, some shard may start a replacement, as
// soon as the servers follow their grants.
func TestARotationGoesOn(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(150, 1500)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			m := newModel(seed)
			m.policy.Canary, m.policy.MinReady = 0, 0
			for _, s := range m.shards {
				for n := range s.instances {
					s.instances[n].Outdated = m.random.IntN(2) == 0
				}
				// What an operator with another policy has left.
				s.written = Grant{MaxSurge: int32(m.random.IntN(3)), MaxUnavailable: int32(m.random.IntN(2)), UpToDate: int32(m.random.IntN(4))}
				s.inForce = s.written
				m.report(s)
			}
			outdated := slices.ContainsFunc(m.shards, func(s *modelShard) bool { return s.count().outdated > 0 })
			var got Decision
			for range 3 {
				got = Grants(m.policy, m.observe(), m.now)
				for n, s := range m.shards {
					s.written = got.Grants[n]
					s.inForce = s.written
					m.report(s)
				}
			}
			require.Nil(t, got.Stop)
			var sum, startable int32
			for n, s := range m.shards {
				sum += got.Grants[n].MaxSurge + got.Grants[n].MaxUnavailable
				startable += max(0, min(s.count().outdated, s.inForce.UpToDate-s.upToDate(), s.inForce.MaxSurge+s.inForce.MaxUnavailable))
			}
			require.LessOrEqual(t, sum, m.policy.MaxSurge+m.policy.MaxUnavailable)
			require.Equal(t, outdated, startable > 0, "%+v, %+v", m.policy, m.observe())
		})
	}
}
