// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider"
)

// Arguments of the provider. All but the market are objects of strings, whose members become labels,
// annotations and taints of the Node. A taint is KEY: "VALUE:EFFECT", or KEY: "EFFECT".
const (
	argLabels      = "labels"
	argAnnotations = "annotations"
	argMarket      = "market"
	argTaints      = "taints"
)

// argNames are the names of the arguments.
var argNames = []string{argAnnotations, argLabels, argMarket, argTaints}

// markets are the simulated markets. They differ in their quotas only.
var markets = []string{provider.MarketSpot, provider.MarketStandard}

// marketArgument selects the market.
var marketArgument = provider.MarketArgument{
	Name:    argMarket,
	Values:  map[string]string{provider.MarketStandard: provider.MarketStandard, provider.MarketSpot: provider.MarketSpot},
	Default: provider.MarketStandard,
}

var _ provider.Markets = (*Options)(nil)

// Market returns the market that arguments mean.
func (*Options) Market(args map[string]any) string { return marketArgument.Market(args) }

// MarketArgs returns arguments that mean a market.
func (*Options) MarketArgs(args map[string]any, market string) (map[string]any, error) {
	args, _, err := marketArgument.Set(args, market)
	return args, err
}

// validateMarket returns every rule that the market at path breaks, unless it is a template.
func validateMarket(path *field.Path, value any) field.ErrorList {
	text, ok := value.(string)
	switch {
	case !ok:
		return field.ErrorList{field.TypeInvalid(path, value, "must be a string")}
	case !slices.Contains(markets, text) && !strings.Contains(text, "{{"):
		return field.ErrorList{field.NotSupported(path, text, markets)}
	}
	return nil
}

// taintEffects are the effects that a taint can have
// (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/).
var taintEffects = []corev1.TaintEffect{corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule}

// ownDomain is the prefix of the labels and annotations by which the provider
// identifies its Nodes.
const ownDomain = "nstance.dev/"

// ValidateArgs validates arguments before they are rendered: it ignores text with templates.
func (o *Options) ValidateArgs(path *field.Path, args map[string]any) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(args)) {
		path := path.Child(name)
		if !slices.Contains(argNames, name) {
			errs = append(errs, field.NotSupported(path, name, argNames))
			continue
		}
		if name == argMarket {
			errs = append(errs, validateMarket(path, args[name])...)
			continue
		}
		members, ok := args[name].(map[string]any)
		if !ok {
			errs = append(errs, field.TypeInvalid(path, args[name], "must be an object of strings"))
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(members)) {
			errs = append(errs, validateNodeMetadata(path.Child(key), name, key, members[key])...)
		}
	}
	return errs
}

// validateNodeMetadata checks one label, annotation or taint of a Node.
func validateNodeMetadata(path *field.Path, arg, key string, value any) field.ErrorList {
	var errs field.ErrorList
	qualified := key
	if arg == argAnnotations {
		// The API server compares the lower-case key, too
		// (https://pkg.go.dev/k8s.io/apimachinery/pkg/api/validation#ValidateAnnotations).
		qualified = strings.ToLower(key)
	}
	for _, problem := range validation.IsQualifiedName(qualified) {
		errs = append(errs, field.Invalid(path, key, problem))
	}
	if strings.HasPrefix(key, ownDomain) {
		errs = append(errs, field.Forbidden(path, ownDomain+" is the server's own"))
	}
	text, ok := value.(string)
	if !ok {
		return append(errs, field.TypeInvalid(path, value, "must be a string"))
	}
	// The result of a template is not known yet.
	if strings.Contains(text, "{{") {
		return errs
	}
	switch arg {
	case argLabels:
		for _, problem := range validation.IsValidLabelValue(text) {
			errs = append(errs, field.Invalid(path, text, problem))
		}
	case argTaints:
		errs = append(errs, validateTaint(path, text)...)
	}
	return errs
}

// validateTaint checks the value and the effect of a taint.
func validateTaint(path *field.Path, text string) field.ErrorList {
	var errs field.ErrorList
	taint := parseTaint("", text)
	for _, problem := range validation.IsValidLabelValue(taint.Value) {
		errs = append(errs, field.Invalid(path, text, problem))
	}
	if !slices.Contains(taintEffects, taint.Effect) {
		errs = append(errs, field.NotSupported(path, taint.Effect, taintEffects))
	}
	return errs
}

// parseTaint returns the taint of an argument: value and effect with a colon between them, or the
// effect.
func parseTaint(key, text string) corev1.Taint {
	value, effect, found := strings.Cut(text, ":")
	if !found {
		value, effect = "", text
	}
	return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
}

// taintsOf returns the taints of the arguments, by key.
func taintsOf(args map[string]any) []corev1.Taint {
	var taints []corev1.Taint
	texts := stringsOf(args, argTaints)
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		taints = append(taints, parseTaint(key, texts[key]))
	}
	return taints
}

// validateRendered returns an error for rendered arguments that no Node can have.
func validateRendered(args map[string]any) error {
	path := field.NewPath("args")
	var problems field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if !slices.Contains(argNames, name) {
			problems = append(problems, field.NotSupported(path, name, argNames))
			continue
		}
		if name == argMarket {
			problems = append(problems, validateMarket(path.Child(name), args[name])...)
			continue
		}
		values, ok := args[name].(map[string]any)
		if !ok {
			problems = append(problems, field.TypeInvalid(path.Child(name), args[name], "must be an object"))
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if _, ok := values[key].(string); !ok {
				problems = append(problems, field.TypeInvalid(path.Child(name).Key(key), values[key], "must be a string"))
			}
		}
	}
	problems = append(problems, metav1validation.ValidateLabels(stringsOf(args, argLabels), path.Child(argLabels))...)
	problems = append(problems, apivalidation.ValidateAnnotations(stringsOf(args, argAnnotations), path.Child(argAnnotations))...)
	taints := stringsOf(args, argTaints)
	for _, key := range slices.Sorted(maps.Keys(taints)) {
		path := path.Child(argTaints).Key(key)
		problems = append(problems, metav1validation.ValidateLabelName(key, path)...)
		problems = append(problems, validateTaint(path, taints[key])...)
	}
	if len(problems) > 0 {
		return fmt.Errorf("arguments of the provider: %w", problems.ToAggregate())
	}
	return nil
}

// stringsOf returns the strings of an argument.
func stringsOf(args map[string]any, name string) map[string]string {
	values, _ := args[name].(map[string]any)
	texts := make(map[string]string, len(values))
	for key, value := range values {
		if text, ok := value.(string); ok {
			texts[key] = text
		}
	}
	return texts
}

// overlay adds the provider's own values to the values of an argument, and replaces values
// of the same name.
func overlay(values, own map[string]string) map[string]string {
	maps.Copy(values, own)
	return values
}
