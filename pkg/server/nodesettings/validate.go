// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nodesettings

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of the settings of a group. They are the limits of a pool.
const (
	maxLabels = 64
	maxTaints = 32
	maxPods   = 1000
)

// labelPrefix begins the labels that tie a Node to its group. No setting may change them.
const labelPrefix = "nstance.dev/"

// effects are all effects of a taint
// (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/).
var effects = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}

// Validate reports settings that no Node can have: they would keep kubelets from registering.
func (s Settings) Validate(path *field.Path) field.ErrorList {
	return slices.Concat(s.ValidateSize(path), s.validateLabels(path.Child("labels")), s.validateTaints(path.Child("taints")))
}

// ValidateSize reports more labels or taints, or another maximum number of Pods, than a group may have.
// It bounds what is stored for a group, to which requests may add.
func (s Settings) ValidateSize(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.Labels) > maxLabels {
		errs = append(errs, field.TooMany(path.Child("labels"), len(s.Labels), maxLabels))
	}
	if len(s.Taints) > maxTaints {
		errs = append(errs, field.TooMany(path.Child("taints"), len(s.Taints), maxTaints))
	}
	if s.MaxPods < 0 || s.MaxPods > maxPods {
		errs = append(errs, field.Invalid(path.Child("max_pods"), s.MaxPods, validation.InclusiveRangeError(0, maxPods)))
	}
	return errs
}

func (s Settings) validateLabels(path *field.Path) field.ErrorList {
	if len(s.Labels) > maxLabels {
		return nil
	}
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		for _, problem := range validation.IsQualifiedName(key) {
			errs = append(errs, field.Invalid(path, key, problem))
		}
		if strings.HasPrefix(key, labelPrefix) {
			errs = append(errs, field.Forbidden(path.Key(key), "labels that begin with "+labelPrefix+" tie a Node to its group"))
		}
		for _, problem := range validation.IsValidLabelValue(s.Labels[key]) {
			errs = append(errs, field.Invalid(path.Key(key), s.Labels[key], problem))
		}
	}
	return errs
}

func (s Settings) validateTaints(path *field.Path) field.ErrorList {
	if len(s.Taints) > maxTaints {
		return nil
	}
	var errs field.ErrorList
	for n, taint := range s.Taints {
		path := path.Index(n)
		for _, problem := range validation.IsQualifiedName(taint.Key) {
			errs = append(errs, field.Invalid(path.Child("key"), taint.Key, problem))
		}
		for _, problem := range validation.IsValidLabelValue(taint.Value) {
			errs = append(errs, field.Invalid(path.Child("value"), taint.Value, problem))
		}
		if !slices.Contains(effects, taint.Effect) {
			errs = append(errs, field.NotSupported(path.Child("effect"), taint.Effect, effects))
		}
		if slices.ContainsFunc(s.Taints[:n], taint.replaces) {
			errs = append(errs, field.Duplicate(path, taint.Key+":"+taint.Effect))
		}
	}
	return errs
}
