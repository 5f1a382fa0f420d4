// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package googleapi calls the REST APIs of Google with application default credentials
// (https://cloud.google.com/docs/authentication/application-default-credentials). It replaces
// the generated libraries: the library for Compute Engine adds 19 MB to a program, because
// text/template makes the linker keep all methods of its client.
package googleapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// maxResponse is the largest response in bytes. A page of a list has some MiB.
const maxResponse = 64 << 20

// Client calls one API.
type Client struct {
	endpoint string
	http     *http.Client
}

// New returns a client of the API at an address, such as
// "https://compute.googleapis.com/compute/v1". The transport adds credentials.
func New(endpoint string, transport http.RoundTripper) *Client {
	return &Client{
		endpoint: strings.TrimSuffix(endpoint, "/"),
		http: &http.Client{
			Transport: transport,
			// The credentials must not be sent to another host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Call describes a request.
type Call struct {
	// Name is the name of the method in Google's reference, for error messages.
	Name string
	// Method is the HTTP method.
	Method string
	// Path has the unescaped parts of the path below the endpoint.
	Path  []string
	Query url.Values
	// Body is encoded as JSON, unless it is nil.
	Body any
	// Content and ContentType replace Body.
	Content     []byte
	ContentType string
}

// Response is the response to a successful request.
type Response struct {
	Header http.Header
	Body   []byte
}

// Do sends a request. The error wraps an *Error if the API has responded with an error.
func (c *Client) Do(ctx context.Context, call Call) (Response, error) {
	response, err := c.do(ctx, call)
	if err != nil {
		return Response{}, fmt.Errorf("%s: %w", call.Name, err)
	}
	return response, nil
}

// DoJSON sends a request and decodes the response into out.
func (c *Client) DoJSON(ctx context.Context, call Call, out any) error {
	response, err := c.Do(ctx, call)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(response.Body, out); err != nil {
		return fmt.Errorf("%s: decode the response: %w", call.Name, err)
	}
	return nil
}

func (c *Client) do(ctx context.Context, call Call) (Response, error) {
	request, err := c.request(ctx, call)
	if err != nil {
		return Response{}, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		// The URL may contain confidential text, such as the name of a bucket.
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		return Response{}, err
	}
	data, readErr := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err := errors.Join(readErr, response.Body.Close()); err != nil {
		return Response{}, fmt.Errorf("read the response: %w", err)
	}
	if response.StatusCode/100 != 2 {
		return Response{}, parseError(response.StatusCode, data)
	}
	if len(data) > maxResponse {
		return Response{}, fmt.Errorf("the response has more than %d bytes", maxResponse)
	}
	return Response{Header: response.Header, Body: data}, nil
}

func (c *Client) request(ctx context.Context, call Call) (*http.Request, error) {
	address := c.endpoint
	for _, part := range call.Path {
		address += "/" + url.PathEscape(part)
	}
	if len(call.Query) > 0 {
		address += "?" + call.Query.Encode()
	}
	content, contentType := call.Content, call.ContentType
	if call.Body != nil {
		var err error
		if content, err = json.Marshal(call.Body); err != nil {
			return nil, err
		}
		contentType = "application/json"
	}
	request, err := http.NewRequestWithContext(ctx, call.Method, address, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	request.Header.Set("User-Agent", "nstance")
	return request, nil
}

// Error is an error response (https://cloud.google.com/apis/design/errors).
type Error struct {
	// Status is the HTTP status.
	Status int
	// StatusName is the canonical error code, such as "NOT_FOUND". Older APIs have no such code.
	// It is empty if a proxy has responded instead of the API.
	StatusName string
	// Reasons are the API's own error codes. They are empty if a proxy has responded instead
	// of the API.
	Reasons []string
	// Message explains the error to users.
	Message string
}

// Error returns the HTTP status, the reasons or else the StatusName, and the message.
func (e *Error) Error() string {
	text := fmt.Sprintf("HTTP %d", e.Status)
	switch {
	case len(e.Reasons) > 0:
		text += " " + strings.Join(e.Reasons, ", ")
	case e.StatusName != "":
		text += " " + e.StatusName
	}
	return text + ": " + e.Message
}

// Has reports whether the API has responded with one of the reasons.
func (e *Error) Has(reasons ...string) bool {
	return slices.ContainsFunc(e.Reasons, func(reason string) bool { return slices.Contains(reasons, reason) })
}

// AsError returns the *Error that err wraps, and whether there is one.
func AsError(err error) (*Error, bool) { return errors.AsType[*Error](err) }

// IsNotFound reports whether the API has responded that the resource does not exist. The HTTP
// status alone may come from a proxy.
func IsNotFound(err error) bool {
	e, ok := AsError(err)
	return ok && e.Status == http.StatusNotFound && e.Has("notFound")
}

// IsThrottled reports whether the API has responded that there were too many requests.
func IsThrottled(err error) bool {
	e, ok := AsError(err)
	return ok && (e.Status == http.StatusTooManyRequests ||
		e.Status == http.StatusForbidden && e.Has("rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"))
}

// maxText limits the length of an error message that is not JSON.
const maxText = 2000

// parseError returns the error in a response.
func parseError(status int, data []byte) *Error {
	var body struct {
		Error struct {
			Code    int    `json:"code"`
			Status  string `json:"status"`
			Message string `json:"message"`
			Errors  []struct {
				Reason  string `json:"reason"`
				Message string `json:"message"`
			} `json:"errors"`
			Details []struct {
				Reason string `json:"reason"`
			} `json:"details"`
		} `json:"error"`
	}
	e := &Error{Status: status, Message: http.StatusText(status)}
	if err := json.Unmarshal(data, &body); err != nil {
		// A proxy has responded, or the request was a download, whose errors are text.
		if text := strings.TrimSpace(string(data)); text != "" && !strings.HasPrefix(text, "<") {
			e.Message = strings.ToValidUTF8(text[:min(len(text), maxText)], "")
		}
		return e
	}
	if body.Error.Message != "" {
		e.Message = body.Error.Message
	}
	if body.Error.Code == status {
		e.StatusName = body.Error.Status
	}
	for _, item := range body.Error.Errors {
		if item.Reason != "" {
			e.Reasons = append(e.Reasons, item.Reason)
		}
	}
	for _, detail := range body.Error.Details {
		if detail.Reason != "" {
			e.Reasons = append(e.Reasons, detail.Reason)
		}
	}
	return e
}
