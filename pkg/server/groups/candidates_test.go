// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider"
)

// marketOptions are the options of a provider with the markets Standard and Spot.
type marketOptions struct{ provider.Options }

var marketArgument = provider.MarketArgument{
	Name: "market", Default: "standard", Values: map[string]string{provider.MarketStandard: "standard", provider.MarketSpot: "spot"},
}

func (marketOptions) Market(args map[string]any) string { return marketArgument.Market(args) }

func (marketOptions) MarketArgs(args map[string]any, market string) (map[string]any, error) {
	args, _, err := marketArgument.Set(args, market)
	return args, err
}

func (marketOptions) ImmutableFields(*field.Path) []provider.ImmutableField    { return nil }
func (marketOptions) Validate(*field.Path, sets.Set[string]) field.ErrorList   { return nil }
func (marketOptions) ValidateArgs(*field.Path, map[string]any) field.ErrorList { return nil }

// newMarketConfig returns a configuration whose provider has markets.
func newMarketConfig() *config.Config {
	c := newConfig()
	c.Shard.Infra.Options = marketOptions{}
	return c
}

// The candidates of the tests. The template of the groups means the candidate what.
var (
	what      = candidates.Candidate{Name: "what"}
	named     = candidates.Candidate{Name: "named", InstanceType: "m7i.large", Market: provider.MarketStandard}
	spot      = candidates.Candidate{Name: "spot", Market: provider.MarketSpot}
	largeType = candidates.Candidate{Name: "large", InstanceType: "m7i.xlarge"}
)

// A candidate that means what the template means has the hash of a group without candidates, so that
// candidates for a group that runs replace nothing.
func TestHashesOfCandidates(t *testing.T) {
	s := openWith(t, newStorage(t), newMarketConfig())
	without := upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}})
	require.Nil(t, without.Variants)
	group := upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker", Candidates: []candidates.Candidate{spot, what, named, largeType}}})
	require.Len(t, group.Variants, 4)
	hash := func(n int) string { return group.Variants[n].InfraConfigHash }
	assert.Equal(t, without.InfraConfigHash, hash(1))
	assert.Equal(t, without.InfraConfigHash, hash(2))
	assert.NotEqual(t, without.InfraConfigHash, hash(0))
	assert.NotEqual(t, without.InfraConfigHash, hash(3))
	assert.Equal(t, hash(0), group.InfraConfigHash, "the digest of the first")
	for n := range group.Variants {
		assert.True(t, group.IsCurrent(hash(n)))
	}
	assert.False(t, group.IsCurrent("other"))
	assert.True(t, without.IsCurrent(without.InfraConfigHash))
	assert.False(t, without.IsCurrent(hash(0)))
	assert.Equal(t, "m7i.large", group.Variants[0].Type.Name)
	assert.Equal(t, provider.MarketSpot, group.Variants[0].Market)
	assert.Equal(t, "m7i.xlarge", group.Variants[3].Type.Name)
	assert.Equal(t, provider.MarketStandard, group.Variants[3].Market)

	// A group with the same type alone has the hash of the candidate.
	alone := upsert(t, s, dynamic, Change{Settings: Settings{InstanceType: "m7i.xlarge"}})
	assert.Equal(t, hash(3), alone.InfraConfigHash)
	assert.Empty(t, alone.Candidates, "an instance type of its own takes the place of candidates")
}

func TestWhichChangesOfCandidatesReplaceInstances(t *testing.T) {
	s := openWith(t, newStorage(t), newMarketConfig())
	set := func(list ...candidates.Candidate) *Group {
		return upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker", Candidates: list}, Declarative: true})
	}
	limited := spot
	limited.MaxInstances = new(int32(2))
	without, single, both := set(), set(what), set(what, spot)
	assert.False(t, without.replacesInstances(single))
	assert.False(t, without.replacesInstances(both))
	assert.False(t, single.replacesInstances(without))
	assert.False(t, single.replacesInstances(both), "added")
	assert.False(t, both.replacesInstances(set(spot, what)), "reordered")
	assert.False(t, both.replacesInstances(set(limited, what)), "another maximum")
	assert.True(t, both.replacesInstances(single), "removed")
	assert.True(t, without.replacesInstances(set(spot)))
	assert.NotEqual(t, both.InfraConfig(), set(limited, what).InfraConfig())
	assert.NotEqual(t, both.ETag, set(spot, what).ETag)
}

func TestInvalidCandidates(t *testing.T) {
	c := newMarketConfig()
	worker := c.Templates["worker"]
	worker.Limits.InstanceTypes = []string{"m7i.*"}
	c.Templates["worker"] = worker
	s := openWith(t, newStorage(t), c)
	list := []candidates.Candidate{spot, what}
	tests := map[string]struct {
		settings Settings
		want     string
	}{
		"a name twice":                   {Settings{Candidates: []candidates.Candidate{what, what}}, `config.candidates[1].name: Duplicate value: "what"`},
		"a maximum of the last":          {Settings{Candidates: []candidates.Candidate{{Name: "a", MaxInstances: new(int32(1))}}}, "config.candidates[0].max_instances: Forbidden"},
		"an unknown type":                {Settings{Candidates: []candidates.Candidate{{Name: "a", InstanceType: "x"}}}, `config.candidates[0].instance_type: Invalid value: "x": no instance type of architecture "amd64"`},
		"a type of another architecture": {Settings{Candidates: []candidates.Candidate{{Name: "a", InstanceType: "m7g.large"}}}, "config.candidates[0].instance_type: Invalid value"},
		"a type that is not allowed":     {Settings{Candidates: []candidates.Candidate{{Name: "a", InstanceType: "c7i.large"}}}, "config.candidates[0].instance_type: Forbidden"},
		"an unknown market":              {Settings{Candidates: []candidates.Candidate{{Name: "a", Market: "Stock"}}}, `config.candidates[0].market: Unsupported value: "Stock": supported values: "Spot", "Standard"`},
		"an instance type beside them":   {Settings{Candidates: list, InstanceType: "m7i.large"}, "config.instance_type: Forbidden: cannot be set together with candidates"},
		"a return without candidates":    {Settings{ReturnAfterSeconds: 600}, "config.return_after_seconds: Forbidden: needs candidates"},
		"a return that is too early":     {Settings{Candidates: list, ReturnAfterSeconds: 599}, "config.return_after_seconds: Invalid value: 599"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.settings.Template = "worker"
			_, _, err := s.Upsert(t.Context(), dynamic, Change{Settings: test.settings})
			assert.ErrorContains(t, err, test.want)
		})
	}
	// What is reported may be repeated.
	group := upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker", Candidates: list, ReturnAfterSeconds: 600}})
	_, _, err := s.Upsert(t.Context(), dynamic, Change{Settings: group.Settings})
	assert.NoError(t, err)
	// A provider without markets has none to name.
	c = newConfig()
	c.Shard.Infra.Options = struct{ provider.Options }{}
	none := openWith(t, newStorage(t), c)
	_, _, err = none.Upsert(t.Context(), dynamic, Change{Settings: Settings{Template: "worker", Candidates: list}})
	assert.ErrorContains(t, err, `config.candidates[0].market: Invalid value: "Spot"`)
}

// Templates and static groups may have candidates. An instance type of a group takes their place, and an
// operator may replace them.
func TestLayersOfCandidates(t *testing.T) {
	c := newMarketConfig()
	worker := c.Templates["worker"]
	worker.Candidates, worker.ReturnAfterSeconds = []candidates.Candidate{spot, what}, 3600
	c.Templates["worker"] = worker
	fixed := c.Groups["default"]["plain"]
	fixed.Candidates = []candidates.Candidate{largeType, what}
	c.Groups["default"]["fixed"] = fixed
	s := openWith(t, newStorage(t), c)
	names := func(g *Group) []string {
		var names []string
		for _, v := range g.Variants {
			names = append(names, v.Name)
		}
		return names
	}
	assert.Equal(t, []string{"spot", "what"}, names(get(t, s, plain)))
	assert.EqualValues(t, 3600, get(t, s, plain).ReturnAfterSeconds)
	assert.Empty(t, names(get(t, s, main)), "the group has an instance type")
	assert.Zero(t, get(t, s, main).ReturnAfterSeconds)
	key := plain
	key.Group = "fixed"
	assert.Equal(t, []string{"large", "what"}, names(get(t, s, key)))
	group := upsert(t, s, plain, Change{Settings: Settings{Candidates: []candidates.Candidate{what}}, Size: 2})
	assert.Equal(t, []string{"what"}, names(group))
	// A static group that is dropped keeps what it has.
	before := get(t, s, key)
	delete(c.Groups["default"], "fixed")
	next := newMarketConfig()
	next.Templates["worker"] = worker
	require.NoError(t, s.Reconfigure(t.Context(), next))
	after := get(t, s, key)
	assert.False(t, after.Static)
	assert.Equal(t, before.Variants, after.Variants)
}

// Another server reads the candidates from the storage.
func TestCandidatesAreStored(t *testing.T) {
	store := newStorage(t)
	list := []candidates.Candidate{{Name: "base", MaxInstances: new(int32(2))}, spot}
	before := upsert(t, openWith(t, store, newMarketConfig()), dynamic, Change{Settings: Settings{Template: "worker", Candidates: list, ReturnAfterSeconds: 600}, Declarative: true})
	after := get(t, openWith(t, store, newMarketConfig()), dynamic)
	assert.Equal(t, before.ETag, after.ETag)
	assert.Equal(t, before.Variants, after.Variants)
	assert.Equal(t, list, after.Candidates)
	assert.Contains(t, string(readObject(t, store).Data), `"max_instances": 2`)
}
