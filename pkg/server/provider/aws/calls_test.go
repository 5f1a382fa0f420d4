// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"bytes"
	"io"
	"net/http"
	"reflect"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTheLinkerCanDropCalls: the types that are converted to interfaces refer to no client,
// of which the linker would keep all methods.
func TestTheLinkerCanDropCalls(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var visit func(one reflect.Type, path string)
	visit = func(one reflect.Type, path string) {
		if seen[one] {
			return
		}
		seen[one] = true
		if one == reflect.TypeFor[ec2.Client]() || one == reflect.TypeFor[elb.Client]() {
			t.Errorf("%s is a client", path)
			return
		}
		switch one.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan, reflect.Map:
			visit(one.Elem(), path)
		case reflect.Struct:
			for field := range one.Fields() {
				visit(field.Type, path+"."+field.Name)
			}
		case reflect.Func:
			for in := range one.Ins() {
				visit(in, path+"()")
			}
			for out := range one.Outs() {
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
		// That is how package http looks for the end.
		_, err = io.Copy(io.Discard, r.Body)
		return nil, err
	})
	response, err := sent(request)
	assert.NoError(t, err)
	if response != nil {
		response.Body.Close()
	}
}
