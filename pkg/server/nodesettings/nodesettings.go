// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package nodesettings has the labels, the taints and the maximum number of Pods with which the
// kubelets of a group register: of templates and static groups of the configuration, and of operators
// (docs/server-reference.md#nodes).
package nodesettings

import (
	"cmp"
	"maps"
	"slices"

	"nstance.dev/operator/pkg/server/config/jsonc"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Settings are the properties with which a kubelet registers its Node. The zero value has nothing. Maps and slices are
// never changed, and nil if they are empty.
type Settings struct {
	// Labels are all labels, also those that a kubelet may not set.
	Labels map[string]string `json:"labels,omitempty"`
	Taints []Taint           `json:"taints,omitempty"`
	// MaxPods is how many Pods a Node runs at most; 0 leaves it to the kubelet.
	MaxPods int32 `json:"max_pods,omitempty"`
}

// Taint is a taint of a Node. A Node has at most one with its key and effect. The JSON names are the
// names of the configuration of a kubelet.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// replaces reports whether t takes the place of other on a Node.
func (t Taint) replaces(other Taint) bool { return t.Key == other.Key && t.Effect == other.Effect }

// Read reads the object node of a template or a static group.
func Read(o *jsonc.Object) Settings {
	defer o.Finish()
	settings := Settings{Labels: o.StringMap("labels")}
	for _, taint := range o.Objects("taints") {
		settings.Taints = append(settings.Taints, Taint{Key: taint.String("key"), Value: taint.String("value"), Effect: taint.String("effect")})
		taint.Finish()
	}
	if most := o.Int32("max_pods"); most != nil {
		settings.MaxPods = *most
	}
	return settings
}

// Of returns the settings of a message, which may be nil.
func Of(message *nstancev1.NodeSettings) Settings {
	settings := Settings{MaxPods: message.GetMaxPods()}
	if labels := message.GetLabels(); len(labels) > 0 {
		settings.Labels = labels
	}
	for _, taint := range message.GetTaints() {
		settings.Taints = append(settings.Taints, Taint{Key: taint.GetKey(), Value: taint.GetValue(), Effect: taint.GetEffect()})
	}
	return settings
}

// Message returns the message with the settings, nil if there are none.
func (s Settings) Message() *nstancev1.NodeSettings {
	if s.IsZero() {
		return nil
	}
	message := &nstancev1.NodeSettings{Labels: s.Labels, MaxPods: s.MaxPods}
	for _, taint := range s.Taints {
		message.Taints = append(message.Taints, &nstancev1.NodeTaint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect})
	}
	return message
}

// IsZero reports whether there are no settings.
func (s Settings) IsZero() bool { return len(s.Labels) == 0 && len(s.Taints) == 0 && s.MaxPods == 0 }

// Merge returns s with the settings of change: labels are merged by key, taints by key and effect, and
// a maximum number of Pods overrides.
func (s Settings) Merge(change Settings) Settings {
	if len(change.Labels) > 0 {
		labels := make(map[string]string, len(s.Labels)+len(change.Labels))
		maps.Copy(labels, s.Labels)
		maps.Copy(labels, change.Labels)
		s.Labels = labels
	}
	if len(change.Taints) > 0 {
		kept := s.taintsWithout(func(taint Taint) bool { return slices.ContainsFunc(change.Taints, taint.replaces) })
		s.Taints = slices.Concat(kept, change.Taints)
	}
	s.MaxPods = cmp.Or(change.MaxPods, s.MaxPods)
	return s
}

// Without returns s without the settings of declared that next leaves out.
func (s Settings) Without(declared, next Settings) Settings {
	s.Labels = s.labelsWithout(func(key, _ string) bool {
		_, was := declared.Labels[key]
		_, is := next.Labels[key]
		return was && !is
	})
	s.Taints = s.taintsWithout(func(taint Taint) bool {
		return slices.ContainsFunc(declared.Taints, taint.replaces) && !slices.ContainsFunc(next.Taints, taint.replaces)
	})
	if declared.MaxPods != 0 && next.MaxPods == 0 {
		s.MaxPods = 0
	}
	return s
}

// Beyond returns the settings of s that base does not have: base with them merged is s, if s is base
// with something merged.
func (s Settings) Beyond(base Settings) Settings {
	s.Labels = s.labelsWithout(func(key, value string) bool {
		inherited, found := base.Labels[key]
		return found && inherited == value
	})
	s.Taints = s.taintsWithout(func(taint Taint) bool { return slices.Contains(base.Taints, taint) })
	if s.MaxPods == base.MaxPods {
		s.MaxPods = 0
	}
	return s
}

func (s Settings) labelsWithout(removed func(key, value string) bool) map[string]string {
	labels := maps.Clone(s.Labels)
	maps.DeleteFunc(labels, removed)
	if len(labels) == 0 {
		return nil
	}
	return labels
}

func (s Settings) taintsWithout(removed func(Taint) bool) []Taint {
	taints := slices.DeleteFunc(slices.Clone(s.Taints), removed)
	if len(taints) == 0 {
		return nil
	}
	return taints
}
