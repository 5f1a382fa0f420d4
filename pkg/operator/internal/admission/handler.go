// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// maxReviewBytes is the maximum size of an AdmissionReview. The API server accepts
// objects of 1.5 MiB, and the review of an update has two.
const maxReviewBytes = 3 << 20

// NewHandler returns the handler of AdmissionReviews of admission.k8s.io/v1, which
// calls validator and counts its decisions. An invalid review gets a status of 400 or above, which the API
// server treats like no answer.
func NewHandler(validator *Validator, metrics *Metrics) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /validate", func(w http.ResponseWriter, r *http.Request) {
		request, err := readReview(http.MaxBytesReader(w, r.Body, maxReviewBytes), r.Header.Get("Content-Type"))
		if err != nil {
			rejectReview(w, r, err)
			return
		}
		rejection := validator.Validate(request)
		status := apierrors.APIStatus(nil)
		if rejection != nil && !errors.As(rejection, &status) {
			rejectReview(w, r, rejection)
			return
		}
		metrics.decided(request.Resource, rejection == nil)
		response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: rejection == nil}
		if rejection != nil {
			result := status.Status()
			response.Result = &result
			klog.FromContext(r.Context()).Info("Rejected request", "operation", request.Operation,
				"resource", request.Resource.Resource, "object", klog.KRef(request.Namespace, request.Name),
				"user", request.UserInfo.Username, "reason", result.Message)
		}
		writeReview(w, r, response)
	})
	return mux
}

// errMediaType means that a review is not JSON.
var errMediaType = errors.New("content type is not application/json")

func readReview(body io.Reader, contentType string) (*admissionv1.AdmissionRequest, error) {
	if mediaType, _, err := mime.ParseMediaType(contentType); err != nil || mediaType != "application/json" {
		return nil, fmt.Errorf("read the AdmissionReview: %w", errMediaType)
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("read the AdmissionReview: %w", err)
	}
	review := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(data, review); err != nil {
		return nil, fmt.Errorf("decode the AdmissionReview: %w", err)
	}
	if got := review.GroupVersionKind(); got != reviewKind {
		return nil, fmt.Errorf("got %q, want %q", got, reviewKind)
	}
	if review.Request == nil || review.Request.UID == "" {
		return nil, errors.New("the AdmissionReview has no request with a uid")
	}
	return review.Request, nil
}

var reviewKind = admissionv1.SchemeGroupVersion.WithKind("AdmissionReview")

// rejectReview answers an invalid review.
func rejectReview(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusBadRequest
	var tooLong *http.MaxBytesError
	switch {
	case errors.Is(err, errMediaType):
		code = http.StatusUnsupportedMediaType
	case errors.As(err, &tooLong):
		code = http.StatusRequestEntityTooLarge
	}
	klog.FromContext(r.Context()).Info("Received invalid AdmissionReview", "err", err, "client", r.RemoteAddr)
	http.Error(w, err.Error(), code)
}

func writeReview(w http.ResponseWriter, r *http.Request, response *admissionv1.AdmissionResponse) {
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: reviewKind.GroupVersion().String(), Kind: reviewKind.Kind},
		Response: response,
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(review); err != nil {
		klog.FromContext(r.Context()).V(2).Info("AdmissionReview was not answered", "err", err, "client", r.RemoteAddr)
	}
}
