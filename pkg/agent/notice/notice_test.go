// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package notice

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/runtest"
)

// cloud is a metadata service that behaves as the cloud documents it.
type cloud struct {
	*httptest.Server
	mu sync.Mutex
	// documents has the responses by path and query.
	documents map[string]string
	// token is the valid token of AWS.
	token int
	// failing is the status of all responses, 0 if the service works.
	failing  int
	requests atomic.Int64
}

func newCloud(t *testing.T, handle func(*cloud, http.ResponseWriter, *http.Request)) *cloud {
	t.Helper()
	c := &cloud{documents: map[string]string{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.requests.Add(1)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.failing != 0 {
			w.WriteHeader(c.failing)
			return
		}
		handle(c, w, r)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *cloud) set(path, document string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.documents[path] = document
}

func (c *cloud) fail(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing = status
}

func (c *cloud) document(w http.ResponseWriter, r *http.Request) {
	document, ok := c.documents[r.URL.RequestURI()]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = fmt.Fprint(w, document)
}

// serveAWS serves version 2 only: a token for at most 6 hours, requested with PUT and not
// through a proxy. Without a valid token the status is 401
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html).
func serveAWS(c *cloud, w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/latest/api/token" {
		seconds, err := strconv.Atoi(r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds"))
		switch {
		case r.Method != http.MethodPut:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case r.Header.Get("X-Forwarded-For") != "":
			w.WriteHeader(http.StatusForbidden)
		case err != nil || seconds < 1 || seconds > 21600:
			w.WriteHeader(http.StatusBadRequest)
		default:
			_, _ = fmt.Fprint(w, c.token)
		}
		return
	}
	if r.Method != http.MethodGet || r.Header.Get("X-aws-ec2-metadata-token") != strconv.Itoa(c.token) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	c.document(w, r)
}

func poll(t *testing.T, source Source) *Notice {
	t.Helper()
	notice, err := source.Poll(t.Context())
	require.NoError(t, err)
	return notice
}

func TestAWS(t *testing.T) {
	c := newCloud(t, serveAWS)
	source := New("aws", c.URL+"/")
	assert.Nil(t, poll(t, source))
	assert.EqualValues(t, 2, c.requests.Load(), "a token and the action")
	assert.Nil(t, poll(t, source))
	assert.EqualValues(t, 3, c.requests.Load(), "the token is used again")

	c.set("/latest/meta-data/events/recommendations/rebalance", `{"noticeTime":"2020-10-27T08:22:00Z"}`)
	assert.Nil(t, poll(t, source), "a recommendation to rebalance is no notice")

	c.set("/latest/meta-data/spot/instance-action", `{"action": "stop", "time": "2017-09-18T08:22:00Z"}`)
	want := &Notice{Action: "stop", Deadline: time.Date(2017, 9, 18, 8, 22, 0, 0, time.UTC)}
	assert.Equal(t, want, poll(t, source))

	// The service was restarted and has other tokens.
	c.mu.Lock()
	c.token++
	c.mu.Unlock()
	assert.Equal(t, want, poll(t, source))

	for _, document := range []string{"", "terminate", `{"action":""}`, `{"action":"stop","time":"soon"}`} {
		c.set("/latest/meta-data/spot/instance-action", document)
		_, err := source.Poll(t.Context())
		assert.Error(t, err, document)
	}
	c.fail(http.StatusServiceUnavailable)
	_, err := source.Poll(t.Context())
	assert.ErrorContains(t, err, "503")
}

// serveGoogle requires the header Metadata-Flavor, and sends it too
// (https://cloud.google.com/compute/docs/metadata/querying-metadata).
func serveGoogle(c *cloud, w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Metadata-Flavor") != "Google" || r.Header.Get("X-Forwarded-For") != "" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.Header().Set("Metadata-Flavor", "Google")
	c.document(w, r)
}

func TestGoogle(t *testing.T) {
	const preempted, maintenance = "/computeMetadata/v1/instance/preempted", "/computeMetadata/v1/instance/maintenance-event"
	c := newCloud(t, serveGoogle)
	c.set(preempted, "FALSE")
	c.set(maintenance, "NONE")
	source := New("google", c.URL)
	assert.Nil(t, poll(t, source))
	c.set(maintenance, "MIGRATE_ON_HOST_MAINTENANCE")
	assert.Nil(t, poll(t, source), "a machine that is migrated goes on")
	c.set(maintenance, "TERMINATE_ON_HOST_MAINTENANCE")
	assert.Equal(t, &Notice{Action: "TERMINATE_ON_HOST_MAINTENANCE"}, poll(t, source))
	c.set(preempted, "TRUE\n")
	assert.Equal(t, &Notice{Action: "preempted"}, poll(t, source))
	c.fail(http.StatusInternalServerError)
	_, err := source.Poll(t.Context())
	assert.Error(t, err)

	other := newCloud(t, func(_ *cloud, w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "TRUE") })
	_, err = New("google", other.URL).Poll(t.Context())
	assert.ErrorContains(t, err, "not the metadata service")
}

// serveAzure requires the header Metadata
// (https://learn.microsoft.com/en-us/azure/virtual-machines/instance-metadata-service).
func serveAzure(c *cloud, w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Metadata") != "true" || r.Header.Get("X-Forwarded-For") != "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.document(w, r)
}

func TestAzure(t *testing.T) {
	c := newCloud(t, serveAzure)
	events := func(list string) { c.set(azureEventsPath, `{"DocumentIncarnation": 2, "Events": [`+list+`]}`) }
	c.set(azureNamePath, "vmss_3")
	events("")
	source := New("azure", c.URL)
	assert.Nil(t, poll(t, source))
	const preempt = `{"EventId": "1", "EventStatus": "Scheduled", "EventType": "Preempt", "ResourceType": "VirtualMachine",
		"Resources": [%q], "NotBefore": %q, "Description": "", "EventSource": "Platform", "DurationInSeconds": -1}`
	events(fmt.Sprintf(preempt, "vmss_4", "Mon, 19 Sep 2016 18:29:47 GMT"))
	assert.Nil(t, poll(t, source), "the event of another machine")
	events(`{"EventType": "Freeze", "Resources": ["vmss_3"], "NotBefore": ""}`)
	assert.Nil(t, poll(t, source), "the machine goes on")
	events(`{"EventType": "Reboot", "Resources": ["vmss_3"]}, ` + fmt.Sprintf(preempt, "vmss_3", "Mon, 19 Sep 2016 18:29:47 GMT"))
	assert.Equal(t, &Notice{Action: "Preempt", Deadline: time.Date(2016, 9, 19, 18, 29, 47, 0, time.UTC)}, poll(t, source))
	events(fmt.Sprintf(preempt, "vmss_3", ""))
	assert.Equal(t, &Notice{Action: "Preempt"}, poll(t, source), "the event has started")
	c.set(azureEventsPath, "")
	_, err := source.Poll(t.Context())
	assert.Error(t, err)
}

func TestOtherProvidersAnnounceNothing(t *testing.T) {
	for _, provider := range []string{"", "docker", "AWS"} {
		assert.Nil(t, New(provider, ""), provider)
	}
	var changes atomic.Int64
	poller := NewPoller(nil, time.Millisecond, func() { changes.Add(1) })
	poller.Run(t.Context())
	assert.Nil(t, poller.Notice())
}

func TestNoticeStays(t *testing.T) {
	c := newCloud(t, serveAWS)
	c.set(awsActionPath, `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`)
	var changes atomic.Int64
	poller := NewPoller(New("aws", c.URL), time.Millisecond, func() { changes.Add(1) })
	stop := runtest.Start(t, poller.Run)
	// polls waits until some more polls have been made.
	polls := func() {
		t.Helper()
		before := c.requests.Load()
		runtest.Eventually(t, "the service is polled", func() bool { return c.requests.Load() > before+3 })
	}
	runtest.Eventually(t, "there is a notice", func() bool { return changes.Load() == 1 })
	polls()
	want := poller.Notice()
	require.NotNil(t, want)
	assert.Equal(t, "terminate", want.Action)
	c.fail(http.StatusInternalServerError)
	polls()
	c.fail(http.StatusNotFound)
	polls()
	c.fail(0)
	c.set(awsActionPath, "{}")
	polls()
	assert.Equal(t, want, poller.Notice())
	assert.EqualValues(t, 1, changes.Load(), "reports that are sent for the notice")

	c.set(awsActionPath, `{"action": "stop", "time": "2017-09-18T08:22:00Z"}`)
	runtest.Eventually(t, "there is another notice", func() bool { return changes.Load() == 2 })
	stop()
	assert.Equal(t, "stop", poller.Notice().Action)
}
