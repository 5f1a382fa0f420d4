// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package keys

import (
	"crypto/x509"
	"net"
)

// AddAltNames makes a certificate valid for hosts, each an IP address or a DNS name.
func AddAltNames(certificate *x509.Certificate, hosts []string) {
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			certificate.IPAddresses = append(certificate.IPAddresses, ip)
		} else {
			certificate.DNSNames = append(certificate.DNSNames, host)
		}
	}
}
