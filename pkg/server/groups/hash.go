// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"nstance.dev/operator/pkg/server/config"
)

// The structs below are what the two hashes of a group are computed from, as
// JSON. They and the names in it are used for nothing else: what is added to
// Group, or renamed in the configuration, changes no hash (server document).
// Whoever changes infraConfig replaces every instance of every group.
//
// A map that is empty is left out like one that is absent: reading the same
// configuration again must not make another hash of it.

// runtimeConfig is what agents can be sent while their instance runs.
type runtimeConfig struct {
	Vars  map[string]string      `json:"vars,omitempty"`
	Files map[string]runtimeFile `json:"files,omitempty"`
}

type runtimeFile struct {
	Kind    string         `json:"kind"`
	Content map[string]any `json:"content,omitempty"`
}

// infraConfig is what it takes another instance to change. All of it is here by
// the server document, so another subnet pool or argument replaces the instances
// of a group one after another, though those that run would do.
type infraConfig struct {
	Args         map[string]any `json:"args,omitempty"`
	InstanceType string         `json:"instance_type"`
	SubnetPools  []string       `json:"subnet_pools,omitempty"`
	Userdata     infraUserdata  `json:"userdata"`
	Kind         string         `json:"kind"`
	Arch         string         `json:"arch"`
}

type infraUserdata struct {
	Inline   string `json:"inline,omitempty"`
	URL      string `json:"url,omitempty"`
	Encoding string `json:"encoding"`
}

// runtimeConfigHash is computed before rendering: what is rendered differs from
// instance to instance.
func (g *Group) runtimeConfigHash() (string, error) {
	files := make(map[string]runtimeFile, len(g.Files))
	for name, file := range g.Files {
		files[name] = runtimeFile{Kind: file.Kind, Content: file.Content}
	}
	return hash(runtimeConfig{Vars: g.Vars, Files: files})
}

// infraConfigHash is computed before rendering, likewise.
func (g *Group) infraConfigHash() (string, error) {
	return hash(infraConfig{
		Args:         g.Args,
		InstanceType: g.InstanceType,
		SubnetPools:  g.SubnetPools,
		Userdata: infraUserdata{
			Inline: g.Userdata.Inline,
			URL:    g.Userdata.URL,
			// Not to say it means the same.
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

// digest is the same for equal values: JSON has maps in the order of their keys.
func digest(value any) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// sign computes the hashes and then the ETag of what has been filled in.
func (g *Group) sign() error {
	var err error
	if g.RuntimeConfigHash, err = g.runtimeConfigHash(); err != nil {
		return fmt.Errorf("computing the runtime config hash of group %s: %w", g.Key, err)
	}
	if g.InfraConfigHash, err = g.infraConfigHash(); err != nil {
		return fmt.Errorf("computing the infra config hash of group %s: %w", g.Key, err)
	}
	if g.ETag, err = digest(g); err != nil {
		return fmt.Errorf("computing the etag of group %s: %w", g.Key, err)
	}
	return nil
}
