// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package googlesecrets

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"nstance.dev/operator/pkg/server/deadline"
)

const (
	// DefaultEndpoint is the address of the service.
	DefaultEndpoint = "https://secretmanager.googleapis.com"
	scope           = "https://www.googleapis.com/auth/cloud-platform"
	// attempts is how often a request is made that may succeed later.
	attempts = 4
	// firstDelay is the delay before the second attempt. It doubles with each.
	firstDelay = 250 * time.Millisecond
	// maxResponse is more than the largest secret in base64.
	maxResponse = 1 << 20
)

// client makes requests to the REST API of the service, version 1.
type client struct {
	endpoint string
	http     *http.Client
	delay    time.Duration
}

// NewHTTPClient returns a client with the application default credentials, which are looked
// up at the first request.
func NewHTTPClient() *http.Client {
	return &http.Client{Transport: &defaultCredentials{}}
}

// defaultCredentials authorizes requests.
type defaultCredentials struct {
	mu     sync.Mutex
	source oauth2.TokenSource
}

// RoundTrip implements http.RoundTripper.
func (d *defaultCredentials) RoundTrip(request *http.Request) (*http.Response, error) {
	source, err := d.tokenSource()
	if err != nil {
		return nil, err
	}
	send := &oauth2.Transport{Source: source, Base: deadline.HTTPClient(http.DefaultTransport.RoundTrip)}
	return send.RoundTrip(request)
}

func (d *defaultCredentials) tokenSource() (oauth2.TokenSource, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.source == nil {
		// Tokens are requested with this context as long as the process runs.
		found, err := google.FindDefaultCredentials(context.Background(), scope)
		if err != nil {
			return nil, fmt.Errorf("find the application default credentials of Google Cloud: %w", err)
		}
		d.source = found.TokenSource
	}
	return d.source, nil
}

// responseError is a response of the service that is no success.
type responseError struct {
	// code is the HTTP status, and status Google's name of the error, empty if the response
	// is not one of the service.
	code   int
	status string
	// message is what the service says, empty for a request that has a secret.
	message string
}

func (e *responseError) Error() string {
	text := fmt.Sprintf("the service has responded with %d %s", e.code, e.status)
	if e.message != "" {
		text += ": " + e.message
	}
	return text
}

// is reports whether err is a response of the service with a status. An error page of
// something between has none.
func is(err error, code int, status string) bool {
	response, ok := errors.AsType[*responseError](err)
	return ok && response.code == code && response.status == status
}

// call makes a request, and repeats it after errors that pass.
func (c *client) call(ctx context.Context, method, path string, query url.Values, body, response any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return errors.New("encode a request")
		}
	}
	for attempt, delay := 1, c.delay; ; attempt, delay = attempt+1, 2*delay {
		err := c.callOnce(ctx, method, path, query, data, response)
		if err == nil || attempt == attempts || !passes(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(delay):
		}
	}
}

// passes reports whether a request with that error may succeed later.
func passes(err error) bool {
	response, ok := errors.AsType[*responseError](err)
	return !ok || response.code == http.StatusTooManyRequests || response.code >= http.StatusInternalServerError
}

func (c *client) callOnce(ctx context.Context, method, path string, query url.Values, body []byte, response any) error {
	address := c.endpoint + "/v1/" + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if err := deadline.Check(ctx); err != nil {
		return err
	}
	got, err := c.http.Do(request)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(got.Body, maxResponse))
	if err := errors.Join(err, got.Body.Close()); err != nil {
		return err
	}
	if got.StatusCode != http.StatusOK {
		return newResponseError(got.StatusCode, data, body != nil)
	}
	if json.Unmarshal(data, response) != nil {
		// The error of json may quote the response.
		return fmt.Errorf("the response to %s %s is not valid", method, path)
	}
	return nil
}

func newResponseError(code int, data []byte, confidential bool) error {
	var response struct {
		Error struct {
			Code    int    `json:"code"`
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"error"`
	}
	err := &responseError{code: code}
	if json.Unmarshal(data, &response) == nil && response.Error.Code == code {
		err.status, err.message = response.Error.Status, response.Error.Message
	}
	if confidential && err.status != "PERMISSION_DENIED" {
		err.message = ""
	}
	return err
}
