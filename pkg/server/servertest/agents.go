// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// machines has the userdata of the instances.
type machines struct {
	mu       sync.Mutex
	userdata map[string][]byte
}

// providers returns the registry of the server. With Agents its provider says that instances
// run an agent, and records their userdata.
func (s *Server) providers() provider.Registry {
	read := kwoktest.Providers(s.Kubernetes)[kwoktest.Name]
	return provider.Registry{kwoktest.Name: func(o *jsonc.Object) provider.Options {
		options := read(o)
		if s.options.Agents {
			options = &agentOptions{options, s.machines, s.options.CheckSource, s.options.VerifyIdentity}
		}
		if s.options.Balancers != nil {
			options = BalancerOptions{providertest.BalancerOptions{Options: options}, s.options.Balancers}
		}
		return options
	}}
}

type agentOptions struct {
	provider.Options
	machines    *machines
	checkSource bool
	verify      func(identity []byte, audience string) error
}

// ChecksSource returns Options.CheckSource.
func (o *agentOptions) ChecksSource() bool { return o.checkSource }

// RequiresAttestation reports whether there is Options.VerifyIdentity.
func (o *agentOptions) RequiresAttestation() bool { return o.verify != nil }

// VerifyIdentity calls Options.VerifyIdentity.
func (o *agentOptions) VerifyIdentity(_ context.Context, _ string, identity []byte, audience string) error {
	return o.verify(identity, audience)
}

// RunsAgent returns true.
func (o *agentOptions) RunsAgent() bool { return true }

// NewProvider returns the provider.
func (o *agentOptions) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	p, err := o.Options.NewProvider(shard, callContext)
	return &agentProvider{p, o.machines}, err
}

type agentProvider struct {
	provider.Provider
	machines *machines
}

// Get returns an instance with the address and the host name that agents report in tests.
func (p *agentProvider) Get(id string) (instance.VM, bool) {
	vm, found := p.Provider.Get(id)
	return described(vm), found
}

// List is like Get for the instances of a group.
func (p *agentProvider) List(group instance.GroupKey) []instance.VM {
	vms := p.Provider.List(group)
	for n := range vms {
		vms[n] = described(vms[n])
	}
	return vms
}

func described(vm instance.VM) instance.VM {
	vm.Addresses, vm.Hostname = machineAddresses, "machine.internal"
	return vm
}

// machineAddresses are the addresses of each machine.
var machineAddresses = []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")}

// Create records the userdata.
func (p *agentProvider) Create(ctx context.Context, spec provider.Spec) error {
	if err := p.Provider.Create(ctx, spec); err != nil {
		return err
	}
	p.machines.mu.Lock()
	defer p.machines.mu.Unlock()
	p.machines.userdata[spec.ID] = spec.Userdata
	return nil
}

// Created returns the userdata of all instances that the server has created, by id.
func (s *Server) Created() map[string][]byte {
	s.machines.mu.Lock()
	defer s.machines.mu.Unlock()
	return maps.Clone(s.machines.userdata)
}

// Nonce returns the nonce of an instance's agent, as soon as the instance was created.
func (s *Server) Nonce(id string) string {
	s.t.Helper()
	var nonce string
	err := wait.PollUntilContextTimeout(s.t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		userdata, created := s.Created()[id]
		_, nonce, _ = strings.Cut(string(userdata), " ")
		return created, nil
	})
	require.NoError(s.t, err, "waiting for the creation of instance %s", id)
	return nonce
}

// AgentKey returns a new key, and its public part as PEM.
func (s *Server) AgentKey() (ed25519.PrivateKey, []byte) {
	s.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(s.t, err)
	publicPEM, err := keys.EncodePublic(public)
	require.NoError(s.t, err)
	return private, publicPEM
}

// RegisterAgent registers the agent of an instance with a new key, and returns a client
// with its certificate.
func (s *Server) RegisterAgent(id string) nstancev1.AgentServiceClient {
	s.t.Helper()
	key, publicPEM := s.AgentKey()
	// The number of connections of one address is limited.
	conn := s.connect(s.RegistrationAddr)
	defer conn.Close()
	response, err := nstancev1.NewRegistrationServiceClient(conn).RegisterAgent(s.t.Context(), &nstancev1.RegisterClientRequest{
		RegistrationNonceJwt: s.Nonce(id), PublicKeyPem: publicPEM, PrivateIpv4: "10.0.0.7", Hostname: "machine",
	})
	require.NoError(s.t, err)
	return s.AgentWith(response.GetClientCertificatePem(), key)
}

// AgentWith returns a client for agents that has a certificate, PEM.
func (s *Server) AgentWith(certificatePEM []byte, key ed25519.PrivateKey) nstancev1.AgentServiceClient {
	s.t.Helper()
	certificate, err := pki.ParseCertificate(certificatePEM)
	require.NoError(s.t, err)
	return nstancev1.NewAgentServiceClient(s.connect(s.AgentAddr, tls.Certificate{Certificate: [][]byte{certificate.Raw}, PrivateKey: key}))
}

// Agent returns a client for agents that calls as c, without a registration.
func (s *Server) Agent(c pki.Client) nstancev1.AgentServiceClient {
	s.t.Helper()
	return nstancev1.NewAgentServiceClient(s.connect(s.AgentAddr, s.certificate(c)))
}

// BalancerOptions add load balancers to the options of another provider.
type BalancerOptions struct {
	providertest.BalancerOptions
	Balancers *providertest.Balancers
}

// RunsAgent returns the value of the other provider.
func (o BalancerOptions) RunsAgent() bool { return provider.RunsAgent(o.Options) }

// NewProvider returns the other provider with the load balancers.
func (o BalancerOptions) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	p, err := o.Options.NewProvider(shard, callContext)
	return balancerProvider{p, o.Balancers}, err
}

type balancerProvider struct {
	provider.Provider
	*providertest.Balancers
}
