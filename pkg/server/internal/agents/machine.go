// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"errors"
	"fmt"
	"net/netip"
	"unicode"
	"unicode/utf8"
)

// ErrMachine means that an agent reports an address or a host name that is none.
var ErrMachine = errors.New("the description of the machine is not valid")

// maxHostname is the maximum length of a host name.
const maxHostname = 253

// Machine is what an agent reports of its machine. Each field may be empty.
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
