// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package googleapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"nstance.dev/operator/pkg/server/deadline"
)

// tokenTimeout is how long a request for a token may take.
const tokenTimeout = 10 * time.Second

// errNoCredentials tells users how to provide credentials.
var errNoCredentials = errors.New("no application default credentials: run on a machine with a service account, or set GOOGLE_APPLICATION_CREDENTIALS")

// NewTransport returns a transport that adds tokens of the application default credentials
// for a scope. It searches credentials at the first request, and again until it finds some.
// It sends no request whose context is done.
func NewTransport(scope string) http.RoundTripper {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// All requests go to one host.
	transport.MaxIdleConnsPerHost = 32
	return &authorized{base: deadline.HTTPClient(transport.RoundTrip), scope: scope}
}

// WithToken returns a transport that adds the tokens of a source.
func WithToken(base http.RoundTripper, source oauth2.TokenSource) http.RoundTripper {
	return &authorized{base: deadline.HTTPClient(base.RoundTrip), source: source}
}

// authorized is a transport that adds tokens to requests.
type authorized struct {
	base  http.RoundTripper
	scope string

	// mu guards source, which is nil until credentials were found.
	mu     sync.Mutex
	source oauth2.TokenSource
}

// RoundTrip implements http.RoundTripper.
func (a *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := a.token() //nolint:contextcheck // the token serves later requests too
	if err != nil {
		if r.Body != nil {
			err = errors.Join(err, r.Body.Close())
		}
		return nil, fmt.Errorf("get a token: %w", err)
	}
	r = r.Clone(r.Context())
	token.SetAuthHeader(r)
	return a.base.RoundTrip(r)
}

func (a *authorized) token() (*oauth2.Token, error) {
	source, err := a.tokenSource()
	if err != nil {
		return nil, err
	}
	return source.Token()
}

func (a *authorized) tokenSource() (oauth2.TokenSource, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.source != nil {
		return a.source, nil
	}
	// The source uses the context as long as there are requests.
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Timeout: tokenTimeout})
	credentials, err := google.FindDefaultCredentials(ctx, a.scope)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCredentials, err)
	}
	a.source = credentials.TokenSource
	return a.source, nil
}
