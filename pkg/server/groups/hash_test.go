// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// sample returns a group with all fields that the hashes cover.
func sample() Group {
	return Group{
		Kind: "knd", Arch: provider.ArchAMD64, Settings: Settings{InstanceType: "m7i.large", SubnetPools: []string{"open", "other"},
			Vars: map[string]string{"role": "worker", "tier": "<one>"}},
		Args: map[string]any{
			"labels": map[string]any{"b": "2", "a": "1"},
			"list":   []any{"x", 1.5, true, nil},
		},
		Userdata: config.Userdata{Inline: "#!/bin/sh\necho {{.Nonce}}", Encoding: config.EncodingBase64},
		Files: map[string]config.File{
			"a.env":  {Kind: "env", Content: map[string]any{"A": "{{.Vars.role}}"}},
			"b.json": {Kind: "json", Content: map[string]any{"n": 3.0}},
		},
	}
}

// withHashes returns g with its hashes.
func withHashes(t *testing.T, g Group) Group {
	t.Helper()
	require.NoError(t, g.setHashes())
	return g
}

// TestHashesAreStable protects the infra hash in the records of existing
// instances. If these values change without the configuration, a new release
// replaces all instances.
func TestHashesAreStable(t *testing.T) {
	tests := []struct {
		name           string
		group          Group
		runtime, infra string
	}{
		{
			"of a group with everything", sample(),
			"sha256:6a63132ef233a860bcd58fc121d5e914d6136b454c860627f9593df84e73471e",
			"sha256:fe5b92e154590d94ea9f95d9f3316406bc9734363e01c8c308c07b7aaee0fa02",
		},
		{
			"of a group with nothing", Group{},
			"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
			"sha256:ec4f70d8471d3c345cbe5f7d3d457dbb829322b43c02269e60c6b539f4459763",
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got := withHashes(t, tc.group)
			if got.RuntimeConfigHash != tc.runtime || got.InfraConfigHash != tc.infra {
				t.Errorf("runtime %s, want %s\ninfra %s, want %s", got.RuntimeConfigHash, tc.runtime, got.InfraConfigHash, tc.infra)
			}
		})
	}
}

// covered names the hash that a change of a field changes.
type covered struct {
	runtime, infra bool
}

var (
	byRuntime = covered{runtime: true}
	byInfra   = covered{infra: true}
	byNone    = covered{}
)

// TestEachFieldIsInItsHashOnly changes one field after another. A new field of
// Group, or of a part of it, must be added here first, with a decision about
// its hash. The settings have a test of their own.
func TestEachFieldIsInItsHashOnly(t *testing.T) {
	type fields map[string]struct {
		by     covered
		change func(*Group)
	}
	parts := map[reflect.Type]fields{
		reflect.TypeFor[Group](): {
			"Key":               {byNone, func(g *Group) { g.Key.Group = "other" }},
			"Kind":              {byInfra, func(g *Group) { g.Kind = "oth" }},
			"Settings":          {covered{runtime: true, infra: true}, func(g *Group) { g.Settings = Settings{} }},
			"Declared":          {byNone, func(g *Group) { g.Declared = &Settings{Template: "other"} }},
			"Revision":          {byNone, func(g *Group) { g.Revision = &Revision{UID: "other"} }},
			"Size":              {byNone, func(g *Group) { g.Size = 9 }},
			"MinSize":           {byNone, func(g *Group) { g.MinSize = 9 }},
			"RemoveFirst":       {byNone, func(g *Group) { g.RemoveFirst = []string{"a"} }},
			"Rotation":          {byNone, func(g *Group) { g.Rotation = &RotationGrant{MaxSurge: 2} }},
			"Replace":           {byNone, func(g *Group) { g.Replace = []string{"a"} }},
			"Static":            {byNone, func(g *Group) { g.Static = true }},
			"OperatorVars":      {byNone, func(g *Group) { g.OperatorVars = map[string]string{"a": "1"} }},
			"Arch":              {byInfra, func(g *Group) { g.Arch = "other" }},
			"Args":              {byInfra, func(g *Group) { g.Args = map[string]any{"labels": map[string]any{"a": "1"}} }},
			"Userdata":          {byInfra, func(g *Group) { g.Userdata = config.Userdata{} }},
			"Files":             {byRuntime, func(g *Group) { g.Files = nil }},
			"DrainTimeout":      {byNone, func(g *Group) { g.DrainTimeout = time.Hour }},
			"KeepUnhealthy":     {byNone, func(g *Group) { g.KeepUnhealthy = true }},
			"RuntimeConfigHash": {byNone, func(g *Group) { g.RuntimeConfigHash = "other" }},
			"InfraConfigHash":   {byNone, func(g *Group) { g.InfraConfigHash = "other" }},
			"ETag":              {byNone, func(g *Group) { g.ETag = "other" }},
			"Causes":            {byNone, func(g *Group) { g.Causes.Size.ID = "other" }},
			"Variants":          {byInfra, func(g *Group) { g.Variants = []Variant{{InstanceType: "other"}} }},
			"Type":              {byNone, func(g *Group) { g.Type.Name = "other" }},
		},
		reflect.TypeFor[config.Userdata](): {
			"Inline":   {byInfra, func(g *Group) { g.Userdata.Inline = "other" }},
			"URL":      {byInfra, func(g *Group) { g.Userdata.URL = "https://example.com" }},
			"SHA256":   {byInfra, func(g *Group) { g.Userdata.SHA256 = strings.Repeat("0", 64) }},
			"Encoding": {byInfra, func(g *Group) { g.Userdata.Encoding = config.EncodingGzip }},
		},
		reflect.TypeFor[config.File](): {
			"Kind":    {byRuntime, func(g *Group) { g.Files["a.env"] = config.File{Kind: "string", Content: g.Files["a.env"].Content} }},
			"Content": {byRuntime, func(g *Group) { g.Files["a.env"] = config.File{Kind: "env", Content: map[string]any{"A": "b"}} }},
		},
	}
	before := withHashes(t, sample())
	for part, changes := range parts {
		var names []string
		for field := range part.Fields() {
			names = append(names, field.Name)
		}
		slices.Sort(names)
		if listed := slices.Sorted(maps.Keys(changes)); !slices.Equal(names, listed) {
			t.Errorf("%s has the fields %v, but listed are %v", part, names, listed)
		}
		for name, field := range changes {
			group := sample()
			field.change(&group)
			if reflect.DeepEqual(group, sample()) {
				t.Errorf("%s.%s is not changed", part, name)
			}
			after := withHashes(t, group)
			got := covered{runtime: after.RuntimeConfigHash != before.RuntimeConfigHash, infra: after.InfraConfigHash != before.InfraConfigHash}
			if got != field.by {
				t.Errorf("%s.%s changes %+v, want %+v", part, name, got, field.by)
			}
		}
	}
}

// A field of the userdata that is not set must not change the ETag of every group.
func TestUnsetFieldsOfUserdataAreInNoETag(t *testing.T) {
	data, err := json.Marshal(config.Userdata{URL: "https://example.com"})
	require.NoError(t, err)
	require.JSONEq(t, `{"Inline": "", "URL": "https://example.com", "Encoding": ""}`, string(data))
}

// TestEqualConfigurationHasEqualHashes compares different forms of equal
// configurations.
func TestEqualConfigurationHasEqualHashes(t *testing.T) {
	empty := Group{
		Settings: Settings{SubnetPools: []string{}, Vars: map[string]string{}}, Args: map[string]any{},
		Files: map[string]config.File{}, Userdata: config.Userdata{Encoding: config.EncodingPlain},
	}
	tests := []struct {
		name   string
		first  Group
		second Group
	}{
		{"nothing and empty", Group{}, empty},
		{"a file without content", Group{Files: map[string]config.File{"a": {Kind: "env"}}}, Group{Files: map[string]config.File{"a": {Kind: "env", Content: map[string]any{}}}}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			first, second := withHashes(t, tc.first), withHashes(t, tc.second)
			if first.RuntimeConfigHash != second.RuntimeConfigHash || first.InfraConfigHash != second.InfraConfigHash {
				t.Errorf("runtime %s and %s, infra %s and %s",
					first.RuntimeConfigHash, second.RuntimeConfigHash, first.InfraConfigHash, second.InfraConfigHash)
			}
		})
	}
}

// TestHashesFollowTheConfiguration checks that another configuration changes the hashes of
// every group, and that reading the same configuration again does not.
func TestHashesFollowTheConfiguration(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
	keys := []instance.GroupKey{main, plain, dynamic}
	before := snapshot(t, s)
	wantHashes := func(t *testing.T, want covered) {
		t.Helper()
		for _, key := range keys {
			after := get(t, s, key)
			got := covered{runtime: after.RuntimeConfigHash != before[key].RuntimeConfigHash, infra: after.InfraConfigHash != before[key].InfraConfigHash}
			if got != want {
				t.Errorf("of %s changes %+v, want %+v", key, got, want)
			}
		}
	}
	reconfigure(t, s, newConfig())
	wantHashes(t, byNone)

	next := newConfig()
	next.Defaults.Vars = map[string]string{"new": "1"}
	reconfigure(t, s, next)
	wantHashes(t, byRuntime)

	next = newConfig()
	next.Defaults.Userdata.Inline = "#!/bin/bash"
	reconfigure(t, s, next)
	wantHashes(t, byInfra)

	// Changes of size or timeout replace no instance.
	next = newConfig()
	next.Shard.DefaultDrainTimeout = time.Hour
	reconfigure(t, s, next)
	for _, key := range keys {
		upsert(t, s, key, Change{Size: 50})
	}
	wantHashes(t, byNone)
}
