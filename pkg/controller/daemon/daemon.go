// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package daemon serves the probes and the metrics of an operator, loads the configuration of its
// clients, and sets the default of its garbage collector.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	// These packages register the metrics of the queues, the clients and the election.
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection"
	_ "k8s.io/component-base/metrics/prometheus/restclient"
	_ "k8s.io/component-base/metrics/prometheus/workqueue"

	"nstance.dev/operator/pkg/base/httpserver"
)

// renewTolerance is the time after the renew deadline after which the liveness probe fails.
const renewTolerance = 20 * time.Second

// Health serves the liveness and the readiness probe.
type Health struct {
	// Synced is set once the Kubernetes caches are complete, on a standby too.
	Synced atomic.Bool
	// Watchdog checks that the lease of the leader is renewed.
	Watchdog *leaderelection.HealthzAdaptor
}

// NewHealth returns a Health that is not ready until Synced is set.
func NewHealth() *Health {
	return &Health{Watchdog: leaderelection.NewLeaderHealthzAdaptor(renewTolerance)}
}

// handler serves /healthz and /readyz, and passes other requests to other.
func (h *Health) handler(other http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		respond(w, h.Watchdog.Check(r))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !h.Synced.Load() {
			respond(w, errors.New("caches are not complete yet"))
			return
		}
		respond(w, nil)
	})
	mux.Handle("/", other)
	return mux
}

// Serve listens at address and returns. Until ctx is done, a goroutine serves the probes, and
// passes other requests to other.
func (h *Health) Serve(ctx context.Context, address string, other http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen on --http-address %s: %w", address, err)
	}
	go func() {
		if err := httpserver.Serve(ctx, listener, nil, h.handler(other)); err != nil {
			klog.FromContext(ctx).Error(err, "HTTP server stopped", "address", address)
		}
	}()
	return nil
}

func respond(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprint(w, "ok")
}

const (
	metricsPath = "/metrics"
	// reviewsPerSecond limits the requests to the API server that clients without access can
	// cause. Prometheus reads metrics once in many seconds.
	reviewsPerSecond = 10
)

// registered makes sure that PROGRAM_build_info and the metrics of the caller are registered
// once in a process.
var registered sync.Once

// NewMetricsHandler returns a handler that serves /metrics to everyone: the metrics of
// component-base, PROGRAM_build_info, and others.
func NewMetricsHandler(program string, others ...prometheus.Collector) http.Handler {
	registered.Do(func() {
		legacyregistry.Registerer().MustRegister(append(others, version.NewCollector(program))...)
	})
	mux := http.NewServeMux()
	mux.Handle("GET "+metricsPath, legacyregistry.Handler())
	return mux
}

// Access decides who may read the metrics: a client whose bearer token the API server
// authenticates, and who has the verb get for the path /metrics. Nothing is cached, so that
// revoked access ends at once.
type Access struct {
	tokens  authenticationclient.TokenReviewInterface
	access  authorizationclient.SubjectAccessReviewInterface
	limiter *rate.Limiter
}

// NewAccess returns an Access that sends its reviews with these clients.
func NewAccess(authentication authenticationclient.AuthenticationV1Interface, authorization authorizationclient.AuthorizationV1Interface) *Access {
	return &Access{
		tokens:  authentication.TokenReviews(),
		access:  authorization.SubjectAccessReviews(),
		limiter: rate.NewLimiter(reviewsPerSecond, reviewsPerSecond),
	}
}

// Protect returns a handler that passes the requests of clients with access to handler, and
// rejects all other requests.
func (m *Access) Protect(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, err := m.review(r.Context(), r.Header.Get("Authorization"))
		switch {
		case err != nil:
			klog.FromContext(r.Context()).Error(err, "Cannot decide whether a client may read the metrics")
			http.Error(w, "no decision of the API server", http.StatusServiceUnavailable)
		case status == http.StatusOK:
			handler.ServeHTTP(w, r)
		default:
			if status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			http.Error(w, http.StatusText(status), status)
		}
	})
}

// review returns the HTTP status for a client with this Authorization header.
func (m *Access) review(ctx context.Context, authorization string) (status int, err error) {
	scheme, token, _ := strings.Cut(authorization, " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return http.StatusUnauthorized, nil
	}
	if !m.limiter.Allow() {
		return http.StatusTooManyRequests, nil
	}
	authenticated, err := m.tokens.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("create a TokenReview: %w", err)
	}
	if !authenticated.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := authenticated.Status.User
	review := authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: metricsPath, Verb: "get"},
	}
	for name, values := range user.Extra {
		review.Extra[name] = authorizationv1.ExtraValue(values)
	}
	authorized, err := m.access.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: review}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return 0, fmt.Errorf("create a SubjectAccessReview for user %q: %w", user.Username, err)
	case !authorized.Status.Allowed:
		return http.StatusForbidden, nil
	default:
		return http.StatusOK, nil
	}
}

// gogcPercent is the default of GOGC (https://go.dev/doc/gc-guide). Most of an operator's heap
// is caches; 100 would let it grow to twice their size. Collecting more often costs little: 2
// % of the processor time while 1,000 pools are being created.
const gogcPercent = 25

// SetDefaultGOGC sets the percentage by which the heap may grow before it is collected, unless
// the environment sets GOGC.
func SetDefaultGOGC() {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(gogcPercent)
	}
}

// APIServer returns the configuration of clients of the API server, from a kubeconfig file, or if its
// path is empty from the account of the Pod.
//
// clientcmd.BuildConfigFromFlags would warn of an empty path at each start of a Pod, and report the
// missing account of a Pod as a mistake in a kubeconfig.
func APIServer(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig is not set, and the account of the Pod cannot be used: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return config, nil
}
