// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"nstance.dev/operator/pkg/base/identifier"
)

const (
	// RegistrationPort is the default port of RegistrationService.
	RegistrationPort = 8992

	registrationSuffix = ".registration"
	maxHostLength      = 253
)

// Endpoint has the addresses of a shard's server. Both are host:port, with an IPv6 host in
// brackets.
type Endpoint struct {
	// Operator is the address of OperatorService.
	Operator string
	// Registration is the address of RegistrationService.
	Registration string
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$`)

// ParseEndpoints parses the data of the endpoints ConfigMap:
//
//	us-west-2a: "[2001:db8::a]:8993"
//	us-west-2a.registration: "[2001:db8::a]:8992"
//
// The second entry is optional; without it the registration address is the same host at
// RegistrationPort. If two shards have the same operator address, both are invalid, because a
// server has one shard. ParseEndpoints returns the endpoints of all valid entries even if the
// error is not nil. The error names every invalid entry with its key, its value and what is
// allowed, in the order of the keys.
func ParseEndpoints(data map[string]string) (map[string]Endpoint, error) {
	endpoints := make(map[string]Endpoint, len(data))
	var errs []error
	// A shard sorts before its own ".registration" entry.
	for _, key := range slices.Sorted(maps.Keys(data)) {
		value := strings.TrimSpace(data[key])
		if err := parseEntry(endpoints, key, value); err != nil {
			errs = append(errs, fmt.Errorf("entry %q with value %q: %w", key, value, err))
		}
	}
	errs = append(errs, dropShared(endpoints)...)
	return endpoints, errors.Join(errs...)
}

// dropShared removes the endpoints whose operator address several shards have, and returns an
// error for each of these addresses.
func dropShared(endpoints map[string]Endpoint) (errs []error) {
	shards := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(endpoints)) {
		address := endpoints[id].Operator
		shards[address] = append(shards[address], id)
	}
	for _, address := range slices.Sorted(maps.Keys(shards)) {
		if ids := shards[address]; len(ids) > 1 {
			errs = append(errs, fmt.Errorf("entries %q have the value %q: each shard must have an address of its own", ids, address))
			maps.DeleteFunc(endpoints, func(_ string, e Endpoint) bool { return e.Operator == address })
		}
	}
	return errs
}

// Configured returns the sorted ids of the shards that the data of the endpoints ConfigMap
// names, including shards with an invalid address.
func Configured(data map[string]string) []string {
	var ids []string
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if identifier.Validate(key) == nil {
			ids = append(ids, key)
		}
	}
	return ids
}

func parseEntry(endpoints map[string]Endpoint, key, value string) error {
	id, registration := strings.CutSuffix(key, registrationSuffix)
	if err := identifier.Validate(id); err != nil {
		return fmt.Errorf("the key must be a shard id, or a shard id followed by %q: %w", registrationSuffix, err)
	}
	host, port, err := splitAddress(value)
	if err != nil {
		return err
	}
	address := net.JoinHostPort(host, port)
	if !registration {
		endpoints[id] = Endpoint{
			Operator:     address,
			Registration: net.JoinHostPort(host, strconv.Itoa(RegistrationPort)),
		}
		return nil
	}
	endpoint, ok := endpoints[id]
	if !ok {
		return fmt.Errorf("there is no valid entry %q that it could belong to", id)
	}
	endpoint.Registration = address
	endpoints[id] = endpoint
	return nil
}

// splitAddress parses host:port. It normalizes the port, so that equal addresses are equal
// strings.
func splitAddress(value string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(value)
	if err != nil {
		return "", "", fmt.Errorf("the value must be host:port with an IPv6 host in brackets: %w", err)
	}
	if _, err := netip.ParseAddr(host); err != nil && (len(host) > maxHostLength || !hostName.MatchString(host)) {
		return "", "", errors.New("the host must be a DNS name or an IP address")
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return "", "", errors.New("the port must be a number from 1 to 65535")
	}
	return host, strconv.FormatUint(number, 10), nil
}
