// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package gcs stores objects in a bucket of Google Cloud Storage. The generation of an object
// is its etag, and a precondition of each write.
package gcs

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/storage"
)

const (
	endpoint = "https://storage.googleapis.com"
	// scope is the scope of requested tokens. The roles of the service account limit it.
	scope = "https://www.googleapis.com/auth/devstorage.read_write"
	// emulatorEnv is the variable in which Google's clients find the address of an emulator,
	// which needs no credentials (https://pkg.go.dev/cloud.google.com/go/storage).
	emulatorEnv = "STORAGE_EMULATOR_HOST"
)

// buckets are names of buckets.
var buckets = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$`)

// Store is a storage.Store in a bucket.
type Store struct {
	client *googleapi.Client
	bucket string
	pace   pace
}

var _ storage.ChangeReader = (*Store)(nil)

// Open returns the storage in a bucket, which must exist. Credentials are application default
// credentials. With STORAGE_EMULATOR_HOST an emulator is used, without credentials. Open
// sends no request.
func Open(bucket string) (*Store, error) {
	emulator := os.Getenv(emulatorEnv)
	if emulator == "" {
		return open(bucket, endpoint, googleapi.NewTransport(scope))
	}
	if !strings.Contains(emulator, "://") {
		emulator = "http://" + emulator
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	return open(bucket, emulator, deadline.HTTPClient(transport.RoundTrip))
}

func open(bucket, endpoint string, transport http.RoundTripper) (*Store, error) {
	if !buckets.MatchString(bucket) {
		return nil, fmt.Errorf("open bucket %q: it is no name of a bucket", bucket)
	}
	return &Store{client: googleapi.New(endpoint, transport), bucket: bucket, pace: pace{interval: MinWriteInterval, next: map[string]time.Time{}}}, nil
}

// object is the metadata of an object that the API returns.
type object struct {
	Name       string            `json:"name"`
	Generation string            `json:"generation"`
	Metadata   map[string]string `json:"metadata"`
}

// path returns the path of the objects of the bucket.
func (s *Store) path(parts ...string) []string {
	return append([]string{"storage", "v1", "b", s.bucket, "o"}, parts...)
}

// isNotFound reports whether an object does not exist. The bucket may be missing too, which
// must never be mistaken for a missing object.
func isNotFound(err error) bool {
	e, ok := googleapi.AsError(err)
	return ok && e.Status == http.StatusNotFound && strings.HasPrefix(e.Message, "No such object: ")
}

// Get implements storage.Store.
func (s *Store) Get(ctx context.Context, key string) (storage.Object, error) {
	object, err := s.getObject(ctx, key, "")
	if err != nil {
		return storage.Object{}, fmt.Errorf("read %s from bucket %s: %w", key, s.bucket, err)
	}
	return object, nil
}

// GetChanged implements storage.ChangeReader.
func (s *Store) GetChanged(ctx context.Context, key, etag string) (storage.Object, error) {
	other := etag
	if !isGeneration(etag) {
		other = "" // the API would reject the condition
	}
	object, err := s.getObject(ctx, key, other)
	if err == nil && object.ETag == etag {
		err = storage.ErrUnchanged // an emulator ignores the condition
	}
	if err != nil {
		return storage.Object{}, fmt.Errorf("read %s from bucket %s: %w", key, s.bucket, err)
	}
	return object, nil
}

// getObject reads an object unless it has a generation, which may be empty
// (https://cloud.google.com/storage/docs/json_api/v1/objects/get).
func (s *Store) getObject(ctx context.Context, key, notGeneration string) (storage.Object, error) {
	if err := storage.CheckCall(ctx, key); err != nil {
		return storage.Object{}, err
	}
	query := url.Values{"alt": {"media"}}
	if notGeneration != "" {
		query.Set("ifGenerationNotMatch", notGeneration)
	}
	response, _, err := s.do(ctx, googleapi.Call{
		Name: "storage.objects.get", Method: http.MethodGet, Path: s.path(key), Query: query,
	})
	switch e, failed := googleapi.AsError(err); {
	case failed && e.Status == http.StatusNotModified:
		return storage.Object{}, storage.ErrUnchanged
	case isNotFound(err):
		return storage.Object{}, storage.ErrNotFound
	case err != nil:
		return storage.Object{}, err
	}
	// The reference does not promise the time of the last write, and Google's own client does
	// without (https://pkg.go.dev/cloud.google.com/go/storage#ReaderObjectAttrs).
	modified, err := time.Parse(http.TimeFormat, response.Header.Get("Last-Modified"))
	if err != nil {
		modified = time.Time{}
	}
	generation := response.Header.Get("X-Goog-Generation")
	if !isGeneration(generation) {
		return storage.Object{}, fmt.Errorf("the response has the generation %q", generation)
	}
	for _, hash := range response.Header.Values("X-Goog-Hash") {
		for part := range strings.SplitSeq(hash, ",") {
			if sum, found := strings.CutPrefix(strings.TrimSpace(part), "crc32c="); found && sum != checksum(response.Body) {
				return storage.Object{}, errors.New("the response has another checksum than the object")
			}
		}
	}
	return storage.Object{Data: response.Body, ETag: generation, LastModified: modified}, nil
}

// checksum returns the CRC-32C of data as the API encodes it.
func checksum(data []byte) string {
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

// Create implements storage.Store.
func (s *Store) Create(ctx context.Context, key string, data []byte) (string, error) {
	etag, err := s.put(ctx, key, data, noGeneration)
	if err != nil {
		return "", fmt.Errorf("create %s in bucket %s: %w", key, s.bucket, err)
	}
	return etag, nil
}

// Replace implements storage.Store.
func (s *Store) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	newETag, err := s.replace(ctx, key, data, etag)
	if err != nil {
		return "", fmt.Errorf("replace %s in bucket %s: %w", key, s.bucket, err)
	}
	return newETag, nil
}

func (s *Store) replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	if err := storage.CheckCall(ctx, key); err != nil {
		return "", err
	}
	if !isGeneration(etag) {
		return "", storage.ErrConflict // not a generation, and "0" would mean that the object must not exist
	}
	return s.put(ctx, key, data, etag)
}

// Delete implements storage.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.deleteObject(ctx, key); err != nil {
		return fmt.Errorf("delete %s from bucket %s: %w", key, s.bucket, err)
	}
	return nil
}

func (s *Store) deleteObject(ctx context.Context, key string) error {
	if err := storage.CheckCall(ctx, key); err != nil {
		return err
	}
	_, _, err := s.write(ctx, key, googleapi.Call{Name: "storage.objects.delete", Method: http.MethodDelete, Path: s.path(key)})
	if isNotFound(err) {
		return nil
	}
	return err
}

// List implements storage.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]storage.Info, error) {
	infos, err := s.listObjects(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list %q in bucket %s: %w", prefix, s.bucket, err)
	}
	return infos, nil
}

func (s *Store) listObjects(ctx context.Context, prefix string) ([]storage.Info, error) {
	if err := storage.CheckListCall(ctx, prefix); err != nil {
		return nil, err
	}
	query := url.Values{"maxResults": {"1000"}, "fields": {"kind,nextPageToken,items(name,generation)"}}
	if prefix != "" {
		query.Set("prefix", prefix)
	}
	var infos []storage.Info
	for {
		response, _, err := s.do(ctx, googleapi.Call{Name: "storage.objects.list", Method: http.MethodGet, Path: s.path(), Query: query})
		if err != nil {
			return nil, err
		}
		var page struct {
			Kind          string   `json:"kind"`
			Items         []object `json:"items"`
			NextPageToken string   `json:"nextPageToken"`
		}
		if err := json.Unmarshal(response.Body, &page); err != nil {
			return nil, fmt.Errorf("decode the response: %w", err)
		}
		if page.Kind != "storage#objects" {
			return nil, fmt.Errorf("the response is of kind %q", page.Kind)
		}
		for _, object := range page.Items {
			if storage.CheckKey(object.Name) != nil {
				continue // not written by a server, for example a folder of the console
			}
			infos = append(infos, storage.Info{Key: object.Name, ETag: object.Generation})
		}
		if page.NextPageToken == "" {
			break
		}
		query.Set("pageToken", page.NextPageToken)
	}
	// An object that is replaced between two pages must not be listed twice.
	slices.SortFunc(infos, func(a, b storage.Info) int { return cmp.Compare(a.Key, b.Key) })
	return slices.CompactFunc(infos, func(a, b storage.Info) bool { return a.Key == b.Key }), nil
}

const (
	// maxAttempts is how many times a request is sent.
	maxAttempts = 4
	// minDelay is the shortest time between the first two, which doubles.
	minDelay = 100 * time.Millisecond
)

// transient are the statuses after which the same request may succeed.
var transient = []int{
	http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
	http.StatusServiceUnavailable, http.StatusGatewayTimeout,
}

// write makes a call that writes or deletes an object, when the service allows it.
func (s *Store) write(ctx context.Context, key string, call googleapi.Call) (response googleapi.Response, attempts int, err error) {
	if err := s.pace.wait(ctx, key); err != nil {
		return googleapi.Response{}, 0, err
	}
	defer s.pace.done(key)
	return s.do(ctx, call)
}

// do makes a call, again if there is no response or the API is overloaded. It returns how many
// attempts there were: any but the last may have had an effect.
func (s *Store) do(ctx context.Context, call googleapi.Call) (response googleapi.Response, attempts int, err error) {
	delay := minDelay
	for attempts = 1; ; attempts++ {
		response, err = s.client.Do(ctx, call)
		if err == nil || attempts == maxAttempts || deadline.Check(ctx) != nil {
			return response, attempts, err
		}
		e, ok := googleapi.AsError(err)
		if ok && !slices.Contains(transient, e.Status) {
			return response, attempts, err
		}
		if ok && e.Status == http.StatusTooManyRequests {
			delay = max(delay, s.pace.interval) // another process may have written the object
		}
		select {
		case <-ctx.Done():
			return response, attempts, err
		case <-time.After(delay + rand.N(delay)):
		}
		delay *= 2
	}
}
