// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clientauth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

var tenantKey = storage.TenantKey("default")

// wantOwner expects a stored owner, or that there is no owner if want is empty.
func (w *world) wantOwner(tenant, want string) {
	w.t.Helper()
	owner, err := ReadOwner(w.t.Context(), w.store, tenant)
	require.NoError(w.t, err)
	if want == "" {
		assert.Nil(w.t, owner)
		return
	}
	require.NotNil(w.t, owner)
	assert.Equal(w.t, want, owner.KubernetesCluster)
}

func wantRefused(t *testing.T, err error, caller, owner string) {
	t.Helper()
	wantCode(t, err, codes.PermissionDenied, "nstance-admin tenant adopt --tenant default --kubernetes-cluster "+caller)
	details := status.Convert(err).Details()
	require.Len(t, details, 1)
	info, ok := details[0].(*errdetails.ErrorInfo)
	require.True(t, ok)
	assert.Equal(t, identifier.OtherClusterReason, info.GetReason())
	assert.Equal(t, nstancev1.ErrorDomain, info.GetDomain())
	assert.Equal(t, map[string]string{"owner": owner, "caller": caller}, info.GetMetadata())
}

func TestTheFirstClusterOwnsATenant(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.connect(w.operator("default"))
		assert.NoError(t, c.call())
		w.wantOwner("default", "")
		pass(time.Minute)
		assert.Empty(t, w.takeCalls(tenantKey), "calls that name no cluster")

		assert.NoError(t, c.call("cluster-1"))
		w.wantOwner("default", "cluster-1")
		owner, err := ReadOwner(t.Context(), w.store, "default")
		require.NoError(t, err)
		assert.True(t, owner.RecordedAt.Equal(time.Now()))
		assert.Len(t, w.takeCalls(tenantKey), 2, "a read and a write")
		assert.NoError(t, c.call("cluster-1"))
		assert.Empty(t, w.takeCalls(tenantKey))

		wantRefused(t, c.call("cluster-2"), "cluster-2", "cluster-1")
		wantRefused(t, w.Stream(nil, &stream{ctx: c.context("cluster-2")}, nil, nil), "cluster-2", "cluster-1")
		assert.NoError(t, c.call(), "a call that names no cluster")
		w.wantOwner("default", "cluster-1")
		assert.NoError(t, w.connect(w.operator("other")).call("cluster-2"), "another tenant")
		w.wantOwner("other", "cluster-2")
	})
}

func TestACallNamesAtMostOneCluster(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.connect(w.operator("default"))
		for name, clusters := range map[string][]string{"empty": {""}, "too long": {strings.Repeat("x", 129)}, "two": {"cluster-1", "cluster-1"}} {
			wantCode(t, c.call(clusters...), codes.InvalidArgument, "must be one UID of at most 128 characters")
			assert.Empty(t, w.calls, name)
		}
		assert.NoError(t, c.call(strings.Repeat("x", 128)))
	})
}

// A certificate that is rejected makes no cluster the owner.
func TestARejectedCallRecordsNoOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.operator("default")
		w.put(operatorKey, []byte(`{"cert_serial": "1"}`))
		wantCode(t, w.connect(own).call("cluster-1"), codes.Unauthenticated, "was replaced")
		w.wantOwner("default", "")
	})
}

func TestAnotherClusterAdoptsATenant(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.connect(w.operator("default"))
		closed, anonymous := c.open("cluster-1"), c.open()
		wantRefused(t, c.call("cluster-2"), "cluster-2", "cluster-1")
		require.NoError(t, Adopt(t.Context(), w.store, "default", "cluster-2"))
		w.wantOwner("default", "cluster-2")
		assert.NoError(t, c.call("cluster-2"), "the new owner, at once")
		wantOpen(t, closed)
		pass(interval)
		wantStreamClosed(t, closed, codes.PermissionDenied, "cluster-2")
		wantRefused(t, c.call("cluster-1"), "cluster-1", "cluster-2")

		closed = c.open("cluster-2")
		require.NoError(t, Release(t.Context(), w.store, "default"))
		w.wantOwner("default", "")
		pass(time.Minute)
		wantOpen(t, closed)
		assert.NoError(t, c.call("cluster-3"), "the next caller")
		w.wantOwner("default", "cluster-3")
		pass(interval)
		wantStreamClosed(t, closed, codes.PermissionDenied, "cluster-3")
		wantOpen(t, anonymous)
		wantOpen(t, c.closed)
	})
}

func TestAnAdoptionClosesStreamsOfTheFormerOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.connect(w.operator("default"))
		closed := c.open("cluster-1")
		require.NoError(t, Adopt(t.Context(), w.store, "default", "cluster-2"))
		pass(interval - 1)
		wantOpen(t, closed)
		pass(1)
		wantStreamClosed(t, closed, codes.PermissionDenied, "cluster-2")
		wantRefused(t, c.call("cluster-1"), "cluster-1", "cluster-2")
	})
}

// A refused call looks for a new owner, whose call is served at once.
func TestAnOwnerIsReadAgainBeforeACallIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.connect(w.operator("default"))
		assert.NoError(t, c.call("cluster-1"))
		require.NoError(t, Release(t.Context(), w.store, "default"))
		assert.NoError(t, c.call("cluster-2"))
		w.wantOwner("default", "cluster-2")
		wantRefused(t, c.call("cluster-1"), "cluster-1", "cluster-2")
	})
}

// If the storage is down, the last successful read applies.
func TestAStorageThatIsDownChangesNoOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		unknown, known := w.connect(w.operator("unknown")), w.connect(w.operator("default"))
		closed := known.open("cluster-1")
		w.setDown(true)
		assert.NoError(t, unknown.call("cluster-1"), "nothing is known of the tenant")
		assert.NoError(t, unknown.call("cluster-2"), "nothing is known of the tenant")
		for range 2 {
			pass(time.Hour)
			assert.NoError(t, known.call("cluster-1"))
			wantRefused(t, known.call("cluster-2"), "cluster-2", "cluster-1")
		}
		wantOpen(t, closed)
		w.setDown(false)
		w.wantOwner("unknown", "")
		pass(interval)
		assert.NoError(t, unknown.call("cluster-2"))
		w.wantOwner("unknown", "cluster-2")
	})
}

func TestAnOwnerThatCannotBeRecordedIsServed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var writes []time.Time
		rejected := errors.New("rejected")
		w.before = func(_ context.Context, call storagetest.Call) error {
			if call.IsWrite() {
				writes = append(writes, time.Now())
				return rejected
			}
			return nil
		}
		c := w.connect(w.operator("default"))
		begin := time.Now()
		for range 3 {
			assert.NoError(t, c.call("cluster-1"))
		}
		assert.Equal(t, []time.Time{begin, begin.Add(minInterval), begin.Add(2 * minInterval)}, writes, "attempts")
		w.wantOwner("default", "")
		rejected = nil
		assert.NoError(t, c.call("cluster-1"))
		w.wantOwner("default", "cluster-1")
	})
}

// Another server records another cluster while this server has read that the tenant has no
// owner.
func TestServersAgreeOnTheOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.before = func(ctx context.Context, call storagetest.Call) error {
			if call.IsWrite() {
				return Adopt(ctx, w.store, "default", "cluster-2")
			}
			return nil
		}
		c := w.connect(w.operator("default"))
		wantRefused(t, c.call("cluster-1"), "cluster-1", "cluster-2")
		assert.NoError(t, c.call("cluster-2"))
		w.wantOwner("default", "cluster-2")
	})
}

func TestClustersThatCallAtTheSameTimeAgreeOnTheOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.connect(w.operator("default"))
		clusters := []string{"cluster-1", "cluster-2", "cluster-3"}
		errs := make([]error, len(clusters))
		var calls sync.WaitGroup
		for i, cluster := range clusters {
			calls.Go(func() { errs[i] = c.call(cluster) })
		}
		calls.Wait()
		owner, err := ReadOwner(t.Context(), w.store, "default")
		require.NoError(t, err)
		for i, cluster := range clusters {
			if cluster == owner.KubernetesCluster {
				assert.NoError(t, errs[i])
			} else {
				wantRefused(t, errs[i], cluster, owner.KubernetesCluster)
			}
		}
	})
}

func TestAdoptReplacesAnyOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, invalid := range []string{"", strings.Repeat("x", 129)} {
			assert.ErrorContains(t, Adopt(t.Context(), w.store, "default", invalid), `adopt tenant "default": the UID of the Kubernetes cluster must have 1 to 128 characters`)
		}
		w.wantOwner("default", "")
		// Another writer is faster, twice.
		changes := 0
		w.before = func(ctx context.Context, call storagetest.Call) error {
			if changes++; call.IsWrite() && changes < 5 {
				return Adopt(ctx, w.store, "default", fmt.Sprint("cluster-", changes))
			}
			return nil
		}
		require.NoError(t, Adopt(t.Context(), w.intercepted, "default", strings.Repeat("x", 128)))
		w.wantOwner("default", strings.Repeat("x", 128))
		assert.Len(t, w.takeCalls(tenantKey), 6, "reads and writes of three attempts")
		require.NoError(t, Release(t.Context(), w.intercepted, "default"))
		require.NoError(t, Release(t.Context(), w.intercepted, "default"), "a tenant without an owner")
		w.wantOwner("default", "")
	})
}

func TestErrorsNameTheTenant(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put(tenantKey, []byte(`{"format_version": 2}`))
		_, err := ReadOwner(t.Context(), w.store, "default")
		var newer *storage.NewerFormatError
		require.ErrorAs(t, err, &newer)
		w.setDown(true)
		_, err = ReadOwner(t.Context(), w.intercepted, "default")
		for text, err := range map[string]error{
			`read the Kubernetes cluster of tenant "default"`: err,
			`adopt tenant "default"`:                          Adopt(t.Context(), w.intercepted, "default", "cluster-1"),
			`release tenant "default"`:                        Release(t.Context(), w.intercepted, "default"),
		} {
			assert.ErrorContains(t, err, text)
			assert.ErrorIs(t, err, errDown)
		}
	})
}
