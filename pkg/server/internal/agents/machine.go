// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"unicode"
	"unicode/utf8"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
)

// ErrMachine means that an agent reports an invalid address or host name.
var ErrMachine = errors.New("the description of the machine is not valid")

// maxHostname is the maximum length of a host name.
const maxHostname = 253

// Machine describes the agent's machine, as the agent reports it. Each field may be empty.
type Machine struct {
	IPv4, IPv6, Hostname string
}

// validated returns the machine with addresses in canonical form.
func (m Machine) validated() (Machine, error) {
	var err error
	if m.IPv4, err = validateAddress("private_ipv4", m.IPv4, netip.Addr.Is4); err != nil {
		return m, err
	}
	if m.IPv6, err = validateAddress("private_ipv6", m.IPv6, func(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }); err != nil {
		return m, err
	}
	if len(m.Hostname) > maxHostname || !utf8.ValidString(m.Hostname) {
		return m, fmt.Errorf("%w: hostname must be text of at most %d bytes", ErrMachine, maxHostname)
	}
	for _, c := range m.Hostname {
		if !unicode.IsGraphic(c) || unicode.IsSpace(c) {
			return m, fmt.Errorf("%w: hostname must have printable characters only", ErrMachine)
		}
	}
	return m, nil
}

func validateAddress(name, value string, ofFamily func(netip.Addr) bool) (string, error) {
	if value == "" {
		return "", nil
	}
	address, err := netip.ParseAddr(value)
	if err != nil || !ofFamily(address) || address.Zone() != "" {
		return "", fmt.Errorf("%w: %s must be an address of that version", ErrMachine, name)
	}
	return address.String(), nil
}

// compare returns an error if the provider reports addresses of an instance, and an address
// of the machine is not among them. The host name is not compared: it need not be known to the
// provider, unless a certificate has it (provision.FileFacts).
func (m Machine) compare(i *instance.Instance) error {
	if len(i.Addresses) == 0 {
		return nil
	}
	for _, said := range []struct{ field, address string }{{"private_ipv4", m.IPv4}, {"private_ipv6", m.IPv6}} {
		if said.address != "" && !provision.HasAddress(i.Addresses, said.address) {
			return fmt.Errorf("%w: %s is %s, must be an address that the provider reports: %v", ErrMachine, said.field, said.address, i.Addresses)
		}
	}
	return nil
}

var (
	// ErrSource means that an agent registers from an address of another machine.
	ErrSource = errors.New("the request does not come from the machine of the instance")
	// errNoAddress means that the source of a request cannot be compared yet.
	errNoAddress = errors.New("the provider has not reported the addresses of the instance yet")
)

// compareSource returns an error unless a request comes from an address that the provider reports
// for the instance. A nonce that was copied from userdata is of no use elsewhere. If the provider
// has not reported the instance yet, the agent tries again, and the error does not wrap ErrSource.
func compareSource(i *instance.Instance, source netip.Addr) error {
	switch {
	case len(i.Addresses) == 0:
		return errNoAddress
	case !provision.HasAddress(i.Addresses, source.WithZone("").String()):
		return fmt.Errorf("%w: it comes from %s, must come from an address that the provider reports: %v (behind a NAT or a proxy, set check_source_address to false)",
			ErrSource, source, i.Addresses)
	}
	return nil
}

// refuse records that the provider contradicts an agent, and returns the error for the agent,
// which wraps why.
func (r *Registrar) refuse(ctx context.Context, i *instance.Instance, why error) error {
	why = fmt.Errorf("register the agent of instance %s: %w", i.ID, why)
	// Each refusal is an object, like each certificate. Their limit is their own: the agent itself
	// may be another process than the refused one.
	if err := r.refusals.Check(i.ID); err != nil {
		return fmt.Errorf("%w; %w", why, err)
	}
	r.Failed(i.Key(), i.ID, why)
	request := audit.RequestFrom(ctx)
	err := r.AuditLog.Write(ctx, auditlog.Entry{
		Action: audit.RefuseRegistration, Tenant: i.Tenant, Instance: i.ID, Reason: why.Error(), Writer: request.Writer, RequestID: request.ID,
	})
	if err != nil {
		return fmt.Errorf("%w; %w", why, err)
	}
	return why
}

var (
	// ErrAttestation means that an agent has not proven that it runs on the machine of its
	// instance.
	ErrAttestation = errors.New("the identity of the machine is not proven")
	// errNoProviderID means that a signed identity cannot be compared yet.
	errNoProviderID = errors.New("the provider has not reported the id of the machine yet")
)

// maxIdentity is the maximum length of a signed identity, in bytes. The clouds sign documents of 2
// KiB.
const maxIdentity = 16 << 10

// attest returns an error if the configuration requires the signed identity of the machine, and the
// request does not have the identity of the machine of this instance. If that is not known, the
// agent tries again, and the error does not wrap ErrAttestation.
func (r *Registrar) attest(ctx context.Context, i *instance.Instance, request Request) error {
	attestation := provider.RequiredAttestation(r.Groups.Config().Shard.Infra.Options)
	switch {
	case attestation == nil:
		return nil
	case i.ProviderID == "":
		return errNoProviderID
	case len(request.Identity) == 0:
		return fmt.Errorf("%w: the agent has not sent the identity that the cloud signs, see its log", ErrAttestation)
	case len(request.Identity) > maxIdentity:
		return fmt.Errorf("%w: machine_identity has %d bytes, at most %d are allowed", ErrAttestation, len(request.Identity), maxIdentity)
	}
	err := attestation.VerifyIdentity(ctx, i.ProviderID, request.Identity, keys.Audience(request.Token, request.PublicKeyPEM))
	if err != nil && !errors.Is(err, provider.ErrNotVerified) {
		return fmt.Errorf("%w: %w", ErrAttestation, err)
	}
	return err
}
