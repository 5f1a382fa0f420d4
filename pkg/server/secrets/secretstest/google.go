// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secretstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nstance.dev/operator/pkg/server/googleapi/discoverytest"
)

// GoogleProject is the project that the server has.
const GoogleProject = "test-project"

// GoogleToken is the access token that the server accepts.
const GoogleToken = "ya29.test"

// googleSecrets responds as Google Secret Manager does.
type googleSecrets struct {
	t        testing.TB
	document *discoverytest.Document
	secrets  map[string]*[]googleVersion
	options  GoogleOptions
	// reads counts the reads of the newest version.
	reads int
}

// GoogleOptions has the differences between projects.
type GoogleOptions struct {
	// Lags is true if every other read of the newest version gives the version before it: only reads
	// by number are strongly consistent
	// (https://cloud.google.com/secret-manager/docs/resource-consistency).
	Lags bool
	// Locations are the only locations that a constraint of the organization allows, so that
	// automatic replication is not allowed. Empty means no constraint
	// (https://cloud.google.com/secret-manager/docs/choosing-replication).
	Locations []string
}

type googleVersion struct {
	data      []byte
	destroyed bool
}

// StartGoogle starts a server that responds like version 1 of the REST API of Google Secret
// Manager, for the methods that the product needs. It compares each request and each response with
// Google's discovery document. It stops with the test.
func StartGoogle(t testing.TB) (url string, faults *Faults) {
	t.Helper()
	return StartGoogleWith(t, GoogleOptions{})
}

// StartGoogleWith is StartGoogle with another project.
func StartGoogleWith(t testing.TB, o GoogleOptions) (url string, faults *Faults) {
	t.Helper()
	return start(t, &googleSecrets{t: t, document: discoverytest.Load(t, discoverytest.Secrets), secrets: map[string]*[]googleVersion{}, options: o})
}

// googleError is an error of an API of Google.
type googleError struct {
	code            int
	status, message string
}

func (e *googleError) Error() string { return e.status + ": " + e.message }

var (
	errGoogleNotFound = &googleError{http.StatusNotFound, "NOT_FOUND", "Secret or version not found."}
	errGoogleInvalid  = &googleError{http.StatusBadRequest, "INVALID_ARGUMENT", "The request is not valid."}
)

// For ids and sizes, see
// https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets/create and
// https://cloud.google.com/secret-manager/quotas.
var (
	googleIDs      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,255}$`)
	googleSecret   = regexp.MustCompile(`^/v1/projects/` + GoogleProject + `/secrets(?:/([A-Za-z0-9_-]+)(?:/versions/([0-9]+|latest))?)?(?::(access|addVersion|destroy))?$`)
	googleMaxBytes = 65536
)

func (s *googleSecrets) serve(request *http.Request, body []byte) response {
	method, _, err := s.document.Find(request.Method, request.URL.EscapedPath())
	if err == nil {
		err = errors.Join(method.CheckQuery(request.URL.Query()), method.CheckBody(request, body))
	}
	if err != nil {
		s.t.Errorf("a request is not as documented: %v", err)
		return respondGoogle(nil, errGoogleInvalid)
	}
	result, err := s.call(request, body)
	got := respondGoogle(result, err)
	if err == nil {
		if err := method.CheckResponse(got.body); err != nil {
			s.t.Errorf("a response is not as documented: %v", err)
		}
	}
	return got
}

func (s *googleSecrets) call(request *http.Request, body []byte) (any, error) {
	if request.Header.Get("Authorization") != "Bearer "+GoogleToken {
		return nil, &googleError{http.StatusUnauthorized, "UNAUTHENTICATED", "Request is missing required authentication credential."}
	}
	parts := googleSecret.FindStringSubmatch(request.URL.Path)
	if parts == nil || len(body) > 0 && request.Header.Get("Content-Type") != "application/json" {
		return nil, errGoogleInvalid
	}
	id, number := parts[1], parts[2]
	switch s.permission(request) {
	case permissionAccess:
		return s.access(id, number)
	case permissionCreate:
		return s.create(request.URL.Query().Get("secretId"), body)
	case permissionAdd:
		return s.addVersion(id, body)
	case permissionDestroy:
		return s.destroy(id, number)
	case permissionDelete:
		if s.secrets[id] == nil {
			return nil, errGoogleNotFound
		}
		delete(s.secrets, id)
		return struct{}{}, nil
	case permissionList:
		return s.list(request)
	}
	return nil, errGoogleInvalid
}

// The permissions of the methods.
const (
	permissionAccess  = "secretmanager.versions.access"
	permissionAdd     = "secretmanager.versions.add"
	permissionDestroy = "secretmanager.versions.destroy"
	permissionCreate  = "secretmanager.secrets.create"
	permissionDelete  = "secretmanager.secrets.delete"
	permissionList    = "secretmanager.secrets.list"
)

// permission returns "" for a request of an unknown method.
func (*googleSecrets) permission(request *http.Request) string {
	parts := googleSecret.FindStringSubmatch(request.URL.Path)
	if parts == nil {
		return ""
	}
	switch request.Method + " " + strings.Join([]string{mark(parts[1]), mark(parts[2]), parts[3]}, ",") {
	case "GET x,x,access":
		return permissionAccess
	case "POST ,,":
		return permissionCreate
	case "POST x,,addVersion":
		return permissionAdd
	case "POST x,x,destroy":
		return permissionDestroy
	case "DELETE x,,":
		return permissionDelete
	case "GET ,,":
		return permissionList
	}
	return ""
}

func mark(part string) string {
	if part == "" {
		return ""
	}
	return "x"
}

func (s *googleSecrets) create(id string, body []byte) (any, error) {
	var request struct {
		Replication struct {
			Automatic   *struct{} `json:"automatic"`
			UserManaged *struct {
				Replicas []struct {
					Location string `json:"location"`
				} `json:"replicas"`
			} `json:"userManaged"`
		} `json:"replication"`
	}
	err := decodeGoogle(body, &request)
	managed := request.Replication.UserManaged
	switch {
	case err != nil, (request.Replication.Automatic == nil) == (managed == nil), managed != nil && len(managed.Replicas) == 0, !googleIDs.MatchString(id):
		return nil, errGoogleInvalid
	case managed == nil && len(s.options.Locations) > 0:
		return nil, &googleError{http.StatusBadRequest, "FAILED_PRECONDITION", "Constraint constraints/gcp.resourceLocations violated for [global]."}
	case managed != nil:
		for _, replica := range managed.Replicas {
			if len(s.options.Locations) > 0 && !slices.Contains(s.options.Locations, replica.Location) {
				return nil, &googleError{http.StatusBadRequest, "FAILED_PRECONDITION", "Constraint constraints/gcp.resourceLocations violated for [" + replica.Location + "]."}
			}
		}
	}
	if s.secrets[id] != nil {
		return nil, &googleError{http.StatusConflict, "ALREADY_EXISTS", "Secret already exists."}
	}
	s.secrets[id] = &[]googleVersion{}
	return map[string]any{"name": "projects/1/secrets/" + id}, nil
}

func (s *googleSecrets) addVersion(id string, body []byte) (any, error) {
	var request struct {
		Payload struct {
			Data       []byte `json:"data"`
			DataCrc32c string `json:"dataCrc32c"`
		} `json:"payload"`
	}
	if decodeGoogle(body, &request) != nil || len(request.Payload.Data) > googleMaxBytes || request.Payload.DataCrc32c != castagnoli(request.Payload.Data) {
		return nil, errGoogleInvalid
	}
	versions := s.secrets[id]
	if versions == nil {
		return nil, errGoogleNotFound
	}
	*versions = append(*versions, googleVersion{data: request.Payload.Data})
	return map[string]any{"name": fmt.Sprintf("projects/1/secrets/%s/versions/%d", id, len(*versions)), "state": "ENABLED"}, nil
}

func castagnoli(data []byte) string {
	return strconv.FormatInt(int64(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))), 10)
}

// version returns a version and its number.
func (s *googleSecrets) version(id, number string) (*googleVersion, int, error) {
	versions := s.secrets[id]
	if versions == nil {
		return nil, 0, errGoogleNotFound
	}
	at := len(*versions)
	if number != "latest" {
		at, _ = strconv.Atoi(number)
	} else if s.reads++; s.options.Lags && s.reads%2 == 1 && at > 1 {
		at--
	}
	if at < 1 || at > len(*versions) {
		return nil, 0, errGoogleNotFound
	}
	return &(*versions)[at-1], at, nil
}

func (s *googleSecrets) access(id, number string) (any, error) {
	v, at, err := s.version(id, number)
	if err != nil {
		return nil, err
	}
	if v.destroyed {
		// Not documented; https://github.com/google-github-actions/get-secretmanager-secrets/issues/268
		// shows it.
		return nil, &googleError{http.StatusBadRequest, "FAILED_PRECONDITION", "Secret version is in DESTROYED state."}
	}
	return map[string]any{"name": fmt.Sprintf("projects/1/secrets/%s/versions/%d", id, at), "payload": map[string]any{"data": v.data, "dataCrc32c": castagnoli(v.data)}}, nil
}

func (s *googleSecrets) destroy(id, number string) (any, error) {
	v, _, err := s.version(id, number)
	if err != nil {
		return nil, err
	}
	v.data, v.destroyed = nil, true
	return map[string]any{"state": "DESTROYED"}, nil
}

// list filters by a text anywhere in the name
// (https://cloud.google.com/secret-manager/docs/filtering), in pages of 10.
func (s *googleSecrets) list(request *http.Request) (any, error) {
	query := request.URL.Query()
	text, isName := strings.CutPrefix(query.Get("filter"), "name:")
	if !isName {
		return nil, errGoogleInvalid
	}
	list := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(s.secrets)) {
		if strings.Contains(id, text) {
			list = append(list, map[string]any{"name": path.Join("projects/1/secrets", id)})
		}
	}
	begin, end, next := page(s.t, query.Get("pageToken"), len(list), 10)
	response := map[string]any{"secrets": list[begin:end], "totalSize": len(list)}
	if next != "" {
		response["nextPageToken"] = next
	}
	return response, nil
}

func decodeGoogle(body []byte, request any) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	return decoder.Decode(request)
}

func (s *googleSecrets) fail(kind Kind, body []byte) response {
	switch kind {
	case Throttled:
		return respondGoogle(nil, &googleError{http.StatusTooManyRequests, "RESOURCE_EXHAUSTED", "Quota exceeded."})
	case Denied:
		return respondGoogle(nil, &googleError{http.StatusForbidden, "PERMISSION_DENIED", "Permission denied."})
	case Quoting:
		return respondGoogle(nil, &googleError{http.StatusBadRequest, "INVALID_ARGUMENT", quote(body)})
	}
	return respondGoogle(nil, &googleError{http.StatusServiceUnavailable, "UNAVAILABLE", "The service is currently unavailable."})
}

func respondGoogle(result any, err error) response {
	got := response{code: http.StatusOK, contentType: "application/json; charset=UTF-8"}
	if failed, ok := errors.AsType[*googleError](err); ok {
		got.code = failed.code
		result = map[string]any{"error": map[string]any{"code": failed.code, "status": failed.status, "message": failed.message}}
	}
	got.body, _ = json.Marshal(result)
	return got
}
