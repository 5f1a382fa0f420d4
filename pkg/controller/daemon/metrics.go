// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package daemon

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	// Metrics of the queues, of the clients and of the election.
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection"
	_ "k8s.io/component-base/metrics/prometheus/restclient"
	_ "k8s.io/component-base/metrics/prometheus/workqueue"
)

const (
	metricsPath = "/metrics"
	// reviewsPerSecond limits the requests that the API server gets because of clients
	// without access. Prometheus reads metrics once in many seconds.
	reviewsPerSecond = 10
)

// registered is done when the metric PROGRAM_build_info and those of the caller are
// registered, once in a process.
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

// Access decides who may read the metrics: a client whose bearer token the API
// server authenticates, and which may get the path /metrics. Nothing is cached, so that
// an access that is taken away ends at once.
type Access struct {
	tokens  authenticationclient.TokenReviewInterface
	access  authorizationclient.SubjectAccessReviewInterface
	limiter *rate.Limiter
}

// NewAccess returns an Access that the API server decides.
func NewAccess(authentication authenticationclient.AuthenticationV1Interface, authorization authorizationclient.AuthorizationV1Interface) *Access {
	return &Access{
		tokens:  authentication.TokenReviews(),
		access:  authorization.SubjectAccessReviews(),
		limiter: rate.NewLimiter(reviewsPerSecond, reviewsPerSecond),
	}
}

// Protect returns a handler that serves only requests with access.
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
