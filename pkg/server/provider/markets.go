// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Names of markets. A market is a part of the capacity of instance types that has its own stock and
// its own conditions. The set is open: a provider may have others, and not all have these.
const (
	// MarketStandard has instances that run until they are deleted.
	MarketStandard = "Standard"
	// MarketSpot has cheaper instances that the cloud may take back at any time.
	MarketSpot = "Spot"
)

// Markets is implemented by the options of a provider with markets. The arguments of an instance
// select its market.
type Markets interface {
	// Market returns the market that arguments mean. It is empty if they have a template there
	// that is not rendered yet, or if something outside of the arguments decides.
	Market(args map[string]any) string
	// MarketArgs returns arguments that mean a market. Arguments that already mean it are returned
	// unchanged, so that their hash stays the same. Otherwise it returns a copy: the market
	// replaces the value of an argument, also a template, and arguments that are possible in
	// another market only are left out. The error names the field, its value, and what is allowed.
	MarketArgs(args map[string]any, market string) (map[string]any, error)
}

// errNoMarkets means that a market was named for a provider that has none.
var errNoMarkets = errors.New("the provider has no markets: a market must not be named")

// MarketArgs returns arguments that mean a market of the provider with these options, as
// Markets.MarketArgs does. Without a market it returns the arguments unchanged. It returns an error
// if the provider has no markets.
func MarketArgs(o Options, args map[string]any, market string) (map[string]any, error) {
	if market == "" {
		return args, nil
	}
	markets, ok := o.(Markets)
	if !ok {
		return nil, errNoMarkets
	}
	return markets.MarketArgs(args, market)
}

// MarketOf returns the market that arguments of the provider with these options mean. It is empty
// if the provider has no markets, or if Markets.Market does not know it.
func MarketOf(o Options, args map[string]any) string {
	if markets, ok := o.(Markets); ok {
		return markets.Market(args)
	}
	return ""
}

// MarketArgument is the argument of a provider that selects the market, for implementations of
// Markets.
type MarketArgument struct {
	// Name is the name of the argument.
	Name string
	// Values has the value of the argument for each market.
	Values map[string]string
	// Default is the value without the argument. It is empty if something else decides then.
	Default string
}

// Market returns the market that arguments mean, or an empty text.
func (a MarketArgument) Market(args map[string]any) string {
	value, isText := args[a.Name].(string)
	if value == "" && (isText || args[a.Name] == nil) {
		value = a.Default
	}
	for market, text := range a.Values {
		if text == value {
			return market
		}
	}
	return ""
}

// Set returns arguments that mean a market, as Markets.MarketArgs does, and whether it has changed
// them.
func (a MarketArgument) Set(args map[string]any, market string) (changed map[string]any, _ bool, _ error) {
	value, known := a.Values[market]
	if !known {
		return nil, false, field.NotSupported(field.NewPath("market"), market, slices.Sorted(maps.Keys(a.Values)))
	}
	if a.Market(args) == market {
		return args, false, nil
	}
	// A market must not hide a mistake in the argument that it replaces.
	path := field.NewPath("args", a.Name)
	switch former := args[a.Name].(type) {
	case nil:
	case string:
		values := slices.Sorted(maps.Values(a.Values))
		if former != "" && !slices.Contains(values, former) && !strings.Contains(former, "{{") {
			return nil, false, field.NotSupported(path, former, values)
		}
	default:
		return nil, false, field.TypeInvalid(path, former, "must be a string")
	}
	changed = map[string]any{}
	maps.Copy(changed, args)
	changed[a.Name] = value
	return changed, true, nil
}

// TypeInMarket returns the name of the instance type, and the market unless that is MarketStandard,
// for messages: "m7i.large spot".
func (s *Spec) TypeInMarket() string {
	if s.Market == "" || s.Market == MarketStandard {
		return s.Type.Name
	}
	return s.Type.Name + " " + strings.ToLower(s.Market)
}
