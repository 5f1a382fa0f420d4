// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/testcluster"
)

const (
	clientWorkers = 3
	// requestPeriod is the time between two requests of one worker.
	requestPeriod  = 30 * time.Millisecond
	requestTimeout = 5 * time.Second
)

// serviceClient sends requests to the Pods of a Service, as a load balancer outside of the cluster
// does: it watches the EndpointSlices, sends each request to a Pod that is ready and not
// terminating
// (https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#conditions), on a
// connection of its own, and does not retry.
type serviceClient struct {
	http http.Client
	stop func()

	mu        sync.Mutex
	addresses []string
	next      int
	started   bool
	// responses counts the responses of each Pod.
	responses map[string]int
	failures  []error
}

// newServiceClient starts a client of the Service web, which runs until stop is called.
func newServiceClient(t *testing.T, namespace string) *serviceClient {
	t.Helper()
	c := &serviceClient{
		http:      http.Client{Timeout: requestTimeout, Transport: &http.Transport{DisableKeepAlives: true}},
		responses: map[string]int{},
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	slices := informers.NewSharedInformerFactoryWithOptions(env.Kube, 0, informers.WithNamespace(namespace)).
		Discovery().V1().EndpointSlices().Informer()
	update := func() { c.setAddresses(slices.GetStore().List()) }
	require.NoError(t, testcluster.RunInformer(ctx, slices, cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { update() }, UpdateFunc: func(any, any) { update() }, DeleteFunc: func(any) { update() },
	}))
	var workers sync.WaitGroup
	for range clientWorkers {
		workers.Go(func() { c.work(ctx) })
	}
	c.stop = func() {
		cancel()
		workers.Wait()
	}
	t.Cleanup(c.stop)
	return c
}

// setAddresses stores the addresses of the Pods that may get requests.
func (c *serviceClient) setAddresses(endpointSlices []any) {
	var addresses []string
	for _, object := range endpointSlices {
		for _, endpoint := range object.(*discoveryv1.EndpointSlice).Endpoints {
			if ptr.Deref(endpoint.Conditions.Ready, false) && !ptr.Deref(endpoint.Conditions.Terminating, false) {
				addresses = append(addresses, net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(webPort)))
			}
		}
	}
	slices.Sort(addresses)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addresses = addresses
}

func (c *serviceClient) work(ctx context.Context) {
	tick := time.NewTicker(requestPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if address, ok := c.address(); ok {
			// A request that was begun is completed.
			pod, err := c.get(context.WithoutCancel(ctx), address)
			c.record(pod, err)
		}
	}
}

// address returns the Pod that gets the next request. Once there was a ready Pod, a request
// without a ready Pod is a failure.
func (c *serviceClient) address() (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.addresses) == 0 {
		if c.started {
			c.failures = append(c.failures, errors.New("no Pod is ready"))
		}
		return "", false
	}
	c.started = true
	c.next++
	return c.addresses[c.next%len(c.addresses)], true
}

// get returns the name of the Pod that has responded.
func (c *serviceClient) get(ctx context.Context, address string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return "", err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", request.URL, response.Status)
	}
	return strings.TrimSpace(string(body)), err
}

func (c *serviceClient) record(pod string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failures = append(c.failures, fmt.Errorf("%s: %w", time.Now().Format(time.StampMilli), err))
		return
	}
	c.responses[pod]++
}

// counts returns the numbers of responses, of Pods that have sent them, and of failures.
func (c *serviceClient) counts() (responses, pods, failures int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.responses {
		responses += n
	}
	return responses, len(c.responses), len(c.failures)
}

// untilServed waits for so many more responses.
func (c *serviceClient) untilServed(t *testing.T, more int) {
	t.Helper()
	before, _, _ := c.counts()
	testcluster.Eventually(t, 2*time.Minute, "requests are served", func(context.Context) error {
		if now, pods, failures := c.counts(); now < before+more {
			return fmt.Errorf("%d more responses, %d Pods, %d failures", now-before, pods, failures)
		}
		return nil
	})
}

// expectNoFailure stops the client, and fails the test for every request that failed.
func (c *serviceClient) expectNoFailure(t *testing.T) {
	t.Helper()
	c.stop()
	responses, pods, failures := c.counts()
	t.Logf("%d requests to %d Pods, %d failed", responses+failures, pods, failures)
	const shown = 10
	for i, err := range c.failures {
		if i == shown {
			t.Errorf("and %d more", failures-shown)
			return
		}
		t.Error(err)
	}
}
