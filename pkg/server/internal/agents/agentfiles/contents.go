// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
)

// contentsInterval is how often the secrets and the objects that files are made of are read, to
// find those that have changed.
const contentsInterval = 5 * time.Minute

// contentsMark separates, in the hash that an agent reports, the hash of the group's configuration
// from the digest of the secrets and objects.
const contentsMark = "+contents-"

// withoutContents returns the part of a hash that is about the configuration.
func withoutContents(hash string) string {
	configuration, _, _ := strings.Cut(hash, contentsMark)
	return configuration
}

// source is a secret or an object.
type source struct {
	// kind is the kind of files that are made of it.
	kind, name string
}

// sourcesOf returns the secrets and the objects that the files of a group are made of, sorted,
// without those that a machine needs once.
func sourcesOf(group *groups.Group) []source {
	found := map[source]bool{}
	for _, file := range group.Files {
		if file.Kind != config.FileSecret && file.Kind != config.FileStorage {
			continue
		}
		if parsed, err := file.Parse(); err == nil && !parsed.Once {
			found[source{file.Kind, parsed.Source}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b source) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
}

// hashOf returns the hash that an agent reports which has all files of a group, made of secrets and
// objects with these digests. known is false if a digest is missing: then the hash is only about
// the configuration.
func hashOf(group *groups.Group, digests map[source]string) (hash string, known bool) {
	sources := sourcesOf(group)
	if len(sources) == 0 {
		return group.RuntimeConfigHash, true
	}
	all := sha256.New()
	for _, s := range sources {
		digest, found := digests[s]
		if !found {
			return group.RuntimeConfigHash, false
		}
		fmt.Fprintln(all, digest)
	}
	return group.RuntimeConfigHash + contentsMark + hex.EncodeToString(all.Sum(nil)[:8]), true
}

// contentCache has what is known of the secrets and the objects that files are made of. What they
// contain now is known once they were read.
type contentCache struct {
	digests map[source]string
	// used are the sources that agents have needed since they were read last.
	used map[source]bool
}

func newContentCache() contentCache {
	return contentCache{digests: map[source]string{}, used: map[source]bool{}}
}

// upToDate reports whether the hash that an agent reports is the hash of the group's files as far
// as their contents are known.
func (c *contentCache) upToDate(hash string, group *groups.Group) bool {
	for _, s := range sourcesOf(group) {
		c.used[s] = true
	}
	want, known := hashOf(group, c.digests)
	if !known {
		hash = withoutContents(hash)
	}
	return hash == want
}

// learn stores digests. It reports whether a content is another one than before, or was not known.
func (c *contentCache) learn(digests map[source]string) (changed bool) {
	for s, digest := range digests {
		changed = changed || c.digests[s] != digest
		c.digests[s] = digest
	}
	return changed
}

// takeUsed returns the sources that were used since the last call, and forgets the others.
func (c *contentCache) takeUsed() []source {
	used := slices.Collect(maps.Keys(c.used))
	maps.DeleteFunc(c.digests, func(s source, _ string) bool { return !c.used[s] })
	c.used = map[source]bool{}
	return used
}

// followContents reads the secrets and objects again and again until ctx is done, and sends the
// files that contain those that have changed. What cannot be read has not changed.
func (p *Pusher) followContents(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(contentsInterval):
		}
		p.mu.Lock()
		used := p.contents.takeUsed()
		p.mu.Unlock()
		digests := map[source]string{}
		for _, s := range used {
			content, err := p.Renderer.read(ctx, s)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Failed to look whether a file has changed", "kind", s.kind, "source", s.name)
				continue
			}
			digests[s] = p.Renderer.Digest(content)
		}
		p.mu.Lock()
		p.learn(digests)
		p.mu.Unlock()
	}
}

// learn stores digests, and looks at all agents if a content has changed.
func (p *Pusher) learn(digests map[source]string) {
	if !p.contents.learn(digests) {
		return
	}
	for id := range p.agents {
		p.queue.Add(id)
	}
}
