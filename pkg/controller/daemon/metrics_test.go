// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package daemon

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMetrics(t *testing.T) {
	code, body := ask(t, NewHealth(), "/metrics")
	for _, name := range []string{"go_goroutines", "nstance_operator_build_info{"} {
		if code != http.StatusOK || !strings.Contains(body, name) {
			t.Errorf("/metrics returns %d with %d bytes, without %s", code, len(body), name)
		}
	}
}

// reviewer is an API server that knows the token "prometheus", whose user may get
// /metrics, and the token "visitor", whose user may not.
func reviewer(t *testing.T) *kubefake.Clientset {
	client := kubefake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		switch token := review.Spec.Token; token {
		case "prometheus", "visitor", "unreviewed":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
				Username: token, UID: "1", Groups: []string{"monitoring"}, Extra: map[string]authenticationv1.ExtraValue{"pod": {"p"}},
			}}
		case "broken":
			return true, nil, errors.New("timeout")
		}
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		assert.Equal(t, authorizationv1.SubjectAccessReviewSpec{
			User: review.Spec.User, UID: "1", Groups: []string{"monitoring"}, Extra: map[string]authorizationv1.ExtraValue{"pod": {"p"}},
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
		}, review.Spec)
		if review.Spec.User == "unreviewed" {
			return true, nil, errors.New("timeout")
		}
		review.Status.Allowed = review.Spec.User == "prometheus"
		return true, review, nil
	})
	return client
}

func TestMetricsAccess(t *testing.T) {
	client := reviewer(t)
	handler := NewAccess(client.AuthenticationV1(), client.AuthorizationV1()).Protect(NewMetricsHandler("nstance_operator"))
	for header, want := range map[string]int{
		"":                     http.StatusUnauthorized,
		"Bearer":               http.StatusUnauthorized,
		"Bearer ":              http.StatusUnauthorized,
		"Basic cHJvbWV0aGV1cw": http.StatusUnauthorized,
		"Bearer unknown":       http.StatusUnauthorized,
		"Bearer visitor":       http.StatusForbidden,
		"Bearer prometheus":    http.StatusOK,
		"bearer prometheus":    http.StatusOK,
		"Bearer broken":        http.StatusServiceUnavailable,
		"Bearer unreviewed":    http.StatusServiceUnavailable,
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		request.Header.Set("Authorization", header)
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		assert.Equal(t, want, response.Code, header)
		assert.Equal(t, want == http.StatusOK, strings.Contains(response.Body.String(), "go_goroutines"), header)
	}
}

// A client without access makes the API server review its tokens.
func TestMetricsReviewsAreLimited(t *testing.T) {
	client := reviewer(t)
	handler := NewAccess(client.AuthenticationV1(), client.AuthorizationV1()).Protect(NewMetricsHandler("nstance_operator"))
	refused := 0
	for range 100 * reviewsPerSecond {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		request.Header.Set("Authorization", "Bearer unknown")
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		if response.Code == http.StatusTooManyRequests {
			refused++
		}
	}
	assert.Greater(t, refused, 50*reviewsPerSecond)
	assert.Less(t, len(client.Actions()), 50*reviewsPerSecond)
}
