// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"bytes"
	"io"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// TestTheLinkerCanDropCalls: the types that are converted to interfaces refer to no client,
// of which the linker would keep all methods.
func TestTheLinkerCanDropCalls(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var visit func(typ reflect.Type, path string)
	visit = func(typ reflect.Type, path string) {
		if seen[typ] {
			return
		}
		seen[typ] = true
		if typ == reflect.TypeFor[ec2.Client]() || typ == reflect.TypeFor[elb.Client]() {
			t.Errorf("%s is a client", path)
			return
		}
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan, reflect.Map:
			visit(typ.Elem(), path)
		case reflect.Struct:
			for field := range typ.Fields() {
				visit(field.Type, path+"."+field.Name)
			}
		case reflect.Func:
			for in := range typ.Ins() {
				visit(in, path+"()")
			}
			for out := range typ.Outs() {
				visit(out, path+"()")
			}
		}
	}
	visit(reflect.TypeFor[API](), "API")
	visit(reflect.TypeFor[Provider](), "Provider")
	visit(reflect.TypeFor[leaderNetwork](), "leaderNetwork")
	for _, input := range []reflect.Type{reflect.TypeFor[ec2.RunInstancesInput](), reflect.TypeFor[elb.RegisterTargetsInput]()} {
		assert.True(t, seen[input], "the walk has seen the call with %s", input)
	}
}

// sdkBody is a body as the SDK makes them: after Close, WriteTo fails, and Read does not.
type sdkBody struct {
	*bytes.Reader
	closed bool
}

func (b *sdkBody) Read(p []byte) (int, error) {
	if b.closed {
		return 0, io.EOF
	}
	return b.Reader.Read(p)
}

func (b *sdkBody) WriteTo(w io.Writer) (int64, error) {
	if b.closed {
		return 0, io.EOF
	}
	return b.Reader.WriteTo(w)
}

func (b *sdkBody) Close() error {
	b.closed = true
	return nil
}

// TestABodyThatIsClosedEarly does not fail.
func TestABodyThatIsClosedEarly(t *testing.T) {
	body := &sdkBody{Reader: bytes.NewReader([]byte("Action=RunInstances"))}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost", body)
	require.NoError(t, err)
	sent := plainBody(func(r *http.Request) (*http.Response, error) {
		data, err := io.ReadAll(io.LimitReader(r.Body, 19))
		require.NoError(t, err)
		assert.Equal(t, "Action=RunInstances", string(data))
		body.Close()
		// Package http searches the end of the body with such a read.
		_, err = io.Copy(io.Discard, r.Body)
		return nil, err
	})
	response, err := sent(request)
	assert.NoError(t, err)
	if response != nil {
		response.Body.Close()
	}
}

// TestStates of instances that run or have run.
func TestStates(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		r := request(t)
		m := w.launch(r)
		expect := func(state instance.State, reason string) {
			t.Helper()
			time.Sleep(time.Minute)
			for _, got := range []cloud.VM{w.list()[r.ID], w.find(r.ID), w.findKnown(m)} {
				assert.Equal(t, state, got.State)
				assert.Equal(t, reason, got.Reason)
				assert.Equal(t, m.ProviderID, got.ProviderID)
			}
		}
		expect(instance.Running, "")
		w.Impair(r.ID, "instance-status.status")
		expect(instance.Impaired, "the instance status check fails")
		w.Impair(r.ID, "system-status.status")
		expect(instance.Impaired, "the system status check fails")
		w.Impair(r.ID, "")
		expect(instance.Running, "")
		w.Stop(r.ID)
		expect(instance.Stopped, "the instance is stopped: Client.UserInitiatedShutdown: User initiated shutdown")
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
		assert.Equal(t, instance.Terminating, w.list()[r.ID].State)
		expect(instance.Stopped, "the service has terminated the instance: Client.UserInitiatedShutdown: User initiated shutdown")
		assert.True(t, w.list()[r.ID].Ended)
		time.Sleep(2 * time.Hour)
		assert.Empty(t, w.list(), "EC2 has forgotten it")
	})
}

// TestPages: a list of several pages is complete, or an error.
func TestPages(t *testing.T) {
	s := newRegion()
	s.PageSize = 7
	inBubble(t, s, func(t *testing.T, w *world) {
		for range 30 {
			w.launch(request(t))
		}
		time.Sleep(time.Minute)
		w.Calls()
		assert.Len(t, w.list(), 30)
		assert.Equal(t, 5, w.Calls()["DescribeInstances"])
		for page := range 5 {
			w.SetFaults(&ec2test.Fault{Call: "DescribeInstances", Skip: page, Before: true, Status: 500, Code: "InternalError"})
			list, err := w.api.List(t.Context())
			require.Error(t, err, "page %d", page)
			assert.Empty(t, list)
		}
	})
}

// TestAnotherIDInTheTagsOfAnInstance: an instance that is found by its provider id stays the
// instance that was launched.
func TestAnotherIDInTheTagsOfAnInstance(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		m := w.launch(request(t))
		time.Sleep(time.Minute)
		w.SetTag(m.ID, tagInstanceID, request(t).ID)
		found := w.findKnown(m)
		assert.Equal(t, m.ID, found.ID)
		assert.Equal(t, m.Group, found.Group)
		assert.Equal(t, m.ProviderID, found.ProviderID)
	})
}

// TestFindIsCertain: only a response without an error shows that an instance does not exist.
func TestFindIsCertain(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		r := request(t)
		m := w.launch(r)
		time.Sleep(time.Minute)
		w.list()
		for name, fault := range map[string]*ec2test.Fault{
			"lost connection": {},
			"HTTP 500":        {Status: 500, Code: "InternalError"},
			"HTTP 502":        {Status: 502},
			"HTTP 503":        {Status: 503, Code: "RequestLimitExceeded"},
			"no access":       {Status: 403, Code: "UnauthorizedOperation"},
			"expired":         {Status: 400, Code: "ExpiredToken"},
			"not found":       {Status: 400, Code: "InvalidInstanceID.NotFound", Message: "The instance ID does not exist"},
		} {
			fault.Before, fault.Call = true, "DescribeInstances"
			w.SetFaults(fault)
			_, found, err := w.api.Find(t.Context(), r.ID)
			require.Error(t, err, name)
			assert.False(t, found, name)
			_, found, err = w.api.FindKnown(t.Context(), m)
			require.Error(t, err, name)
			assert.False(t, found, name)
		}
		// Without an instance, the response says nothing of it.
		w.SetFaults(&ec2test.Fault{Call: "DescribeInstances", Before: true, Status: 200})
		_, _, err := w.api.FindKnown(t.Context(), m)
		require.Error(t, err)
		w.SetFaults()
		w.find(r.ID)
		w.findKnown(m)
	})
}
