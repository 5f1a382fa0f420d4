// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identifier

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"net/url"
)

// ServerScheme is the scheme of the URIs that name servers in their certificates.
const ServerScheme = "nstance"

// ServerURI returns the URI of the servers of a shard in their certificates
// (docs/protocol.md#authentication).
func ServerURI(cluster, shard string) *url.URL {
	return &url.URL{Scheme: ServerScheme, Host: cluster, Path: "/" + shard}
}

// ServerNames returns the URIs of a certificate that name a server.
func ServerNames(uris []*url.URL) []string {
	var names []string
	for _, uri := range uris {
		if uri.Scheme == ServerScheme {
			names = append(names, uri.String())
		}
	}
	return names
}

// WorkloadOID is the extension that marks certificates of workloads, which machines get as files
// (docs/protocol.md#authentication). Its value is an ASN.1 NULL. Clients that do not know it ignore it.
var WorkloadOID = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 999999, 2}

// ErrWorkload means that a server has the certificate of a workload. The CA is the same as the
// CA of the shard servers, so only the extension keeps a machine from taking a server's place.
var ErrWorkload = errors.New("the certificate of the server belongs to a workload of a machine, not to a shard server")

// CheckServer returns ErrWorkload if the certificate of a server, whose chain was verified, is
// the certificate of a workload.
func CheckServer(certificate *x509.Certificate) error {
	for _, extension := range certificate.Extensions {
		if extension.Id.Equal(WorkloadOID) {
			return ErrWorkload
		}
	}
	return nil
}
