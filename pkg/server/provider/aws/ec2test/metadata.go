// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
)

// metadataSuffix is the suffix of the host of the metadata service of an instance.
const metadataSuffix = ".metadata.test"

// metadataToken is what the metadata service requires.
const metadataToken = "token-of-the-metadata-service"

// MetadataURL returns the address of the metadata service of an instance, for clients that
// connect with Dial.
func MetadataURL(instanceID string) string { return "http://" + instanceID + metadataSuffix }

// isMetadata reports whether a request is one to the metadata service of an instance.
func isMetadata(r *http.Request) bool { return strings.HasSuffix(r.Host, metadataSuffix) }

// serveMetadata responds as version 2 of the metadata service, which requires a token.
func (s *Server) serveMetadata(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/latest/api/token" && r.Method == http.MethodPut:
		if r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds") == "" {
			http.Error(w, "no time to live", http.StatusBadRequest)
			return
		}
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds"))
		_, _ = io.WriteString(w, metadataToken) // the client may have closed the connection
	case r.Header.Get("X-Aws-Ec2-Metadata-Token") != metadataToken:
		http.Error(w, "no token", http.StatusUnauthorized)
	case r.URL.Path == "/latest/meta-data/instance-id" && r.Method == http.MethodGet:
		_, _ = fmt.Fprint(w, strings.TrimSuffix(r.Host, metadataSuffix)) // as above
	default:
		http.NotFound(w, r)
	}
}
