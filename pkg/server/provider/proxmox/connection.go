// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/provider"
)

// Connection configures the calls to the API of a cluster.
type Connection struct {
	// Endpoints are the URLs of the API on one or more nodes.
	Endpoints []string
	// TokenEnv is the environment variable that contains the API token, or TokenFile the
	// file. One of them is set.
	TokenEnv, TokenFile string
	// CAFile has the certificates of the CA that signs the nodes' certificates. Empty means the
	// CAs of the operating system.
	CAFile string
	// Fingerprints are SHA-256 fingerprints of the nodes' certificates. If they are set, all
	// other certificates are rejected.
	Fingerprints []string
}

func readConnection(o *jsonc.Object) Connection {
	c := Connection{
		Endpoints:    o.Strings("endpoints"),
		CAFile:       o.String("ca_file"),
		Fingerprints: o.Strings("fingerprints"),
	}
	// A user may have written the token instead of its location, and errors are logged.
	token := o.ConfidentialObject("token")
	c.TokenEnv, c.TokenFile = token.String("env"), token.String("file")
	token.ExactlyOneOf("env", "file")
	token.Finish()
	return c
}

// fingerprints matches 32 bytes in hexadecimal digits, with or without colons.
var fingerprints = regexp.MustCompile(`^[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}$`)

func (c *Connection) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(c.Endpoints) == 0 {
		errs = append(errs, field.Required(path.Child("endpoints"), "must have at least one address"))
	}
	for i, endpoint := range c.Endpoints {
		if _, err := parseEndpoint(endpoint); err != nil {
			errs = append(errs, field.Invalid(path.Child("endpoints").Index(i), endpoint, err.Error()))
		}
	}
	if c.TokenFile != "" {
		errs = append(errs, validation.AbsolutePath(path.Child("token", "file"), c.TokenFile)...)
	}
	if c.CAFile != "" {
		errs = append(errs, validation.AbsolutePath(path.Child("ca_file"), c.CAFile)...)
		if len(c.Fingerprints) > 0 {
			errs = append(errs, field.Forbidden(path.Child("ca_file"), "a certificate with one of the fingerprints needs none"))
		}
	}
	for i, fingerprint := range c.Fingerprints {
		if !fingerprints.MatchString(fingerprint) {
			errs = append(errs, field.Invalid(path.Child("fingerprints").Index(i), fingerprint, "must be the SHA-256 of a certificate, 32 bytes in hexadecimal digits"))
		}
	}
	return errs
}

// parseEndpoint parses the URL of an endpoint.
func parseEndpoint(text string) (*url.URL, error) {
	endpoint, err := url.Parse(text)
	if err != nil || endpoint.Scheme != "https" || endpoint.Host == "" || endpoint.User != nil ||
		strings.Trim(endpoint.Path, "/") != "" || endpoint.RawQuery != "" || endpoint.Fragment != "" {
		return nil, errors.New(`must be an address such as "https://pve1.example.com:8006"`)
	}
	return endpoint, nil
}

func (c *Connection) immutableFields(path *field.Path) []provider.ImmutableField {
	return []provider.ImmutableField{
		{Path: path.Child("endpoints"), Value: strings.Join(c.Endpoints, ", ")},
		{Path: path.Child("token"), Value: fmt.Sprintf("env %q, file %q", c.TokenEnv, c.TokenFile)},
		{Path: path.Child("ca_file"), Value: c.CAFile},
		{Path: path.Child("fingerprints"), Value: strings.Join(c.Fingerprints, ", ")},
	}
}

// tokens matches API tokens: user, realm, name and secret
// (https://pve.proxmox.com/wiki/User_Management#pveum_tokens).
var tokens = regexp.MustCompile(`^[^\s@!=]+@[A-Za-z][A-Za-z0-9._-]+![A-Za-z][A-Za-z0-9._-]+=[0-9a-fA-F-]{36}$`)

// token reads the API token. Its errors never contain the token.
func (c *Connection) token() (string, error) {
	text, source := os.Getenv(c.TokenEnv), "the environment variable "+c.TokenEnv
	if c.TokenFile != "" {
		data, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return "", fmt.Errorf("read the API token: %w", err)
		}
		text, source = string(data), c.TokenFile
	}
	if text = strings.TrimSpace(text); !tokens.MatchString(text) {
		return "", fmt.Errorf("%s has no API token of the form USER@REALM!NAME=SECRET", source)
	}
	return text, nil
}

// tlsConfig returns the configuration that verifies the certificates of the nodes.
func (c *Connection) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		data, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificates that sign those of the nodes: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("%s has no certificates", c.CAFile)
		}
	}
	if len(c.Fingerprints) > 0 {
		pinned := c.pinned()
		// The certificate itself is known, so its issuer and its name do not matter.
		config.InsecureSkipVerify = true
		config.VerifyConnection = func(state tls.ConnectionState) error {
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if !slices.ContainsFunc(pinned, func(fingerprint []byte) bool { return bytes.Equal(fingerprint, sum[:]) }) {
				return fmt.Errorf("the certificate of %s has the fingerprint %x, which is none of those configured", state.ServerName, sum)
			}
			return nil
		}
	}
	return config, nil
}

// pinned returns the fingerprints as bytes.
func (c *Connection) pinned() [][]byte {
	var all [][]byte
	for _, text := range c.Fingerprints {
		if sum, err := hex.DecodeString(strings.ReplaceAll(text, ":", "")); err == nil {
			all = append(all, sum)
		}
	}
	return all
}

// dialTimeout is how long a node may take to accept a connection before the next node is
// tried.
const dialTimeout = 5 * time.Second

// dialer connects to a node.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// newClient returns a client that connects with dial, or normally if dial is nil.
func (c *Connection) newClient(dial dialer) (*client, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	config, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dial, TLSClientConfig: config, TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: parallel, IdleConnTimeout: 30 * time.Second,
	}
	made := &client{token: token, http: &http.Client{
		Transport: deadline.HTTPClient(transport.RoundTrip),
		// The API sends no redirects. A redirect could send the token to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for _, text := range c.Endpoints {
		endpoint, err := parseEndpoint(text)
		if err != nil {
			return nil, fmt.Errorf("endpoint %s: %w", text, err)
		}
		made.endpoints = append(made.endpoints, endpoint)
	}
	return made, nil
}
