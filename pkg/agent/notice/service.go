// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package notice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

const (
	// serviceURL is where every cloud has its metadata service.
	serviceURL = "http://169.254.169.254"
	// maxResponseBytes is more than any response has.
	maxResponseBytes = 256 << 10
)

// statusError is the error of a response with a status other than 200.
type statusError struct {
	path string
	code int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s returned %d %s", e.path, e.code, http.StatusText(e.code))
}

// hasStatus reports whether an error is that of a response with a status.
func hasStatus(err error, code int) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == code
}

// service makes requests to a metadata service.
type service struct {
	baseURL string
	client  *http.Client
}

func newService(baseURL string) service {
	if baseURL == "" {
		baseURL = serviceURL
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// A proxy would answer for its own machine.
	transport.Proxy = nil
	return service{
		baseURL: strings.TrimSuffix(baseURL, "/"),
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// do returns headers and body of a response with the status 200.
func (s service) do(ctx context.Context, method, path string, headers map[string]string) (http.Header, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.baseURL+path, nil)
	if err != nil {
		return nil, nil, err
	}
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	// The connection is used again once the body has been read.
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponseBytes))
	if response.StatusCode != http.StatusOK {
		return nil, nil, &statusError{path: path, code: response.StatusCode}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return response.Header, body, nil
}
