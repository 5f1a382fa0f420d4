// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package notice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// serviceURL is the link-local address of the metadata service of every supported
	// cloud.
	serviceURL = "http://169.254.169.254"
	// maxResponseBytes bounds a response. Responses have a few KiB.
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

// hasStatus reports whether err is a statusError with a status code.
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
	// A proxy would get the notices of its own machine.
	transport.Proxy = nil
	return service{
		baseURL: strings.TrimSuffix(baseURL, "/"),
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// do returns the headers and the body of a response with status 200. Another status is a
// statusError.
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
	// The transport reuses a connection only after the body was read
	// (https://pkg.go.dev/net/http#Response).
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponseBytes))
	if response.StatusCode != http.StatusOK {
		return nil, nil, &statusError{path: path, code: response.StatusCode}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return response.Header, body, nil
}

const (
	awsTokenPath  = "/latest/api/token"
	awsActionPath = "/latest/meta-data/spot/instance-action"

	awsTokenHeader    = "X-aws-ec2-metadata-token"
	awsLifetimeHeader = "X-aws-ec2-metadata-token-ttl-seconds"

	awsTokenLifetime = 6 * time.Hour
)

// aws is the instance metadata service of AWS, version 2
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html).
// A rebalance recommendation is no notice: AWS does not terminate every machine that gets
// one (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html).
type aws struct {
	service
	token string
	// renew is the time from which a new token is requested.
	renew time.Time
}

// Poll implements Source. The path exists only if AWS has scheduled to interrupt the spot
// instance
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html).
func (a *aws) Poll(ctx context.Context) (*Notice, error) {
	body, err := a.get(ctx, awsActionPath)
	if hasStatus(err, http.StatusUnauthorized) {
		// The token is no longer valid.
		a.token = ""
		body, err = a.get(ctx, awsActionPath)
	}
	if hasStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var action struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}
	if err := json.Unmarshal(body, &action); err != nil {
		return nil, fmt.Errorf("read %s: %w", awsActionPath, err)
	}
	if action.Action == "" {
		return nil, errors.New("read " + awsActionPath + ": it has no action")
	}
	return &Notice{Action: action.Action, Deadline: action.Time}, nil
}

func (a *aws) get(ctx context.Context, path string) ([]byte, error) {
	if a.token == "" || time.Now().After(a.renew) {
		seconds := strconv.Itoa(int(awsTokenLifetime / time.Second))
		_, token, err := a.do(ctx, http.MethodPut, awsTokenPath, map[string]string{awsLifetimeHeader: seconds})
		if err != nil {
			return nil, fmt.Errorf("get a token: %w", err)
		}
		a.token, a.renew = string(token), time.Now().Add(awsTokenLifetime/2)
	}
	_, body, err := a.do(ctx, http.MethodGet, path, map[string]string{awsTokenHeader: a.token})
	return body, err
}

const (
	googlePreemptedPath   = "/computeMetadata/v1/instance/preempted"
	googleMaintenancePath = "/computeMetadata/v1/instance/maintenance-event"

	googleHeader, googleFlavor = "Metadata-Flavor", "Google"

	// googleTerminate is the maintenance event if the machine is not migrated
	// (https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice).
	googleTerminate = "TERMINATE_ON_HOST_MAINTENANCE"
)

// google is the metadata service of Google Cloud
// (https://cloud.google.com/compute/docs/instances/preemptible). It announces no deadline.
type google struct {
	service
}

// Poll implements Source.
func (g *google) Poll(ctx context.Context) (*Notice, error) {
	preempted, err := g.get(ctx, googlePreemptedPath)
	if err == nil && preempted == "TRUE" {
		return &Notice{Action: "preempted"}, nil
	}
	event, eventErr := g.get(ctx, googleMaintenancePath)
	if eventErr == nil && event == googleTerminate {
		return &Notice{Action: event}, nil
	}
	return nil, errors.Join(err, eventErr)
}

func (g *google) get(ctx context.Context, path string) (string, error) {
	headers, body, err := g.do(ctx, http.MethodGet, path, map[string]string{googleHeader: googleFlavor})
	if err != nil {
		return "", err
	}
	if headers.Get(googleHeader) != googleFlavor {
		return "", errors.New("the server of " + path + " is not the metadata service")
	}
	return strings.TrimSpace(string(body)), nil
}

const (
	azureEventsPath = "/metadata/scheduledevents?api-version=2020-07-01"
	azureNamePath   = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
)

// azureTerminations lists the event types that delete the machine. After other events, such
// as Freeze and Reboot, the machine continues
// (https://learn.microsoft.com/en-us/azure/virtual-machines/linux/scheduled-events).
var azureTerminations = []string{"Preempt", "Terminate"}

// azure is the metadata service of Azure. Its events may concern other machines of the same
// availability or scale set; they list the names of the machines.
type azure struct {
	service
	// name is the name of this machine, empty before the first poll.
	name string
}

// azureEvent is the part of a scheduled event that is read.
type azureEvent struct {
	EventType string
	Resources []string
	// NotBefore is empty once the event has started.
	NotBefore string
}

// Poll implements Source.
func (a *azure) Poll(ctx context.Context) (*Notice, error) {
	if a.name == "" {
		name, err := a.get(ctx, azureNamePath)
		if err != nil {
			return nil, err
		}
		a.name = strings.TrimSpace(string(name))
	}
	body, err := a.get(ctx, azureEventsPath)
	if err != nil {
		return nil, err
	}
	var document struct{ Events []azureEvent }
	if err := json.Unmarshal(body, &document); err != nil {
		return nil, fmt.Errorf("read %s: %w", azureEventsPath, err)
	}
	for _, event := range document.Events {
		if !slices.Contains(azureTerminations, event.EventType) || !slices.Contains(event.Resources, a.name) {
			continue
		}
		// A notice without a deadline is better than no notice.
		deadline, _ := http.ParseTime(event.NotBefore)
		return &Notice{Action: event.EventType, Deadline: deadline}, nil
	}
	return nil, nil
}

func (a *azure) get(ctx context.Context, path string) ([]byte, error) {
	_, body, err := a.do(ctx, http.MethodGet, path, map[string]string{"Metadata": "true"})
	return body, err
}

const (
	// awsIdentityPath has the identity document with its RSA signature, PKCS #7 in base64
	// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/verify-rsa2048.html).
	awsIdentityPath = "/latest/dynamic/instance-identity/rsa2048"
	// googleIdentityPath has a token for an audience. The format "full" names the machine
	// (https://cloud.google.com/compute/docs/instances/verifying-instance-identity).
	googleIdentityPath = "/computeMetadata/v1/instance/service-accounts/default/identity?format=full&audience="
)

// IdentitySource is a metadata service that has a signed identity of its machine.
type IdentitySource interface {
	// SignedIdentity returns the identity for an audience, as far as the cloud signs audiences.
	SignedIdentity(ctx context.Context, audience string) ([]byte, error)
}

// NewIdentitySource returns the metadata service of a provider, nil if the provider signs no
// identity. An empty URL means the address of the clouds.
func NewIdentitySource(provider, baseURL string) IdentitySource {
	source, _ := New(provider, baseURL).(IdentitySource)
	return source
}

// SignedIdentity returns the identity document, which has no audience.
func (a *aws) SignedIdentity(ctx context.Context, _ string) ([]byte, error) {
	document, err := a.get(ctx, awsIdentityPath)
	if hasStatus(err, http.StatusUnauthorized) {
		a.token = ""
		document, err = a.get(ctx, awsIdentityPath)
	}
	if err != nil {
		return nil, fmt.Errorf("read the signed identity of the machine: %w", err)
	}
	return document, nil
}

// SignedIdentity returns a token. The metadata service has none for a machine without a service
// account.
func (g *google) SignedIdentity(ctx context.Context, audience string) ([]byte, error) {
	token, err := g.get(ctx, googleIdentityPath+url.QueryEscape(audience))
	if err != nil {
		return nil, fmt.Errorf("read the signed identity of the machine: %w", err)
	}
	return []byte(token), nil
}
