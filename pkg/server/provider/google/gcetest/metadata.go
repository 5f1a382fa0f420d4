// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import "net/http"

// metadataPath begins the paths of the metadata server.
const metadataPath = "/computeMetadata/v1/"

// MetadataClient returns a client for the metadata server of a machine. It needs a server
// that StartInMemory has started.
func (s *Server) MetadataClient(name string) *http.Client {
	return &http.Client{Transport: onMachine{name, &http.Transport{DialContext: s.listener.Dial}}}
}

// onMachine sends requests from a machine.
type onMachine struct {
	name string
	base http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (m onMachine) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host = m.name
	return m.base.RoundTrip(r)
}

// serveMetadata responds with what the machine in the name of the host knows of itself.
func (s *Server) serveMetadata(w http.ResponseWriter, r *http.Request) {
	one := s.find(r.Host)
	if one == nil || r.Header.Get("Metadata-Flavor") != "Google" {
		http.Error(w, "Forbidden", http.StatusForbidden)
		return
	}
	text, found := map[string]string{
		"instance/id": one.ID, "instance/name": one.Name, "instance/zone": "projects/1234567890/zones/" + one.zone,
		"project/project-id": Project,
	}[r.URL.Path[len(metadataPath):]]
	if !found {
		http.Error(w, "Not Found", http.StatusNotFound)
		return
	}
	w.Header().Set("Metadata-Flavor", "Google")
	_, _ = w.Write([]byte(text)) // the client may have closed the connection
}
