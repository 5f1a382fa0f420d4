// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// review is the body that the API server sends.
func review(t testing.TB, request *admissionv1.AdmissionRequest) []byte {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request:  request,
	})
	require.NoError(t, err)
	return body
}

func post(body []byte) *http.Request {
	request := httptest.NewRequest(http.MethodPost, "/validate?timeout=5s", bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	return request
}

func readResponse(t testing.TB, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	answer := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(body, answer); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if answer.APIVersion != "admission.k8s.io/v1" || answer.Kind != "AdmissionReview" || answer.Response == nil || answer.Request != nil {
		t.Fatalf("answered %s", body)
	}
	return answer.Response
}

func TestReviewsAreAnswered(t *testing.T) {
	registry := prometheus.NewRegistry()
	handler := NewHandler(newValidator(t, present()), NewMetrics(registry))
	for name, test := range map[string]struct {
		request *admissionv1.AdmissionRequest
		allowed bool
		code    int32
		message string
	}{
		"allowed":   {request: create(t, newPool("new", "new", "a")), allowed: true},
		"other":     {request: &admissionv1.AdmissionRequest{UID: "uid", Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}}, allowed: true},
		"invalid":   {request: create(t, newPool("new", "workers", "a")), code: http.StatusUnprocessableEntity, message: "belongs to pool workers"},
		"forbidden": {request: remove(t, static(newPool("main", "main", "a"))), code: http.StatusForbidden, message: "is static"},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, post(review(t, test.request)))
			if recorder.Code != http.StatusOK || recorder.Header().Get("Content-Type") != "application/json" {
				t.Fatalf("answered %d %q: %s", recorder.Code, recorder.Header(), recorder.Body)
			}
			response := readResponse(t, recorder.Body.Bytes())
			if response.UID != "uid" || response.Allowed != test.allowed {
				t.Errorf("answered %+v", response)
			}
			switch {
			case test.allowed:
				if response.Result != nil {
					t.Errorf("answered with result %+v", response.Result)
				}
			case response.Result == nil || response.Result.Code != test.code || !strings.Contains(response.Result.Message, test.message):
				t.Errorf("answered with result %+v", response.Result)
			}
		})
	}
	assert.Equal(t, []string{
		`nstance_operator_webhook_decisions_total{allowed="false",resource="nstancemachinepools"} 2`,
		`nstance_operator_webhook_decisions_total{allowed="true",resource="nstancemachinepools"} 1`,
		`nstance_operator_webhook_decisions_total{allowed="true",resource="other"} 1`,
	}, metricstest.Series(t, registry))
}

func TestInvalidReviewsAreNotAnswered(t *testing.T) {
	good := string(review(t, create(t, newPool("new", "new", "a"))))
	for name, test := range map[string]struct {
		body   string
		change func(*http.Request)
		want   int
	}{
		"as it should be":        {body: good, want: http.StatusOK},
		"nothing":                {want: http.StatusBadRequest},
		"no JSON":                {body: "admit", want: http.StatusBadRequest},
		"half of it":             {body: good[:len(good)/2], want: http.StatusBadRequest},
		"null":                   {body: "null", want: http.StatusBadRequest},
		"another version":        {body: strings.Replace(good, "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1), want: http.StatusBadRequest},
		"another kind":           {body: strings.Replace(good, "AdmissionReview", "Pod", 1), want: http.StatusBadRequest},
		"no uid":                 {body: strings.Replace(good, `"uid":"uid"`, `"uid":""`, 1), want: http.StatusBadRequest},
		"no request":             {body: `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, want: http.StatusBadRequest},
		"an object of no pool":   {body: strings.Replace(good, `"shards":[`, `"shards":[{},`, 1), want: http.StatusBadRequest},
		"an object of 3 MiB":     {body: strings.Replace(good, `"uid":"uid"`, `"uid":"`+strings.Repeat("u", maxReviewBytes)+`"`, 1), want: http.StatusRequestEntityTooLarge},
		"an object of 2 MiB":     {body: strings.Replace(good, `"uid":"uid"`, `"uid":"`+strings.Repeat("u", 2<<20)+`"`, 1), want: http.StatusOK},
		"another method":         {body: good, change: func(r *http.Request) { r.Method = http.MethodGet }, want: http.StatusMethodNotAllowed},
		"another path":           {body: good, change: func(r *http.Request) { r.URL.Path = "/" }, want: http.StatusNotFound},
		"another type":           {body: good, change: func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, want: http.StatusUnsupportedMediaType},
		"no type":                {body: good, change: func(r *http.Request) { r.Header.Del("Content-Type") }, want: http.StatusUnsupportedMediaType},
		"a type with a charset":  {body: good, change: func(r *http.Request) { r.Header.Set("Content-Type", "application/json; charset=utf-8") }, want: http.StatusOK},
		"two reviews in one":     {body: good + good, want: http.StatusBadRequest},
		"a review of a response": {body: `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"uid","allowed":true}}`, want: http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			request := post([]byte(test.body))
			if test.change != nil {
				test.change(request)
			}
			recorder := httptest.NewRecorder()
			NewHandler(newValidator(t, present()), NewMetrics(prometheus.NewRegistry())).ServeHTTP(recorder, request)
			if recorder.Code != test.want {
				t.Errorf("answered %d: %.200s", recorder.Code, recorder.Body)
			}
		})
	}
}

// FuzzHandler sends arbitrary bodies. A review gets a decision for its uid, and
// every other body an error.
func FuzzHandler(f *testing.F) {
	handler := NewHandler(newValidator(f, present()), NewMetrics(prometheus.NewRegistry()))
	for _, request := range []*admissionv1.AdmissionRequest{
		create(f, newPool("new", "new", "a")),
		create(f, newPool("new", "workers", "z")),
		update(f, newPool("workers", "workers", "a"), newPool("workers", "workers", "z")),
		update(f, newPool("workers", "workers", "a"), controllertest.Deleting(newPool("workers", "workers", "z"))),
		remove(f, static(newPool("main", "main", "a"))),
		remove(f, newMachinePool("main", v1beta1.PoolKind, "main")),
	} {
		f.Add(review(f, request))
	}
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":null}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, post(body))
		if recorder.Code >= http.StatusBadRequest && recorder.Code < http.StatusInternalServerError {
			return
		}
		if recorder.Code != http.StatusOK {
			t.Fatalf("answered %d: %s", recorder.Code, recorder.Body)
		}
		response := readResponse(t, recorder.Body.Bytes())
		sent := &admissionv1.AdmissionReview{}
		if err := json.Unmarshal(body, sent); err != nil || sent.Request == nil {
			t.Fatalf("answered what is no review: %v", err)
		}
		if response.UID != sent.Request.UID {
			t.Errorf("answered uid %q, want %q", response.UID, sent.Request.UID)
		}
		if !response.Allowed && (response.Result == nil || response.Result.Message == "") {
			t.Error("rejected without a reason")
		}
	})
}
