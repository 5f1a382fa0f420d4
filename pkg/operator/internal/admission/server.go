// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/httpserver"
)

const (
	// requestTimeout is the timeout for reading a request, and for writing its
	// response. The timeout of the API server is shorter.
	requestTimeout = 10 * time.Second
	// idleTimeout is how long a connection without requests is kept.
	idleTimeout = 2 * time.Minute
	// stopTimeout is the timeout for requests in flight when the server stops.
	stopTimeout = 5 * time.Second
)

// GetCertificate returns the certificate for a handshake, like the field of
// tls.Config.
type GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// Serve serves handler over TLS at address until ctx is done. It returns when the
// address is bound. There need not be a certificate yet: each handshake calls
// certificate. The connections are limited.
func Serve(ctx context.Context, address string, handler http.Handler, certificate GetCertificate) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	serve(ctx, listener, handler, certificate)
	return nil
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler, certificate GetCertificate) {
	server := &http.Server{
		Handler:           handler,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: certificate},
		ReadTimeout:       requestTimeout,
		ReadHeaderTimeout: requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       idleTimeout,
		// Requests get the logger of ctx, but are not cancelled with it.
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	context.AfterFunc(ctx, func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(stopCtx) != nil {
			_ = server.Close()
		}
	})
	go func() {
		if err := server.ServeTLS(httpserver.Limit(listener), "", ""); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "HTTPS server stopped", "address", listener.Addr())
		}
	}()
}

// maxReviewBytes is the maximum size of an AdmissionReview. etcd stores requests of at most
// 1.5 MiB by default (https://etcd.io/docs/v3.5/dev-guide/limit/), and the review of an update
// has two objects.
const maxReviewBytes = 3 << 20

// NewHandler returns the handler of AdmissionReviews of admission.k8s.io/v1, which calls
// validator and counts its decisions. An invalid review gets a status of 400 or above; the API
// server then applies the failure policy of the webhook.
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
		} else {
			response.Warnings = validator.Warnings(request)
		}
		writeReview(w, r, response)
	})
	return mux
}

// errMediaType becomes the status 415.
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

// rejectReview responds to an invalid review with the status of err.
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

// otherResource is the label of every resource that the webhook is not configured for, so that
// a client cannot create an unbounded number of series.
const otherResource = "other"

// Metrics counts the decisions of the webhook.
type Metrics struct {
	decisions *prometheus.CounterVec
}

// NewMetrics registers the counter nstance_operator_webhook_decisions_total.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nstance_operator_webhook_decisions_total",
		Help: "Requests that the admission webhook has decided, by resource and whether they were allowed.",
	}, []string{"resource", "allowed"})}
	registry.MustRegister(m.decisions)
	return m
}

func (m *Metrics) decided(resource metav1.GroupVersionResource, allowed bool) {
	name := otherResource
	if resource == pools || resource == machinePools {
		name = resource.Resource
	}
	m.decisions.WithLabelValues(name, strconv.FormatBool(allowed)).Inc()
}
