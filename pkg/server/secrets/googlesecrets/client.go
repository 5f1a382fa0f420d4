// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package googlesecrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/googleapi"
)

const (
	// DefaultEndpoint is the address of the service.
	DefaultEndpoint = "https://secretmanager.googleapis.com"
	scope           = "https://www.googleapis.com/auth/cloud-platform"
	// attempts is the maximum number of requests for a call after errors that may pass.
	attempts = 4
	// firstDelay is the delay before the second attempt. It doubles with each.
	firstDelay = 250 * time.Millisecond
)

// client makes requests to the REST API of the service, version 1.
type client struct {
	api   *googleapi.Client
	delay time.Duration
}

func newClient(endpoint string, transport http.RoundTripper, delay time.Duration) client {
	return client{api: googleapi.New(endpoint+"/v1", transport), delay: delay}
}

// is reports whether err is a response of the service with a status. The error page of a
// proxy has no status.
func is(err error, code int, status string) bool {
	response, ok := googleapi.AsError(err)
	return ok && response.Status == code && response.StatusName == status
}

// call makes a request with a method of the service, and repeats it after errors that may
// pass.
func (c *client) call(ctx context.Context, name, method, path string, query url.Values, body, response any) error {
	request := googleapi.Call{
		Name: "secretmanager.projects.secrets." + name, Method: method, Path: strings.Split(path, "/"), Query: query, Body: body,
	}
	for attempt, delay := 1, c.delay; ; attempt, delay = attempt+1, 2*delay {
		err := c.callOnce(ctx, request, response)
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

// passes reports whether the same request may succeed later.
func passes(err error) bool {
	response, ok := googleapi.AsError(err)
	return !ok || response.Status == http.StatusTooManyRequests || response.Status >= http.StatusInternalServerError
}

func (c *client) callOnce(ctx context.Context, request googleapi.Call, response any) error {
	if err := deadline.Check(ctx); err != nil {
		return err
	}
	got, err := c.api.Do(ctx, request)
	if err != nil {
		return withoutSecrets(err, request)
	}
	if json.Unmarshal(got.Body, response) != nil {
		// The error of json may quote the response.
		return fmt.Errorf("%s: the response is not valid", request.Name)
	}
	return nil
}

// withoutSecrets returns an error without texts that may quote a request with a secret, or
// that do not come from the service.
func withoutSecrets(err error, request googleapi.Call) error {
	response, ok := googleapi.AsError(err)
	if !ok || response.StatusName != "" && (request.Body == nil || response.StatusName == statusDenied) {
		return err
	}
	return fmt.Errorf("%s: %w", request.Name, &googleapi.Error{
		Status: response.Status, StatusName: response.StatusName, Message: http.StatusText(response.Status),
	})
}
