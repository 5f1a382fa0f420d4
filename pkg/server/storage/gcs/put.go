// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/storage"
)

const (
	// writeMetadata is the metadata key of the id of the write that wrote an object.
	writeMetadata = "nstance-write"
	// noGeneration is the precondition of an object that must not exist.
	noGeneration = "0"
)

// isGeneration reports whether a text is the generation of an object.
func isGeneration(text string) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && n > 0 && strconv.FormatInt(n, 10) == text
}

// put writes an object that must have a generation, and returns its new generation.
//
// A write is sent again if the response is lost. If the first attempt succeeded, the second
// is rejected because of the first. Therefore each write has an id of its own, and after a
// rejection put checks whether the object has this id. The data is not enough: two servers
// that count from 1 both write 2. Google describes the problem in
// https://cloud.google.com/storage/docs/retry-strategy.
func (s *Store) put(ctx context.Context, key string, data []byte, generation string) (string, error) {
	if err := storage.CheckCall(ctx, key); err != nil {
		return "", err
	}
	writeID := rand.Text()
	body, contentType, err := upload(key, data, writeID)
	if err != nil {
		return "", err
	}
	response, attempts, err := s.write(ctx, key, googleapi.Call{
		Name: "storage.objects.insert", Method: http.MethodPost, Path: append([]string{"upload"}, s.path()...),
		Query:   url.Values{"uploadType": {"multipart"}, "ifGenerationMatch": {generation}, "fields": {"generation"}},
		Content: body, ContentType: contentType,
	})
	if e, ok := googleapi.AsError(err); ok && e.Status == http.StatusPreconditionFailed || isNotFound(err) {
		if attempts == 1 {
			return "", storage.ErrConflict
		}
		return s.afterRejection(ctx, key, writeID)
	}
	if err != nil {
		return "", err
	}
	return decodeGeneration(response.Body)
}

// upload returns the body of a request with the metadata and the data of an object.
func upload(key string, data []byte, writeID string) (body []byte, contentType string, err error) {
	attributes, err := json.Marshal(map[string]any{
		"name": key, "contentType": "application/octet-stream", "crc32c": checksum(data), "metadata": map[string]string{writeMetadata: writeID},
	})
	if err != nil {
		return nil, "", err
	}
	var buffer bytes.Buffer
	parts := multipart.NewWriter(&buffer)
	for _, section := range []struct {
		kind string
		data []byte
	}{{"application/json", attributes}, {"application/octet-stream", data}} {
		part, err := parts.CreatePart(textproto.MIMEHeader{"Content-Type": {section.kind}})
		if err != nil {
			return nil, "", err
		}
		if _, err := part.Write(section.data); err != nil {
			return nil, "", err
		}
	}
	err = parts.Close()
	return buffer.Bytes(), "multipart/related; boundary=" + parts.Boundary(), err
}

// afterRejection returns the generation of the object if an earlier attempt of the rejected
// write wrote it, or else storage.ErrConflict.
func (s *Store) afterRejection(ctx context.Context, key, writeID string) (string, error) {
	response, _, err := s.do(ctx, googleapi.Call{
		Name: "storage.objects.get", Method: http.MethodGet, Path: s.path(key), Query: url.Values{"fields": {"generation,metadata"}},
	})
	if isNotFound(err) {
		return "", storage.ErrConflict
	}
	if err != nil {
		return "", fmt.Errorf("check whether an earlier attempt of the rejected write succeeded: %w", err)
	}
	var written object
	if err := json.Unmarshal(response.Body, &written); err != nil {
		return "", fmt.Errorf("decode the response: %w", err)
	}
	if written.Metadata[writeMetadata] != writeID {
		return "", storage.ErrConflict
	}
	return decodeGeneration(response.Body)
}

func decodeGeneration(body []byte) (string, error) {
	var written object
	if err := json.Unmarshal(body, &written); err != nil {
		return "", fmt.Errorf("decode the response: %w", err)
	}
	if !isGeneration(written.Generation) {
		return "", fmt.Errorf("the response has the generation %q", written.Generation)
	}
	return written.Generation, nil
}
