// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package googlesecrets stores secrets in Google Secret Manager (docs/server-reference.md#keys).
package googlesecrets

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
)

const (
	statusNotFound = "NOT_FOUND"
	statusExists   = "ALREADY_EXISTS"
	statusDenied   = "PERMISSION_DENIED"
	// statusPrecondition is the status of a version that was destroyed or disabled.
	statusPrecondition = "FAILED_PRECONDITION"
	// maxValue is the limit of the service, in bytes
	// (https://cloud.google.com/secret-manager/quotas).
	maxValue = 65536
	// pageSize is the maximum number of secrets in one response.
	pageSize = 250
	// latest is the newest version of a secret, and first the version of a secret that is
	// created once.
	latest = "latest"
	first  = "1"
)

// Options configure a Store. Project is mandatory.
type Options struct {
	// Project has the secrets.
	Project string
	// Prefix begins the names of the secrets.
	Prefix string
	// Locations are where new secrets are replicated. Empty means automatic replication, which a
	// constraint of the organization may forbid
	// (https://cloud.google.com/secret-manager/docs/choosing-replication).
	Locations []string
	// Transport authorizes the requests. Default: the transport of googleapi.NewTransport.
	Transport http.RoundTripper
	// Endpoint is the address of the service. Default: DefaultEndpoint.
	Endpoint string
	// RetryDelay is the delay before the second attempt of a request. Default: 250 ms.
	RetryDelay time.Duration
}

// Store is a secrets.Store in Google Secret Manager.
//
// The service has no call that creates a secret together with its first version
// (https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets). A secret of
// the servers is therefore its version 1, even if there are more versions: the service gives
// that number only once. For other secrets the newest version counts. Reads of the newest version
// may give an older one for minutes or hours
// (https://cloud.google.com/secret-manager/docs/resource-consistency), but a Store never returns an
// older version than before.
type Store struct {
	client          client
	project, prefix string
	locations       []string

	// mu guards newest, the highest version that was read or written, by name.
	mu     sync.Mutex
	newest map[string]int
}

var _ secrets.Store = (*Store)(nil)

// New returns the secrets of a project whose names begin with a prefix. It sends no request.
func New(o Options) *Store {
	if o.Transport == nil {
		o.Transport = googleapi.NewTransport(scope)
	}
	return &Store{
		client:  newClient(cmp.Or(o.Endpoint, DefaultEndpoint), o.Transport, cmp.Or(o.RetryDelay, firstDelay)),
		project: o.Project, prefix: o.Prefix, locations: o.Locations, newest: map[string]int{},
	}
}

type (
	payload struct {
		Data []byte `json:"data"`
		// Checksum is CRC32C, a number in a string.
		Checksum string `json:"dataCrc32c,omitempty"`
	}
	version struct {
		Name string `json:"name"`
	}
	replication struct {
		Automatic   *struct{}    `json:"automatic,omitempty"`
		UserManaged *userManaged `json:"userManaged,omitempty"`
	}
	userManaged struct {
		Replicas []replica `json:"replicas"`
	}
	replica struct {
		Location string `json:"location"`
	}
	secret struct {
		Name        string       `json:"name,omitempty"`
		Replication *replication `json:"replication,omitempty"`
	}
)

func checksum(data []byte) string {
	return strconv.FormatUint(uint64(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))), 10)
}

// resource returns the name of a secret in the service.
func (s *Store) resource(name string) string {
	return "projects/" + s.project + "/secrets/" + s.prefix + encode(name)
}

// Get implements secrets.Store.
func (s *Store) Get(ctx context.Context, name string) ([]byte, error) {
	data, err := s.get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.resource(name), err)
	}
	return data, nil
}

func (s *Store) get(ctx context.Context, name string) ([]byte, error) {
	if storage.IsReservedSecret(name) {
		data, _, err := s.client.access(ctx, s.resource(name)+"/versions/"+first)
		return data, err
	}
	data, number, err := s.client.access(ctx, s.resource(name)+"/versions/"+latest)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	newest := s.newest[name]
	s.mu.Unlock()
	if number < newest {
		newer, _, err := s.client.access(ctx, s.resource(name)+"/versions/"+strconv.Itoa(newest))
		switch {
		case err == nil:
			return newer, nil
		case !errors.Is(err, storage.ErrNotFound) && !is(err, http.StatusBadRequest, statusPrecondition):
			return nil, err
		}
		// The version was destroyed or disabled, or the secret was deleted and created again.
	}
	s.note(name, number)
	return data, nil
}

// note stores the newest version of a secret.
func (s *Store) note(name string, number int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest[name] = number
}

// access returns the value and the number of a version.
func (c *client) access(ctx context.Context, name string) (data []byte, number int, err error) {
	var response struct {
		Name    string   `json:"name"`
		Payload *payload `json:"payload"`
	}
	err = c.call(ctx, "versions.access", http.MethodGet, name+":access", nil, nil, &response)
	switch {
	case is(err, http.StatusNotFound, statusNotFound):
		return nil, 0, storage.ErrNotFound
	case err != nil:
		return nil, 0, err
	case response.Payload == nil:
		return nil, 0, errors.New("the response has no value")
	case response.Payload.Checksum != "" && response.Payload.Checksum != checksum(response.Payload.Data):
		return nil, 0, errors.New("the value in the response is damaged")
	}
	return response.Payload.Data, versionNumber(response.Name), nil
}

// versionNumber returns the number at the end of the name of a version, or zero.
func versionNumber(name string) int {
	number, err := strconv.Atoi(path.Base(name))
	if err != nil {
		return 0
	}
	return number
}

// Create implements secrets.Store.
func (s *Store) Create(ctx context.Context, name string, data []byte) error {
	if err := s.createFirst(ctx, name, data); err != nil {
		return fmt.Errorf("store %s: %w", s.resource(name), err)
	}
	return nil
}

// createFirst adds a version, and destroys it if it is not the first version.
func (s *Store) createFirst(ctx context.Context, name string, data []byte) error {
	if !storage.IsReservedSecret(name) {
		return errors.New("only the secrets of the servers are created once")
	}
	if err := s.check(name, data); err != nil {
		return err
	}
	if err := s.ensureSecret(ctx, name); err != nil {
		return err
	}
	_, _, err := s.client.access(ctx, s.resource(name)+"/versions/"+first)
	switch {
	case err == nil:
		return storage.ErrConflict
	case !errors.Is(err, storage.ErrNotFound):
		return err
	}
	added, err := s.addVersion(ctx, name, data)
	if err != nil || path.Base(added) == first {
		return err
	}
	// Another server was faster, or the response to the first request was lost. Nobody reads
	// the version.
	destroyErr := s.client.call(ctx, "versions.destroy", http.MethodPost, s.resource(name)+"/versions/"+path.Base(added)+":destroy", nil, struct{}{}, &version{})
	if destroyErr != nil {
		return fmt.Errorf("%w, and version %s, which is not used, could not be destroyed: %w", storage.ErrConflict, path.Base(added), destroyErr)
	}
	return storage.ErrConflict
}

// Set implements secrets.Store. Former versions stay.
func (s *Store) Set(ctx context.Context, name string, data []byte) error {
	if err := s.set(ctx, name, data); err != nil {
		return fmt.Errorf("store %s: %w", s.resource(name), err)
	}
	return nil
}

func (s *Store) set(ctx context.Context, name string, data []byte) error {
	if err := s.check(name, data); err != nil {
		return err
	}
	if storage.IsReservedSecret(name) {
		return errors.New("a secret of the servers cannot be replaced")
	}
	if err := s.ensureSecret(ctx, name); err != nil {
		return err
	}
	added, err := s.addVersion(ctx, name, data)
	if err == nil {
		s.note(name, versionNumber(added))
	}
	return err
}

// ensureSecret creates a secret without a version unless it exists.
func (s *Store) ensureSecret(ctx context.Context, name string) error {
	query := url.Values{"secretId": {path.Base(s.resource(name))}}
	err := s.client.call(ctx, "create", http.MethodPost, "projects/"+s.project+"/secrets", query, secret{Replication: s.replication()}, &secret{})
	if is(err, http.StatusConflict, statusExists) {
		return nil
	}
	return err
}

// replication returns the replication of a new secret.
func (s *Store) replication() *replication {
	if len(s.locations) == 0 {
		return &replication{Automatic: &struct{}{}}
	}
	managed := &userManaged{}
	for _, location := range s.locations {
		managed.Replicas = append(managed.Replicas, replica{Location: location})
	}
	return &replication{UserManaged: managed}
}

// addVersion returns the name of the version.
func (s *Store) addVersion(ctx context.Context, name string, data []byte) (string, error) {
	var added version
	body := map[string]payload{"payload": {Data: data, Checksum: checksum(data)}}
	err := s.client.call(ctx, "addVersion", http.MethodPost, s.resource(name)+":addVersion", nil, body, &added)
	return added.Name, err
}

// check returns the reason why the service cannot store a secret.
func (s *Store) check(name string, data []byte) error {
	switch id := s.prefix + encode(name); {
	case name == "" || len(id) > maxID:
		return fmt.Errorf("the name has %d characters with the prefix, must have at most %d", len(id), maxID)
	case len(data) == 0 || len(data) > maxValue:
		return fmt.Errorf("the value has %d bytes, must have 1 to %d", len(data), maxValue)
	}
	return nil
}

// Delete implements secrets.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	err := s.client.call(ctx, "delete", http.MethodDelete, s.resource(name), nil, nil, &struct{}{})
	if is(err, http.StatusNotFound, statusNotFound) {
		err = storage.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", s.resource(name), err)
	}
	return nil
}

// List implements secrets.Store.
func (s *Store) List(ctx context.Context) ([]string, error) {
	query := url.Values{"filter": {"name:" + s.prefix}, "pageSize": {strconv.Itoa(pageSize)}}
	var found []string
	for {
		var page struct {
			Secrets       []secret `json:"secrets"`
			NextPageToken string   `json:"nextPageToken"`
		}
		if err := s.client.call(ctx, "list", http.MethodGet, "projects/"+s.project+"/secrets", query, nil, &page); err != nil {
			return nil, fmt.Errorf("list the secrets %s* of project %s: %w", s.prefix, s.project, err)
		}
		for _, secret := range page.Secrets {
			// The filter finds the prefix anywhere in a name, see
			// https://cloud.google.com/secret-manager/docs/filtering.
			id, ours := strings.CutPrefix(path.Base(secret.Name), s.prefix)
			if name, valid := decode(id); ours && valid && name != "" {
				found = append(found, name)
			}
		}
		if page.NextPageToken == "" {
			slices.Sort(found)
			return found, nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

// Access returns a version of a secret by its name, the newest version if the name has no
// version.
func Access(ctx context.Context, o Options, name string) ([]byte, error) {
	resource := name
	if !strings.Contains(name, "/versions/") {
		resource += "/versions/" + latest
	}
	data, _, err := New(o).client.access(ctx, resource)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// maxID is the maximum length of a secret's id, see
// https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets/create.
const maxID = 255

// encode returns a name with the characters that ids of secrets may have: letters, digits and
// hyphens stay, and each other byte becomes an underscore and two hexadecimal digits.
func encode(name string) string {
	var id strings.Builder
	for _, char := range []byte(name) {
		switch {
		case 'a' <= char && char <= 'z', 'A' <= char && char <= 'Z', '0' <= char && char <= '9', char == '-':
			id.WriteByte(char)
		default:
			fmt.Fprintf(&id, "_%02X", char)
		}
	}
	return id.String()
}

// decode returns false for an id that encode does not return.
func decode(id string) (string, bool) {
	var name strings.Builder
	for rest := id; rest != ""; {
		before, after, found := strings.Cut(rest, "_")
		name.WriteString(before)
		if !found {
			break
		}
		if len(after) < 2 {
			return "", false
		}
		char, err := hex.DecodeString(after[:2])
		if err != nil {
			return "", false
		}
		name.Write(char)
		rest = after[2:]
	}
	return name.String(), encode(name.String()) == id
}
