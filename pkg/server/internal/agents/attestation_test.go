// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/provider"
)

// attestedOptions are the options of a provider whose agents must prove their machine.
type attestedOptions struct {
	provider.Options
	verify func(providerID string, identity []byte, audience string) error
}

func (attestedOptions) RequiresAttestation() bool { return true }

func (o attestedOptions) VerifyIdentity(_ context.Context, providerID string, identity []byte, audience string) error {
	return o.verify(providerID, identity, audience)
}

type attestedGroups struct {
	Groups
	options attestedOptions
}

func (g attestedGroups) Config() *config.Config {
	c := *g.Groups.Config()
	c.Shard.Infra.Options = g.options
	return &c
}

// An agent that sends no identity, as earlier versions do, is registered unless it is required.
func TestAnAgentProvesItsMachine(t *testing.T) {
	r, id := newRegistrar(t)
	token := newNonce(t, id)
	_, keyPEM := newKey(t, 1)
	register := func(identity string) error {
		_, err := r.Register(t.Context(), Request{Token: token, PublicKeyPEM: keyPEM, Identity: []byte(identity)})
		return err
	}
	require.NoError(t, register(""))
	require.NoError(t, register("not verified"))

	const machine = "test://zone/machine"
	without := r.Groups
	r.Groups = attestedGroups{without, attestedOptions{verify: func(providerID string, identity []byte, audience string) error {
		if string(identity) == "unknown" {
			return fmt.Errorf("%w: the keys cannot be read", provider.ErrNotVerified)
		}
		if got, want := string(identity), fmt.Sprintf("%s for %s", machine, keys.Audience(token, keyPEM)); providerID != machine || got != want {
			return errors.New("it is of another machine")
		}
		assert.Equal(t, keys.Audience(token, keyPEM), audience)
		return nil
	}}}
	refused := refusals(r)
	var refreshed []string
	r.Refresh = func(id string) { refreshed = append(refreshed, id) }

	err := register("any")
	require.ErrorIs(t, err, errNoProviderID)
	require.NotErrorIs(t, err, ErrAttestation)
	assert.Equal(t, []string{id}, refreshed)
	require.NoError(t, r.Instances.(*instancestore.Store).SetProviderID(t.Context(), id, machine))
	err = register("unknown")
	require.ErrorIs(t, err, provider.ErrNotVerified)
	require.NotErrorIs(t, err, ErrAttestation)
	assert.Empty(t, *refused, "it is not known whether the agent runs elsewhere")

	otherToken, otherKey := newNonce(t, id)+"x", append(bytes.Clone(keyPEM), '\n')
	for identity, want := range map[string]string{
		"":                                  "the agent has not sent the identity",
		"test://zone/machine":               "it is of another machine",
		string(make([]byte, maxIdentity+1)): "machine_identity has 16385 bytes, at most 16384 are allowed",
		machine + " for " + keys.Audience(otherToken, keyPEM): "it is of another machine",
		machine + " for " + keys.Audience(token, otherKey):    "it is of another machine",
	} {
		err := register(identity)
		require.ErrorIs(t, err, ErrAttestation)
		assert.ErrorContains(t, err, want)
	}
	assert.Len(t, *refused, 5)
	assert.Equal(t, audit.RefuseRegistration, lastEntry(t, r).Action)
	require.NoError(t, register(machine+" for "+keys.Audience(token, keyPEM)))
}
