// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package rotation decides when the replacement of a cluster's CA may go on. It knows from the
// storage which servers and clients have followed the present phase
// (docs/runbooks/rotate-the-ca.md#rotate-the-ca).
package rotation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
)

// bootTime is how long after its creation a machine may use its userdata: nonces in userdata are
// valid for 4 minutes (docs/server.md#agents).
const bootTime = 5 * time.Minute

// reads is how many objects are read at the same time.
const reads = 16

// Booting is the name of all machines whose userdata may still have the authorities of before.
const Booting = "booting"

// Behind is a server or a client that has not followed the present phase.
type Behind struct {
	// Name identifies it: Booting, shard/SHARD, server/SHARD/SERVER, operator/TENANT/CLIENT,
	// agent/SHARD/INSTANCE or nonce-issuer/NAME.
	Name string
	// Reason is what is missing.
	Reason string
}

// Check returns the servers and clients that have not followed the present phase, sorted by name.
// They would lose their connection with the next phase. There are none without a replacement.
func Check(ctx context.Context, store storage.Store, now time.Time) ([]Behind, error) {
	a, _, err := clusterkeys.ReadAuthorities(ctx, store)
	if err != nil {
		return nil, err
	}
	if a.Phase == clusterkeys.PhaseNone {
		return nil, nil
	}
	c := checker{store: store, phase: a.Phase, now: now}
	if c.accepted, err = a.Fingerprints(); err != nil {
		return nil, err
	}
	if len(c.accepted) != 2 {
		return nil, fmt.Errorf("object %s: phase %q has %d authorities, needs two", storage.AuthoritiesKey, a.Phase, len(c.accepted))
	}
	c.next = c.accepted[0]
	if a.Phase == clusterkeys.PhaseAccept {
		c.next = c.accepted[1]
	}
	for _, check := range []func(context.Context) error{c.servers, c.operators, c.agents, c.nonceIssuers} {
		if err := check(ctx); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(c.behind, func(a, b Behind) int { return strings.Compare(a.Name, b.Name) })
	return c.behind, nil
}

type checker struct {
	store storage.Store
	phase clusterkeys.Phase
	// accepted are the accepted authorities, and next is the new authority.
	accepted []string
	next     string
	now      time.Time
	behind   []Behind
}

func (c *checker) add(name, format string, args ...any) {
	c.behind = append(c.behind, Behind{Name: name, Reason: fmt.Sprintf(format, args...)})
}

// servers checks that each server that has ever reported has loaded the authorities, and that each
// shard has such a server. A server that does not run loads them when it starts.
func (c *checker) servers(ctx context.Context) error {
	configs, err := c.store.List(ctx, "config/")
	if err != nil {
		return fmt.Errorf("list the shards: %w", err)
	}
	reports, err := c.store.List(ctx, storage.LoadedAuthoritiesPrefix)
	if err != nil {
		return fmt.Errorf("list the servers: %w", err)
	}
	var last time.Time
	reported := map[string]bool{}
	for _, info := range reports {
		name := strings.TrimSuffix(strings.TrimPrefix(info.Key, storage.LoadedAuthoritiesPrefix), ".json")
		shard, _, _ := strings.Cut(name, "/")
		reported[shard] = true
		var loaded clusterkeys.Loaded
		if found, err := readJSON(ctx, c.store, info.Key, &loaded); err != nil {
			return err
		} else if !found {
			continue
		}
		if !slices.Equal(loaded.Fingerprints, c.accepted) {
			c.add("server/"+name, "has not loaded the present authorities; if it does not run any more, delete object %s", info.Key)
		}
		if loaded.LoadedAt.After(last) {
			last = loaded.LoadedAt
		}
	}
	for _, info := range configs {
		shard, isConfig := strings.CutSuffix(strings.TrimPrefix(info.Key, "config/"), ".jsonc")
		if isConfig && !reported[shard] {
			c.add("shard/"+shard, "no server of the shard has loaded the present authorities")
		}
	}
	if ready := last.Add(bootTime); c.phase == clusterkeys.PhaseAccept && c.now.Before(ready) {
		c.add(Booting, "machines that boot may trust only the old authority until %s", ready.UTC().Format(time.RFC3339))
	}
	return nil
}

// operators checks the registrations of operators and administrators.
func (c *checker) operators(ctx context.Context) error {
	infos, err := c.store.List(ctx, storage.OperatorPrefix)
	if err != nil {
		return fmt.Errorf("list the registrations: %w", err)
	}
	for _, info := range infos {
		tenant, client, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(info.Key, storage.OperatorPrefix), ".json"), ".")
		if !ok {
			continue
		}
		record, err := registration.ReadRecord(ctx, c.store, tenant, client)
		if err != nil {
			return err
		}
		if record == nil || record.CertSerial == "" || slices.Contains(record.RevokedSerials, record.CertSerial) || c.now.After(record.ExpiresAt) {
			continue
		}
		name := "operator/" + tenant + "/" + client
		if !c.client(name, record.Trust, record.ExpiresAt) && c.phase == clusterkeys.PhaseIssue && c.now.Before(record.PreviousUntil) {
			c.add(name, "may use its certificate of before until %s", record.PreviousUntil.Format(time.RFC3339))
		}
	}
	return nil
}

// client adds a client that has not followed.
func (c *checker) client(name string, trust *pki.Trust, expires time.Time) (behind bool) {
	until := expires.UTC().Format(time.RFC3339)
	switch {
	case trust == nil:
		c.add(name, "does not say which authorities it trusts; its certificate is valid until %s", until)
	case !slices.Contains(trust.Authorities, c.next):
		c.add(name, "does not trust the new authority yet; its certificate is valid until %s", until)
	case c.phase == clusterkeys.PhaseIssue && trust.Issuer != c.next:
		c.add(name, "has no certificate of the new authority yet; its certificate is valid until %s", until)
	default:
		return false
	}
	return true
}

// agents checks the registrations of agents.
func (c *checker) agents(ctx context.Context) error {
	const prefix = "instance/"
	infos, err := c.store.List(ctx, prefix)
	if err != nil {
		return fmt.Errorf("list the instances: %w", err)
	}
	records := make([]*instance.Record, len(infos))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(reads)
	for i, info := range infos {
		g.Go(func() error {
			object, err := c.store.Get(ctx, info.Key)
			if errors.Is(err, storage.ErrNotFound) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("read object %s: %w", info.Key, err)
			}
			record, err := instance.UnmarshalRecord(object.Data)
			if err != nil {
				return fmt.Errorf("object %s: %w", info.Key, err)
			}
			records[i] = &record
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, record := range records {
		if record == nil || record.Registration == nil || c.now.After(record.Registration.ExpiresAt) {
			continue
		}
		shard, _, _ := strings.Cut(strings.TrimPrefix(infos[i].Key, prefix), "/")
		c.client("agent/"+shard+"/"+record.ID, record.Registration.Trust, record.Registration.ExpiresAt)
	}
	return nil
}

// nonceIssuers checks that the certificate that each nonce issuer uses is from the new authority.
// Before the new authority issues there is no such certificate.
func (c *checker) nonceIssuers(ctx context.Context) error {
	if c.phase != clusterkeys.PhaseIssue {
		return nil
	}
	infos, err := c.store.List(ctx, storage.NonceIssuerPrefix)
	if err != nil {
		return fmt.Errorf("list the nonce issuers: %w", err)
	}
	for _, info := range infos {
		name := strings.TrimSuffix(strings.TrimPrefix(info.Key, storage.NonceIssuerPrefix), ".json")
		record, err := registration.ReadNonceIssuer(ctx, c.store, name)
		if err != nil {
			return err
		}
		if record == nil {
			continue
		}
		for _, certificate := range slices.Backward(record.Certificates) {
			if !certificate.Usable(c.now) {
				continue
			}
			if certificate.Authority != c.next {
				c.add("nonce-issuer/"+name, "has no certificate of the new authority yet; its certificate is valid until %s", certificate.ExpiresAt.UTC().Format(time.RFC3339))
			}
			break
		}
	}
	return nil
}

// readJSON reads an object. found is false if it does not exist.
func readJSON(ctx context.Context, store storage.Store, key string, value any) (found bool, err error) {
	object, err := store.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read object %s: %w", key, err)
	}
	if err := json.Unmarshal(object.Data, value); err != nil {
		return false, fmt.Errorf("object %s: %w", key, err)
	}
	return true, nil
}

// ErrBehind means that the next phase would disconnect servers or clients.
var ErrBehind = errors.New("not all have followed the present phase")

// Without returns an error that wraps ErrBehind unless names has all that are behind.
func Without(behind []Behind, names []string) error {
	var missing []string
	for _, b := range behind {
		if !slices.Contains(names, b.Name) {
			missing = append(missing, "  "+b.Name+" "+b.Reason)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n%s", ErrBehind, strings.Join(missing, "\n"))
}
