// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identifier

import "net/url"

// ServerScheme is the scheme of the URIs that name servers in their certificates.
const ServerScheme = "nstance"

// ServerURI returns the URI that names the servers of a shard of a cluster in their
// certificates (docs/protocol.md#authentication).
func ServerURI(cluster, shard string) *url.URL {
	return &url.URL{Scheme: ServerScheme, Host: cluster, Path: "/" + shard}
}

// ServerNames returns those of the URIs of a certificate that name a server.
func ServerNames(uris []*url.URL) []string {
	var names []string
	for _, uri := range uris {
		if uri.Scheme == ServerScheme {
			names = append(names, uri.String())
		}
	}
	return names
}
