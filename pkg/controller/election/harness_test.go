// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package election

import (
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/controller/apitest"
)

// leases is an API server for one Lease. Unlike a fake clientset it respects the deadlines of
// requests.
type leases struct {
	mu    sync.Mutex
	lease *coordinationv1.Lease
	// renewed is when the Lease was last written.
	renewed time.Time
	// delay is how long each response takes.
	delay time.Duration
	// down responds in place of the API server unless it is nil.
	down func(*http.Request) error
}

// refuses is an API server that is down: connections are refused.
func refuses(*http.Request) error { return errors.New("connection refused") }

// hangs is an API server that never responds.
func hangs(request *http.Request) error {
	<-request.Context().Done()
	return request.Context().Err()
}

// open returns the Lease for one process.
func (l *leases) open(t *testing.T) *Lease {
	t.Helper()
	config := &rest.Config{Host: "http://leases.test", Transport: l, QPS: -1}
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := coordinationclient.NewForConfig(config)
	require.NoError(t, err)
	opened, err := New(client, "nstance-system", "nstance-operator-leader-election", timing())
	require.NoError(t, err)
	return opened
}

// holder returns the holder of the Lease, "" if it is free.
func (l *leases) holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease == nil {
		return ""
	}
	return ptr.Deref(l.lease.Spec.HolderIdentity, "")
}

// left returns the Lease, and when it was last written.
func (l *leases) left() (*coordinationv1.Lease, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lease.DeepCopy(), l.renewed
}

// put replaces the Lease and keeps its time of renewal.
func (l *leases) put(lease *coordinationv1.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease.ResourceVersion = l.lease.ResourceVersion
	l.lease = lease
}

// replace stores a Lease as another client does.
func (l *leases) replace(lease *coordinationv1.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = lease
}

func (l *leases) set(down func(*http.Request) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

// RoundTrip reads, creates or updates the Lease.
func (l *leases) RoundTrip(request *http.Request) (*http.Response, error) {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down != nil {
		return nil, down(request)
	}
	l.mu.Lock()
	delay := l.delay
	defer l.mu.Unlock()
	answer, err := l.serve(request)
	<-time.After(delay)
	if err != nil {
		return nil, err
	}
	return apitest.Respond(request, answer)
}

func (l *leases) serve(request *http.Request) (any, error) {
	resource := coordinationv1.Resource("leases")
	if request.Method == http.MethodGet {
		if l.lease == nil {
			return apierrors.NewNotFound(resource, path.Base(request.URL.Path)), nil
		}
		return l.lease, nil
	}
	lease := &coordinationv1.Lease{}
	if err := json.NewDecoder(request.Body).Decode(lease); err != nil {
		return nil, err
	}
	version := 0
	if l.lease != nil {
		if lease.ResourceVersion != l.lease.ResourceVersion {
			return apierrors.NewConflict(resource, lease.Name, errors.New("there is a later version")), nil
		}
		version, _ = strconv.Atoi(l.lease.ResourceVersion)
	}
	lease.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	lease.ResourceVersion = strconv.Itoa(version + 1)
	l.lease, l.renewed = lease, time.Now()
	return lease, nil
}
