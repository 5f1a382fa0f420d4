// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"crypto/x509"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/audit/audittest"
)

// nameRequest returns the request and the log of a call with request ids.
func nameRequest(t testing.TB, ids ...string) (audit.Request, *audittest.Log) {
	t.Helper()
	log := audittest.NewLog()
	ctx := metadata.NewIncomingContext(as(log.Context(context.Background()), "default"), metadata.MD{audit.RequestIDKey: ids})
	ctx = context.WithValue(ctx, certificateKey{}, &x509.Certificate{SerialNumber: big.NewInt(0xabc)})
	var request audit.Request
	_, err := NameRequest(ctx, nil, nil, func(ctx context.Context, _ any) (any, error) {
		request = audit.RequestFrom(ctx)
		klog.FromContext(ctx).V(2).Info("Received")
		return nil, nil
	})
	require.NoError(t, err)
	return request, log
}

func TestNameRequest(t *testing.T) {
	request, log := nameRequest(t, "id-1")
	assert.Equal(t, audit.Request{ID: "id-1", Writer: "test, certificate abc"}, request)
	assert.Contains(t, log.Text(), `requestID="id-1"`)
	for name, ids := range map[string][]string{
		"none": nil, "an empty one": {""}, "two": {"id-1", "id-2"}, "a long one": {strings.Repeat("x", 65)},
		"a line": {"x\nI1123 00:00:00.000000 1 audit.go:1] \"Audit: delete group\""}, "a value": {`x" group="other`},
	} {
		request, log := nameRequest(t, ids...)
		assert.True(t, audit.ValidRequestID(request.ID), name)
		assert.NotContains(t, ids, request.ID, name)
		assert.Contains(t, log.Text(), `requestID="`+request.ID+`"`, name)
		for _, id := range ids {
			if id != "" {
				assert.NotContains(t, log.Text(), id, name)
			}
		}
	}
}

// FuzzRequestID: a request id of a client is logged unchanged, or not at all.
func FuzzRequestID(f *testing.F) {
	for _, seed := range []string{"", "id", "a\nb", "a=b", strings.Repeat("x", 100), "\x1b[0m"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		request, log := nameRequest(t, id)
		if !audit.ValidRequestID(request.ID) || audit.ValidRequestID(id) != (request.ID == id) {
			t.Errorf("%q is named %q", id, request.ID)
		}
		if lines := strings.Count(log.Text(), "\n"); lines != 1 {
			t.Errorf("%q is logged in %d lines", id, lines)
		}
	})
}
