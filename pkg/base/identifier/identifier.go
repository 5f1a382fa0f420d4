// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package identifier validates the ids that Nstance shares with every provider: cluster,
// shard, tenant, group and subnet pool ids.
package identifier

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// MaxLength is the maximum length of an identifier, in characters. Every supported provider
// accepts it in a tag or label, with the prefixes of Nstance.
const MaxLength = 32

// Separator joins identifiers into object names, such as the {group}--{shard} of a shard
// group. Therefore no identifier may contain it.
const Separator = "--"

// Pattern is the syntax of an identifier without its length and without the
// rule for Separator. The CRDs repeat it, so that the API server rejects an invalid
// name; the table in package identifiertest tests both.
const Pattern = `^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`

var syntax = regexp.MustCompile(Pattern)

// Validate returns an error that explains why value is no identifier. The caller adds the
// name of the field.
func Validate(value string) error {
	switch {
	case value == "":
		return fmt.Errorf("must not be empty")
	case len(value) > MaxLength:
		return fmt.Errorf("%q has %d characters, at most %d are allowed", value, len(value), MaxLength)
	case !syntax.MatchString(value):
		return fmt.Errorf("%q must consist of lower case letters, digits and hyphens, and begin and end with a letter or digit", value)
	case strings.Contains(value, Separator):
		return fmt.Errorf("%q must not contain consecutive hyphens", value)
	}
	return nil
}

// GroupsVersionKey is the key of the gRPC metadata with the version of the groups that a client of
// ListGroups knows (docs/protocol.md#lists-of-changes). The request has no message that could have it.
const GroupsVersionKey = "nstance-groups-version"

// KubernetesClusterKey is the key of the gRPC metadata with the UID of the Kubernetes
// cluster that a client runs in (docs/protocol.md#tenants).
const KubernetesClusterKey = "nstance-kubernetes-cluster"

// OtherClusterReason is the reason in the google.rpc.ErrorInfo of a call that is
// rejected because the tenant belongs to another Kubernetes cluster.
const OtherClusterReason = "OTHER_KUBERNETES_CLUSTER"

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
