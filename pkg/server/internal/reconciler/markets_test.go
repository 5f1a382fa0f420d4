// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"slices"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// marketOptions are the options of a provider with the markets Standard and Spot.
type marketOptions struct{}

var marketArgument = provider.MarketArgument{
	Name: "market", Default: "standard", Values: map[string]string{provider.MarketStandard: "standard", provider.MarketSpot: "spot"},
}

func (marketOptions) Validate(*field.Path, sets.Set[string]) field.ErrorList   { return nil }
func (marketOptions) ValidateArgs(*field.Path, map[string]any) field.ErrorList { return nil }
func (marketOptions) Catalogue() provider.Catalogue                            { return provider.Catalogue{} }
func (marketOptions) ImmutableFields(*field.Path) []provider.ImmutableField    { return nil }
func (marketOptions) Market(args map[string]any) string                        { return marketArgument.Market(args) }
func (marketOptions) NewProvider(provider.Shard, provider.CallContextFunc) (provider.Provider, error) {
	panic("the test has a provider")
}

func (marketOptions) MarketArgs(args map[string]any, market string) (map[string]any, error) {
	args, _, err := marketArgument.Set(args, market)
	return args, err
}

// newMarketConfig returns a configuration whose provider has markets.
func newMarketConfig() *config.Config {
	c := newConfig()
	c.Shard.Infra.Options = marketOptions{}
	return c
}

// Kinds of instances: type/market.
const (
	smallStandard = "small/Standard"
	smallSpot     = "small/Spot"
	largeSpot     = "large/Spot"
	largeStandard = "large/Standard"
)

// The candidates of most tests: a base of two, spot, and a last resort with the settings of the base.
var (
	baseOfTwo  = candidates.Candidate{Name: "base", MaxInstances: new(int32(2))}
	spot       = candidates.Candidate{Name: "spot", Market: provider.MarketSpot}
	largerSpot = candidates.Candidate{Name: "larger-spot", InstanceType: "large", Market: provider.MarketSpot}
	lastResort = candidates.Candidate{Name: "last-resort", Market: provider.MarketStandard}
)

// lackMode is how a cloud says that it has no stock.
type lackMode string

const (
	// lackAtCall rejects the call, and never remembers it.
	lackAtCall lackMode = "at the call"
	// lackKnown rejects the call, and knows it before.
	lackKnown lackMode = "known before"
	// lackLater accepts the call and gives it up later.
	lackLater lackMode = "later"
	// lackFailed creates a machine that fails.
	lackFailed lackMode = "a failed machine"
)

// memory is how long a cloud rejects requests after one that had no stock.
const memory = 3 * time.Minute

// market is the stock of a cloud: how many instances of each kind there may be, no limit for those that
// are missing.
type market struct {
	mode  lackMode
	stock map[string]int
	// kinds are the kinds of all instances that ever existed.
	kinds map[string]string
	// doomed are the instances that end for lack of stock.
	doomed map[string]bool
	// rejectedUntil is until when requests of a kind are rejected without a call.
	rejectedUntil map[string]time.Time
}

func newMarket(mode lackMode) *market {
	return &market{mode: mode, stock: map[string]int{}, kinds: map[string]string{}, doomed: map[string]bool{}, rejectedUntil: map[string]time.Time{}}
}

func kindOfSpec(spec provider.Spec) string {
	return spec.Type.Name + "/" + marketArgument.Market(spec.Args)
}

// free reports whether there is stock for another instance. Mu must be locked.
func (c *cloud) free(kind string) bool {
	limit, limited := c.market.stock[kind]
	used := 0
	for id := range c.VMs {
		if c.market.kinds[id] == kind && !c.market.doomed[id] {
			used++
		}
	}
	return !limited || used < limit
}

// CheckCapacity implements provider.CapacityChecker.
func (c *cloud) CheckCapacity(spec provider.Spec) error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.market == nil {
		return nil
	}
	kind := kindOfSpec(spec)
	known := c.market.mode == lackKnown && !c.free(kind)
	if known || time.Now().Before(c.market.rejectedUntil[kind]) {
		return provider.OutOfCapacity("no %s", kind)
	}
	return nil
}

// buy decides about a request for an instance. Mu must be locked.
func (c *cloud) buy(spec provider.Spec) error {
	if c.market == nil {
		return nil
	}
	if _, known := c.VMs[spec.ID]; known {
		return nil
	}
	kind := kindOfSpec(spec)
	if !c.free(kind) {
		if c.market.mode == lackAtCall || c.market.mode == lackKnown {
			return provider.OutOfCapacity("no %s", kind)
		}
		c.market.doomed[spec.ID] = true
	} else {
		delete(c.market.doomed, spec.ID)
	}
	c.market.kinds[spec.ID] = kind
	return nil
}

// endDoomed ends the instances for which there is no stock.
func (c *cloud) endDoomed() {
	c.Mu.Lock()
	doomed := false
	if c.market != nil {
		for id := range c.market.doomed {
			vm, there := c.VMs[id]
			doomed = doomed || there && vm.State == instance.Pending
		}
	}
	c.Mu.Unlock()
	if !doomed {
		return
	}
	c.change("", func(vm *instance.VM) bool {
		if !c.market.doomed[vm.ID] || vm.State != instance.Pending {
			return true
		}
		c.market.rejectedUntil[c.market.kinds[vm.ID]] = time.Now().Add(memory)
		vm.State = instance.Failed
		return c.market.mode == lackFailed
	})
}

// limitStock sets the stock of kinds, no limit for a negative number.
func (s *server) limitStock(stock map[string]int) {
	s.cloud.Mu.Lock()
	defer s.cloud.Mu.Unlock()
	for kind, limit := range stock {
		if limit < 0 {
			delete(s.cloud.market.stock, kind)
		} else {
			s.cloud.market.stock[kind] = limit
		}
	}
}

// kindsOf returns the sorted kinds of the instances of a group that are not being deleted.
func (s *server) kindsOf(key instance.GroupKey) []string {
	s.cloud.Mu.Lock()
	kinds := s.cloud.market.kinds
	s.cloud.Mu.Unlock()
	var all []string
	for _, i := range s.instances.List(key) {
		if i.Known && !i.BeingDeleted() {
			all = append(all, kinds[i.ID])
		}
	}
	slices.Sort(all)
	return all
}

// order sets the size and the candidates of a group.
func (s *server) order(key instance.GroupKey, size int, settings groups.Settings) {
	s.t.Helper()
	settings.Template = "worker"
	if _, _, err := s.groups.Upsert(context.Background(), key, groups.Change{Settings: settings, Declarative: true, Size: int32(size)}); err != nil {
		s.t.Fatal(err)
	}
	s.reconcile(key)
}

// passWith lets time pass in steps, and the cloud and the operator work after each.
func (s *server) passWith(step time.Duration, steps int) {
	for range steps {
		s.pass(step)
		for range 8 {
			s.cloud.settle()
			synctest.Wait()
			for _, i := range s.instances.Draining("default") {
				s.acknowledge(i.Key(), i.ID)
			}
		}
	}
}
