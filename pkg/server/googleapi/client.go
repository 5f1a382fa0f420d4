// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package googleapi makes calls to the REST APIs of Google, with application default
// credentials. The generated libraries of these APIs are not used: that of Compute Engine
// adds 19 MB to a program, because text/template keeps all methods of its client.
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

// maxResponse is the size up to which a response is read. A page of a list has some MiB.
const maxResponse = 64 << 20

// Client makes calls to one API.
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

// Call is one call.
type Call struct {
	// Name is that of the method in the documents of Google, for messages.
	Name string
	// Method is that of HTTP.
	Method string
	// Path are the parts of the path below the endpoint, not escaped.
	Path  []string
	Query url.Values
	// Body is encoded as JSON, unless it is nil.
	Body any
	// Content and ContentType replace Body.
	Content     []byte
	ContentType string
}

// Response is a response that is a success.
type Response struct {
	Header http.Header
	Body   []byte
}

// Do makes a call. The error wraps an *Error if the API has responded with one.
func (c *Client) Do(ctx context.Context, call Call) (Response, error) {
	response, err := c.do(ctx, call)
	if err != nil {
		return Response{}, fmt.Errorf("%s: %w", call.Name, err)
	}
	return response, nil
}

// DoJSON makes a call and decodes the response into out.
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
		// The address may have a part that is confidential, such as the name of a bucket.
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

// Error is a response that is no success.
type Error struct {
	// Status is that of HTTP.
	Status int
	// StatusName is the canonical name of the error, such as "NOT_FOUND", which newer APIs
	// have. It is empty if something before the API has responded, such as a proxy.
	StatusName string
	// Reasons are the codes of the API. They are empty if something before the API has
	// responded, such as a proxy.
	Reasons []string
	// Message is for people.
	Message string
}

// Error returns the status, the reasons, or else the name of the status, and the message.
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

// AsError returns the error with which the API has responded, and whether there is one.
func AsError(err error) (*Error, bool) { return errors.AsType[*Error](err) }

// IsNotFound reports whether the API has responded that what was named does not exist. A
// status alone may be that of a proxy.
func IsNotFound(err error) bool {
	e, ok := AsError(err)
	return ok && e.Status == http.StatusNotFound && e.Has("notFound")
}

// IsThrottled reports whether the API has responded that there were too many calls.
func IsThrottled(err error) bool {
	e, ok := AsError(err)
	return ok && (e.Status == http.StatusTooManyRequests ||
		e.Status == http.StatusForbidden && e.Has("rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"))
}

// maxText is how much of an error that is text is kept.
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
		// Not from the API, or of a download, whose errors are text.
		if text := strings.TrimSpace(string(data)); text != "" && !strings.HasPrefix(text, "<") {
			e.Message = text[:min(len(text), maxText)]
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
