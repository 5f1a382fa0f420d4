// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider"
)

const (
	// issuer issues the identity tokens of all machines
	// (https://cloud.google.com/compute/docs/instances/verifying-instance-identity).
	issuer = "https://accounts.google.com"
	// defaultIdentityKeys is where the issuer publishes its keys
	// (https://accounts.google.com/.well-known/openid-configuration).
	defaultIdentityKeys = "https://www.googleapis.com/oauth2/v3/certs"
	// argIdentityKeys is the option with another address.
	argIdentityKeys = "identity_keys_url"
	// keysTimeout bounds a request for the keys.
	keysTimeout = 10 * time.Second
)

// identityKeys has the keys of the issuer. It reads them when a token needs them.
type identityKeys struct {
	mu   sync.Mutex
	keys oidc.KeySet
}

func (k *identityKeys) get(address string) oidc.KeySet {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil {
		client := &http.Client{Timeout: keysTimeout, Transport: onlyOK{http.DefaultTransport}}
		k.keys = oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), client), address)
	}
	return k.keys
}

// onlyOK makes a response with another status than 200 an error.
type onlyOK struct{ base http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t onlyOK) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.base.RoundTrip(r)
	if err == nil && response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("the status is %s", response.Status)
	}
	return response, err
}

// observedKeys remembers if the keys could not be read. The verifier does not wrap the reason.
type observedKeys struct {
	oidc.KeySet
	unreadable error
}

// VerifySignature implements oidc.KeySet.
func (k *observedKeys) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.KeySet.VerifySignature(ctx, token)
	if _, isRequest := errors.AsType[*url.Error](err); isRequest || ctx.Err() != nil {
		k.unreadable = err
	}
	return payload, err
}

// validateAttestation reports every rule that the options of signed identities break.
func (o *Options) validateAttestation(path *field.Path) field.ErrorList {
	errs := o.ValidateAttestation(path)
	if o.IdentityKeysURL == "" {
		return errs
	}
	address, err := url.Parse(o.IdentityKeysURL)
	if err != nil || address.Host == "" || address.User != nil || address.Scheme != "https" && !isLoopback(address) {
		errs = append(errs, field.Invalid(path.Child(argIdentityKeys), o.IdentityKeysURL, "must be an address such as "+defaultIdentityKeys))
	}
	return errs
}

// isLoopback reports whether nobody can change the responses of an address on the way.
func isLoopback(address *url.URL) bool {
	ip := net.ParseIP(address.Hostname())
	return address.Scheme == "http" && ip != nil && ip.IsLoopback()
}

// VerifyIdentity verifies an identity token of the format "full".
func (o *Options) VerifyIdentity(ctx context.Context, ownID string, identity []byte, audience string) error {
	keys := &observedKeys{KeySet: o.identityKeys.get(cmp.Or(o.IdentityKeysURL, defaultIdentityKeys))} //nolint:contextcheck // the keys serve later requests too
	token, err := oidc.NewVerifier(issuer, keys, &oidc.Config{ClientID: audience}).Verify(ctx, string(identity))
	switch {
	case keys.unreadable != nil:
		return fmt.Errorf("%w: read the keys of %s: %w", provider.ErrNotVerified, issuer, keys.unreadable)
	case err != nil:
		return fmt.Errorf("the identity token is not valid: %w", err)
	}
	var claims struct {
		Google struct {
			Machine struct {
				Project string `json:"project_id"`
				Zone    string `json:"zone"`
				Name    string `json:"instance_name"`
			} `json:"compute_engine"`
		} `json:"google"`
	}
	if err := token.Claims(&claims); err != nil {
		return fmt.Errorf("read the identity token: %w", err)
	}
	machine := claims.Google.Machine
	if id := providerID(machine.Project, machine.Zone, machine.Name); id != ownID {
		return fmt.Errorf("the identity token is of machine %q, must be of %s", id, ownID)
	}
	return nil
}
