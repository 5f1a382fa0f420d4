// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/nodesettings"
)

// The structs below define, as JSON, the input of the two hashes of a group.
// They have no other use: a new field of Group, or a renamed setting, must not
// change any hash (docs/server.md#groups). A change of infraConfig replaces
// every instance of every group.
//
// Empty maps are omitted like missing maps: reading the same configuration
// again must give the same hash.

// runtimeConfig contains the settings that agents can receive while their
// instance runs.
type runtimeConfig struct {
	Vars  map[string]string      `json:"vars,omitempty"`
	Files map[string]runtimeFile `json:"files,omitempty"`
	// Node may be part of files, as vars may.
	Node nodesettings.Settings `json:"node,omitzero"`
}

type runtimeFile struct {
	Kind    string         `json:"kind"`
	Content map[string]any `json:"content,omitempty"`
}

// infraConfig contains the settings that only a new instance can receive. Another subnet pool
// or argument therefore replaces the instances of a group one after another, even if the
// running instances would still do (docs/server.md#groups). settings.go lists the settings
// that operators set.
type infraConfig struct {
	Args map[string]any `json:"args,omitempty"`
	infraSettings
	Userdata infraUserdata `json:"userdata"`
	Kind     string        `json:"kind"`
	Arch     string        `json:"arch"`
}

type infraUserdata struct {
	Inline   string `json:"inline,omitempty"`
	URL      string `json:"url,omitempty"`
	SHA256   string `json:"sha256,omitempty"`
	Encoding string `json:"encoding"`
}

// runtimeConfigHash hashes the settings before rendering, because rendered settings differ
// between instances.
func (g *Group) runtimeConfigHash() (string, error) {
	files := make(map[string]runtimeFile, len(g.Files))
	for name, file := range g.Files {
		files[name] = runtimeFile{Kind: file.Kind, Content: file.Content}
	}
	return hash(runtimeConfig{Vars: g.Vars, Files: files, Node: g.Node})
}

// infraConfigHash hashes the settings before rendering, like runtimeConfigHash.
func (g *Group) infraConfigHash() (string, error) {
	return hash(infraConfig{
		Args:          g.Args,
		infraSettings: g.infra(),
		Userdata: infraUserdata{
			Inline: g.Userdata.Inline,
			URL:    g.Userdata.URL,
			SHA256: g.Userdata.SHA256,
			// An unset encoding means plain.
			Encoding: cmp.Or(g.Userdata.Encoding, config.EncodingPlain),
		},
		Kind: g.Kind,
		Arch: g.Arch,
	})
}

func hash(value any) (string, error) {
	sum, err := digest(value)
	return "sha256:" + sum, err
}

// digest returns the same digest for equal values, because JSON orders maps by
// key.
func digest(value any) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// etagContent is the input of the ETag.
type etagContent struct {
	Key               instance.GroupKey
	Template          string
	Kind              string
	Size              int32
	MinSize           int32          `json:",omitempty"`
	RemoveFirst       []string       `json:",omitempty"`
	Rotation          *RotationGrant `json:",omitempty"`
	Replace           []string       `json:",omitempty"`
	InstanceType      string
	SubnetPools       []string
	Vars              map[string]string
	Static            bool
	Arch              string
	Args              map[string]any
	Userdata          config.Userdata
	Files             map[string]config.File
	DrainTimeout      time.Duration
	KeepUnhealthy     bool     `json:",omitempty"`
	LoadBalancers     []string `json:",omitempty"`
	RuntimeConfigHash string
	InfraConfigHash   string
	ETag              string
	Declared          *Settings `json:",omitempty"`
	Revision          *Revision `json:",omitempty"`
	// Settings are the settings without a field above: unset settings are left out, so that
	// adding a setting does not change the ETag of any group.
	Settings Settings `json:",omitzero"`
}

// etag is computed after the hashes.
func (g *Group) etag() (string, error) {
	others := g.Settings
	others.Template, others.InstanceType, others.SubnetPools, others.Vars, others.LoadBalancers = "", "", nil, nil, nil
	return digest(etagContent{
		Key:               g.Key,
		Template:          g.Template,
		Kind:              g.Kind,
		Size:              g.Size,
		MinSize:           g.MinSize,
		RemoveFirst:       g.RemoveFirst,
		Rotation:          g.Rotation,
		Replace:           g.Replace,
		InstanceType:      g.InstanceType,
		SubnetPools:       g.SubnetPools,
		Vars:              g.Vars,
		Static:            g.Static,
		Arch:              g.Arch,
		Args:              g.Args,
		Userdata:          g.Userdata,
		Files:             g.Files,
		DrainTimeout:      g.DrainTimeout,
		KeepUnhealthy:     g.KeepUnhealthy,
		LoadBalancers:     g.LoadBalancers,
		RuntimeConfigHash: g.RuntimeConfigHash,
		InfraConfigHash:   g.InfraConfigHash,
		ETag:              g.ETag,
		Declared:          g.Declared,
		Revision:          g.Revision,
		Settings:          others,
	})
}

// setHashes sets the hashes and then the ETag from the other fields.
func (g *Group) setHashes() error {
	var err error
	if g.RuntimeConfigHash, err = g.runtimeConfigHash(); err != nil {
		return fmt.Errorf("compute the runtime config hash of group %s: %w", g.Key, err)
	}
	if g.InfraConfigHash, err = g.infraConfigHash(); err != nil {
		return fmt.Errorf("compute the infra config hash of group %s: %w", g.Key, err)
	}
	for n := range g.Variants {
		v := &g.Variants[n]
		if v.InfraConfigHash, err = g.As(*v).infraConfigHash(); err != nil {
			return fmt.Errorf("compute the infra config hash of candidate %s of group %s: %w", v.Name, g.Key, err)
		}
	}
	if len(g.Variants) > 0 {
		g.InfraConfigHash = g.Variants[0].InfraConfigHash
	}
	if g.ETag, err = g.etag(); err != nil {
		return fmt.Errorf("compute the etag of group %s: %w", g.Key, err)
	}
	return nil
}
