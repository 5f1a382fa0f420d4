// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/qemu/testguest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestVirtualMachine follows a virtual machine from its boot to its end: its agent registers and
// reports, announces the termination in a notice of the metadata service, and the machine is
// replaced, drained and shut down.
func TestVirtualMachine(t *testing.T) {
	host, notices := newQEMUHost(t), newMetadata(t)
	kernel, initrd := testguest.Build(t, map[string]string{agentProgram: programs[agentProgram]})
	k, records := new(killer), new(recorded)
	s := newServer(t, options{
		cluster: "e2e", provider: "qemu", instanceType: "small", subnet: "local",
		// The timeout is so long that the machine shuts down and is not turned off.
		providerOptions: host.options(object{"kernel": kernel, "initrd": initrd, "append": testguest.Append, "shutdown_grace": "1h"}, "256Mi"),
		userdata:        userdata + "NSTANCE_PROVIDER=aws\nNSTANCE_METADATA_URL=" + notices.url + "/{{.Instance.ID}}\n",
		bindHost:        loopback, advertiseHost: guestHost, drainTimeout: "5m",
	}, &tap{killer: k, name: records.step, done: records.done})
	o := newOperator(s)
	s.start()
	t.Cleanup(func() {
		if t.Failed() {
			for id := range host.processes() {
				t.Logf("the console of %s:\n%s", id, tail(filepath.Join(host.folder(id), "serial.log"), 8<<10))
			}
		}
	})

	began := time.Now()
	first := o.scale(1)[0]
	t.Logf("the agent has reported after %s", time.Since(began).Round(time.Second))
	require.NoError(t, host.expect([]string{first}))
	o.untilReports(first)

	events := o.watchInstances()
	notices.give(first, "terminate", time.Now().Add(2*time.Minute))
	drain := events.until(first, "pending_deletion")
	assert.Equal(t, instance.ReasonSpot, drain.Reason)
	second := o.untilReplaced(first)
	assert.Contains(t, host.processes(), first)
	o.acknowledge(first)
	events.until(first, "deleting")
	events.until(first, "deleted")
	assert.NotContains(t, host.processes(), first)
	_, err := os.Stat(host.folder(first))
	assert.ErrorIs(t, err, fs.ErrNotExist)

	assert.Equal(t, []string{second}, o.scale(1))
	require.NoError(t, host.expect([]string{second}))
	o.size.Store(0)
	events.until(second, "pending_deletion")
	o.acknowledge(second)
	events.until(second, "deleted")
	require.NoError(t, host.expect(nil))
	assert.Empty(t, s.records(), "records")
	assert.Equal(t, map[string]int{first: 1, second: 1}, host.started(t), "starts of QEMU")
}

// acknowledge reports that an instance is drained.
func (o *operator) acknowledge(id string) {
	o.t.Helper()
	_, err := o.AcknowledgeDrained(o.t.Context(), &nstancev1.DrainAckRequest{InstanceId: id})
	require.NoError(o.t, err)
}

// untilReports waits until two reports of an agent have arrived.
func (o *operator) untilReports(id string) {
	o.t.Helper()
	var times []time.Time
	eventually(o.t, "two reports have arrived", func(ctx context.Context) error {
		status, err := o.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
		if err != nil {
			return err
		}
		if seen := status.GetLastSeen().AsTime(); status.LastSeen != nil && !slices.Contains(times, seen) {
			times = append(times, seen)
		}
		if len(times) < 2 {
			return fmt.Errorf("reports have arrived at %v", times)
		}
		return nil
	})
	assert.True(o.t, times[1].After(times[0]), "reports in order")
}

// untilReplaced waits until the group has another instance, and returns its id.
func (o *operator) untilReplaced(id string) (replacement string) {
	o.t.Helper()
	eventually(o.t, "the replacement is requested", func(ctx context.Context) error {
		group, err := o.group(ctx)
		if err != nil {
			return err
		}
		for _, instance := range group.Instances.GetInstances() {
			if instance.Id != id {
				replacement = instance.Id
				return nil
			}
		}
		return errors.New("there is no other instance")
	})
	return replacement
}

// instanceEvents are the events of the instances of the tenant.
type instanceEvents struct {
	t      *testing.T
	stream nstancev1.OperatorService_WatchInstancesClient
}

func (o *operator) watchInstances() *instanceEvents {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*waitTimeout)
	o.t.Cleanup(cancel)
	stream, err := o.WatchInstances(ctx, &emptypb.Empty{})
	require.NoError(o.t, err)
	return &instanceEvents{o.t, stream}
}

// until waits for an event of an instance.
func (e *instanceEvents) until(id, status string) *nstancev1.InstanceEvent {
	e.t.Helper()
	for {
		event, err := e.stream.Recv()
		require.NoError(e.t, err, "waiting for the event %s of instance %s", status, id)
		if event.InstanceId == id && event.Status == status {
			return event
		}
	}
}

// metadata is a metadata service like AWS
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html),
// with a path for each instance.
type metadata struct {
	// url is the URL of the service for guests.
	url string

	mu      sync.Mutex
	notices map[string]string
}

func newMetadata(t *testing.T) *metadata {
	t.Helper()
	m := &metadata{notices: map[string]string{}}
	service := httptest.NewServer(m)
	t.Cleanup(service.Close)
	address, err := url.Parse(service.URL)
	require.NoError(t, err)
	m.url = "http://" + guestHost + ":" + address.Port()
	return m
}

// give gives an instance a notice.
func (m *metadata) give(id, action string, at time.Time) {
	notice, _ := json.Marshal(map[string]string{"action": action, "time": at.UTC().Format(time.RFC3339)}) // has strings only
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notices[id] = string(notice)
}

// ServeHTTP serves tokens and notices.
func (m *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const token = "token"
	id, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	m.mu.Lock()
	notice, found := m.notices[id]
	m.mu.Unlock()
	switch {
	case r.Method == http.MethodPut && path == "latest/api/token":
		_, _ = w.Write([]byte(token))
	case r.Header.Get("X-aws-ec2-metadata-token") != token:
		w.WriteHeader(http.StatusUnauthorized)
	case path == "latest/meta-data/spot/instance-action" && found:
		_, _ = w.Write([]byte(notice))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}
