// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// FuzzDecode reads arbitrary objects with dynamic groups, as a writer of the bucket could store.
// What a server accepts, with its configuration, is the same after it was written.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"default": {"workers": {"template": "worker", "size": 2, "vars": {"a": "b"}}}, "retired_uids": {"default": ["u"]}}`))
	f.Add([]byte(`{"default": {"workers": null, "main": {"size": -1, "when_dropped": {"size": 1}}}, "other": null}`))
	f.Add([]byte(`{"format_version": 1, "later_field": [1], "default": {"a": {"size": 1, "later": {}}}} // comment`))
	f.Add([]byte(`{"group_marks": {"default": {"a": {}}}, "default": {}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := decode(data)
		if err != nil {
			return
		}
		if first, err = first.keepDropped(nil, newConfig()); err != nil {
			return
		}
		if _, _, _, err := first.mergeValid(newConfig(), objectKey, nil); err != nil {
			return
		}
		encoded, err := new(encoder).encode(first)
		require.NoError(t, err)
		second, err := decode(encoded)
		require.NoError(t, err, "%s", encoded)
		again, err := new(encoder).encode(second)
		require.NoError(t, err)
		assert.Equal(t, string(encoded), string(again))
	})
}

// FuzzUpsert makes arbitrary requests of an operator. What is accepted is of the operator's tenant,
// is within the limits, and a server that starts reads it.
func FuzzUpsert(f *testing.F) {
	add := func(request *nstancev1.UpsertGroupRequest) {
		seed, err := proto.Marshal(request)
		require.NoError(f, err)
		f.Add(seed)
	}
	add(&nstancev1.UpsertGroupRequest{Key: "dynamic", Config: &nstancev1.GroupConfig{Template: "worker", Size: 2, Subnets: []string{"open"}, Vars: map[string]string{"role": "x"}}})
	add(&nstancev1.UpsertGroupRequest{Key: "main", Declarative: true, Config: &nstancev1.GroupConfig{Size: -1, InstanceType: "t3.large"}, RemoveFirst: []string{"a", "a"}})
	add(&nstancev1.UpsertGroupRequest{Key: "../x", Config: &nstancev1.GroupConfig{Template: "bare", Size: 1 << 30, Args: map[string]string{"a": "b"}}})
	add(&nstancev1.UpsertGroupRequest{Key: "plain", Config: &nstancev1.GroupConfig{Size: 1, Vars: map[string]string{"role": "$(reboot)\x1b"}}, Revision: &nstancev1.Revision{Uid: "u", Generation: 1}})
	add(&nstancev1.UpsertGroupRequest{Key: "plain", Config: &nstancev1.GroupConfig{Size: 1}, Rotation: &nstancev1.RotationGrant{MaxSurge: proto.Int32(1), UpToDate: proto.Int32(-1), Target: "t"}})
	f.Fuzz(func(t *testing.T, data []byte) {
		request := &nstancev1.UpsertGroupRequest{}
		if proto.Unmarshal(data, request) != nil {
			return
		}
		store := newStorage(t)
		key, config := instance.GroupKey{Tenant: "default", Group: request.GetKey()}, request.GetConfig()
		var revision *Revision
		if r := request.GetRevision(); r != nil {
			revision = &Revision{UID: r.GetUid(), Generation: r.GetGeneration()}
		}
		var rotation *RotationGrant
		if r := request.GetRotation(); r != nil {
			rotation = &RotationGrant{MaxSurge: r.GetMaxSurge(), MaxUnavailable: r.GetMaxUnavailable(), UpToDate: r.GetUpToDate(), MaxAgeSeconds: r.GetMaxAgeSeconds(), Target: r.GetTarget()}
		}
		group, _, err := open(t, store).Upsert(t.Context(), key, Change{
			Settings: SettingsOf(config), Declarative: request.GetDeclarative(), Size: config.GetSize(),
			RemoveFirst: request.GetRemoveFirst(), Rotation: rotation, Replace: request.GetReplace(), Args: config.GetArgs(), Revision: revision,
		})
		if err != nil {
			return
		}
		assert.NoError(t, ValidateKey(key))
		assert.Empty(t, ValidateVars(nil, group.Vars))
		assert.Empty(t, ValidateVarChanges(nil, []string{"*"}, nil, config.GetVars()), "control characters")
		assert.GreaterOrEqual(t, group.Size, int32(0))
		read, found := open(t, store).Get(key)
		require.True(t, found)
		assert.Equal(t, group.Settings, read.Settings)
		assert.Equal(t, group.Size, read.Size)
		assert.Equal(t, rotation, read.Rotation)
	})
}
