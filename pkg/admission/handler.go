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

// maxReview is the longest AdmissionReview that is read, in bytes. The API server
// takes objects of 1.5 MiB, and a review of an update holds two.
const maxReview = 3 << 20

// NewHandler answers AdmissionReviews of admission.k8s.io/v1 with what validator
// decides. One that is not understood is answered with status 400 or another
// from 400 up, which the API server takes for no answer at all.
func NewHandler(validator *Validator) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /validate", func(w http.ResponseWriter, r *http.Request) {
		request, err := readReview(http.MaxBytesReader(w, r.Body, maxReview), r.Header.Get("Content-Type"))
		if err != nil {
			refuseReview(w, r, err)
			return
		}
		refusal := validator.Validate(request)
		status := apierrors.APIStatus(nil)
		if refusal != nil && !errors.As(refusal, &status) {
			refuseReview(w, r, refusal)
			return
		}
		response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: refusal == nil}
		if refusal != nil {
			result := status.Status()
			response.Result = &result
			klog.FromContext(r.Context()).Info("Request refused", "operation", request.Operation,
				"resource", request.Resource.Resource, "object", klog.KRef(request.Namespace, request.Name),
				"user", request.UserInfo.Username, "reason", result.Message)
		}
		writeReview(w, r, response)
	})
	return mux
}

// errMediaType is why a review was not read.
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

func refuseReview(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusBadRequest
	var tooLong *http.MaxBytesError
	switch {
	case errors.Is(err, errMediaType):
		code = http.StatusUnsupportedMediaType
	case errors.As(err, &tooLong):
		code = http.StatusRequestEntityTooLarge
	}
	klog.FromContext(r.Context()).Info("AdmissionReview not understood", "err", err, "client", r.RemoteAddr)
	http.Error(w, err.Error(), code)
}

func writeReview(w http.ResponseWriter, r *http.Request, response *admissionv1.AdmissionResponse) {
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: reviewKind.GroupVersion().String(), Kind: reviewKind.Kind},
		Response: response,
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(review); err != nil {
		klog.FromContext(r.Context()).V(2).Info("AdmissionReview not answered", "err", err, "client", r.RemoteAddr)
	}
}
