// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// FileFacts are the values that the templates of files can use: the values for arguments, and
// the description of the machine (docs/server-reference.md#files).
type FileFacts struct {
	// values are what templates see.
	values any
	// certified is what the templates of certificates see.
	certified any
}

// fileValues are the values for all files but certificates. The host name and the addresses
// are what the agent says.
type fileValues struct {
	facts
	Instance struct{ ID, Kind, Arch, Type, Hostname, IP4, IP6 string }
}

// certificateValues are the values for certificates.
type certificateValues struct {
	facts
	Instance certified
}

// FileFacts returns the values for an instance of a group, which Effective returned.
func (p *Provisioner) FileFacts(group *groups.Group, i *instance.Instance) FileFacts {
	values := fileValues{facts: p.facts(p.Config(), group, &i.Record)}
	said := claims(i)
	values.Instance.ID, values.Instance.Kind, values.Instance.Arch, values.Instance.Type = i.ID, group.Kind, group.Arch, group.InstanceType
	values.Instance.Hostname = said.Hostname
	values.Instance.IP4 = cmp.Or(said.IPv4, firstAddress(i.Addresses, netip.Addr.Is4))
	values.Instance.IP6 = cmp.Or(said.IPv6, firstAddress(i.Addresses, netip.Addr.Is6))
	return FileFacts{values: values, certified: certificateValues{facts: values.facts, Instance: certified{
		ID: i.ID, Kind: group.Kind, Arch: group.Arch, Type: group.InstanceType, instance: i,
	}}}
}

// Certified returns the values for certificates: a host name or address that the provider does
// not confirm is an error.
func (f FileFacts) Certified() FileFacts {
	return FileFacts{values: f.certified, certified: f.certified}
}

// claims returns the description of a machine that its agent has sent at the registration.
func claims(i *instance.Instance) instance.Registration {
	if i.Registration == nil {
		return instance.Registration{}
	}
	return *i.Registration
}

// firstAddress returns the first address of a family, or "".
func firstAddress(addresses []netip.Addr, ofFamily func(netip.Addr) bool) string {
	for _, address := range addresses {
		if address = address.Unmap(); ofFamily(address) {
			return address.String()
		}
	}
	return ""
}

// notCertifiedError means that no certificate may have a value that the agent has reported.
type notCertifiedError struct{ why string }

func (e *notCertifiedError) Error() string { return e.why }

func notCertified(format string, args ...any) error {
	return &notCertifiedError{fmt.Sprintf(format, args...)}
}

// certified is the part of an instance that certificates may have. A machine does not choose
// its own names: with a certificate for the name of another machine it could take that
// machine's place.
type certified struct {
	ID, Kind, Arch, Type string
	instance             *instance.Instance
}

// Hostname returns the host name that the agent has reported, "" if it has reported none. It
// must be the instance id, or the name that the provider reports, with or without its domain.
func (c certified) Hostname() (string, error) {
	said, reported := claims(c.instance).Hostname, c.instance.Hostname
	short, _, _ := strings.Cut(reported, ".")
	for _, name := range []string{c.ID, reported, short} {
		if strings.EqualFold(said, name) {
			return said, nil
		}
	}
	if said == "" {
		return "", nil
	}
	allowed := fmt.Sprintf("the instance id %s", c.ID)
	if reported != "" {
		allowed += fmt.Sprintf(", or %s, which the provider reports", reported)
	}
	return "", notCertified(".Instance.Hostname: the agent reports the host name %q, must be %s", said, allowed)
}

// IP4 returns the IPv4 address that the agent has reported, or else the first that the provider
// reports, "" if the machine has none.
func (c certified) IP4() (string, error) {
	return c.address(".Instance.IP4", claims(c.instance).IPv4, netip.Addr.Is4)
}

// IP6 is like IP4 for IPv6.
func (c certified) IP6() (string, error) {
	return c.address(".Instance.IP6", claims(c.instance).IPv6, netip.Addr.Is6)
}

func (c certified) address(field, said string, ofFamily func(netip.Addr) bool) (string, error) {
	addresses := c.instance.Addresses
	switch {
	case len(addresses) == 0:
		return "", notCertified("%s: the provider reports no addresses of the instance, or not yet", field)
	case said == "":
		return firstAddress(addresses, ofFamily), nil
	case !HasAddress(addresses, said):
		return "", notCertified("%s: the agent reports the address %s, must be one of those that the provider reports, %v", field, said, addresses)
	}
	return said, nil
}

// HasAddress reports whether a text is one of the addresses.
func HasAddress(addresses []netip.Addr, text string) bool {
	wanted, err := netip.ParseAddr(text)
	if err != nil {
		return false
	}
	for _, address := range addresses {
		if address.Unmap() == wanted.Unmap() {
			return true
		}
	}
	return false
}

// Render renders one template. The error does not quote it.
func (f FileFacts) Render(text string) (string, error) {
	rendered, err := render("text", text, f.values)
	if err != nil {
		return "", withoutTemplate(err)
	}
	return rendered, nil
}

// RenderAll returns a copy of value, which has the types of encoding/json, in which every
// string is rendered. Keys are not rendered. The error does not quote the strings.
func (f FileFacts) RenderAll(value any) (any, error) {
	rendered, err := renderAny("text", value, f.values)
	if err != nil {
		return nil, withoutTemplate(err)
	}
	return rendered, nil
}

// withoutTemplate returns an error that does not quote the template.
func withoutTemplate(err error) error {
	var notCertified *notCertifiedError
	if errors.As(err, &notCertified) {
		return notCertified
	}
	return withoutText(err)
}
