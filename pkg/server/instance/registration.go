// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instance

import "time"

// Registration is the registration of the agent of an instance. It is part of the record
// and binds the instance to one key for good: every further certificate is for this key.
type Registration struct {
	// PublicKeyPEM is the key of the agent, PKIX.
	PublicKeyPEM string `json:"public_key_pem"`
	// CertSerial is the serial number of its latest certificate in hexadecimal digits,
	// and ExpiresAt is when that expires.
	CertSerial string    `json:"cert_serial"`
	ExpiresAt  time.Time `json:"expires_at"`
	// RegisteredAt is when the agent used the key for the first time.
	RegisteredAt time.Time `json:"registered_at"`
	// IPv4, IPv6 and Hostname are what the agent reports of its machine. Each may be
	// empty.
	IPv4     string `json:"private_ipv4,omitempty"`
	IPv6     string `json:"private_ipv6,omitempty"`
	Hostname string `json:"hostname,omitempty"`
}
