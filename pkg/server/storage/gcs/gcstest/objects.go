// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcstest

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// object is the live version of an object.
type object struct {
	bucket     string
	name       string
	data       []byte
	kind       string
	metadata   map[string]string
	generation int64
	created    time.Time
}

// noObject is the error for a missing object, whose message is not documented. The message of a
// missing bucket is another (docs/providers.md#google-cloud).
func noObject(bucket, name string) error {
	return &failure{http.StatusNotFound, "notFound", "No such object: " + bucket + "/" + name}
}

// insert writes an object if it has the generation of the precondition.
func (s *Server) insert(r *request, objects map[string]*object) (any, error) {
	var attributes struct {
		Name, ContentType, CRC32C string
		Metadata                  map[string]string
	}
	if err := json.Unmarshal(r.attributes, &attributes); err != nil {
		return nil, &failure{http.StatusBadRequest, "parseError", err.Error()}
	}
	name := cmp.Or(r.URL.Query().Get("name"), attributes.Name)
	if name == "" || len(name) > 1024 || !utf8.ValidString(name) || strings.ContainsAny(name, "\r\n") {
		return nil, &failure{http.StatusBadRequest, "invalid", "Invalid object name"}
	}
	if attributes.CRC32C != "" && attributes.CRC32C != checksum(r.data) {
		return nil, &failure{http.StatusBadRequest, "invalid", "Provided CRC32C doesn't match calculated CRC32C"}
	}
	if err := s.throttle(r.bucket, name); err != nil {
		return nil, err
	}
	if want := r.URL.Query().Get("ifGenerationMatch"); want != "" {
		current := "0"
		if stored := objects[name]; stored != nil {
			current = strconv.FormatInt(stored.generation, 10)
		}
		if want != current {
			return nil, &failure{http.StatusPreconditionFailed, "conditionNotMet", "At least one of the pre-conditions you specified did not hold."}
		}
	}
	s.generation++
	stored := &object{
		bucket: r.bucket, name: name, data: r.data, kind: attributes.ContentType, metadata: attributes.Metadata,
		generation: s.generation, created: time.Now().UTC(),
	}
	objects[name] = stored
	s.written[r.bucket+"/"+name] = stored.created
	return stored, nil
}

// list returns a page of the objects, sorted by name.
func list(r *request, objects map[string]*object) (any, error) {
	query := r.URL.Query()
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(objects)), func(name string) bool {
		return !strings.HasPrefix(name, query.Get("prefix"))
	})
	size := 1000
	if text := query.Get("maxResults"); text != "" {
		most, _ := strconv.Atoi(text) // was checked
		size = min(size, most)
	}
	if token := query.Get("pageToken"); token != "" {
		last, err := base64.URLEncoding.DecodeString(token)
		if err != nil {
			return nil, &failure{http.StatusBadRequest, "invalid", "Invalid argument."}
		}
		names = slices.DeleteFunc(names, func(name string) bool { return name <= string(last) })
	}
	page := map[string]any{"kind": "storage#objects"}
	if len(names) > size {
		names = names[:size]
		page["nextPageToken"] = base64.URLEncoding.EncodeToString([]byte(names[size-1]))
	}
	var items []any
	for _, name := range names {
		items = append(items, objects[name].resource())
	}
	if len(items) > 0 {
		page["items"] = items
	}
	return page, nil
}

// resource returns the object in the form of responses.
func (o *object) resource() map[string]any {
	generation, created := strconv.FormatInt(o.generation, 10), o.created.Format(time.RFC3339Nano)
	return map[string]any{
		"kind": "storage#object", "id": o.bucket + "/" + o.name + "/" + generation, "name": o.name, "bucket": o.bucket,
		"generation": generation, "metageneration": "1", "contentType": o.kind, "size": strconv.Itoa(len(o.data)),
		"timeCreated": created, "updated": created, "etag": "CAE=", "crc32c": checksum(o.data), "metadata": o.metadata, "storageClass": "STANDARD",
	}
}

// download responds with the data.
func (o *object) download(w http.ResponseWriter, noLastModified bool) {
	w.Header().Set("Content-Type", o.kind)
	w.Header().Set("X-Goog-Generation", strconv.FormatInt(o.generation, 10))
	w.Header().Set("X-Goog-Hash", "crc32c="+checksum(o.data))
	if !noLastModified {
		w.Header().Set("Last-Modified", o.created.Format(http.TimeFormat))
	}
	_, _ = w.Write(o.data) // the client may have closed the connection
}

func checksum(data []byte) string {
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}
