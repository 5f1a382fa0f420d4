// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/httpserver/httpservertest"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// newCertificate returns a certificate for a host, and a client that trusts it.
func newCertificate(t *testing.T, host string) (*tls.Certificate, *http.Client) {
	t.Helper()
	authority := pkitest.NewAuthority(t)
	certificate, err := pki.NewServing(authority, pki.Names{Hosts: []string{host}}).Config().GetCertificate(nil)
	require.NoError(t, err)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pkitest.Roots(authority)}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return certificate, &http.Client{Transport: transport}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return listener
}

func TestServerStartsWithoutACertificate(t *testing.T) {
	pair, client := newCertificate(t, "127.0.0.1")
	var current atomic.Pointer[tls.Certificate]
	listener := listen(t)
	serve(t.Context(), listener, NewHandler(newValidator(t, present()), NewMetrics(prometheus.NewRegistry())), func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if certificate := current.Load(); certificate != nil {
			return certificate, nil
		}
		return nil, errors.New("not yet")
	})
	request := func() (*http.Response, error) {
		body := review(t, create(t, newPool("new", "workers", "a")))
		return client.Post("https://"+listener.Addr().String()+"/validate", "application/json", bytes.NewReader(body))
	}
	if response, err := request(); err == nil {
		_ = response.Body.Close()
		t.Fatal("answered without a certificate")
	}
	current.Store(pair)
	response, err := request()
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	if response.ProtoMajor != 2 || response.TLS.Version != tls.VersionTLS13 {
		t.Errorf("answered with %s and TLS version %x", response.Proto, response.TLS.Version)
	}
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if readResponse(t, body).Allowed {
		t.Error("allowed a group that is in use")
	}
}

func TestServerRejectsOldTLS(t *testing.T) {
	pair, client := newCertificate(t, "127.0.0.1")
	client.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS12
	listener := listen(t)
	serve(t.Context(), listener, http.NotFoundHandler(), func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair, nil })
	response, err := client.Get("https://" + listener.Addr().String())
	if err == nil {
		_ = response.Body.Close()
		t.Error("TLS 1.2 was accepted")
	}
}

func TestServerFinishesRequestsInFlight(t *testing.T) {
	pair, client := newCertificate(t, "127.0.0.1")
	begun, finish := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-finish
		if r.Context().Err() != nil {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	listener := listen(t)
	serve(ctx, listener, handler, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair, nil })
	codes := make(chan int, 1)
	go func() {
		response, err := client.Get("https://" + listener.Addr().String())
		if err != nil {
			t.Error(err)
			codes <- 0
			return
		}
		_ = response.Body.Close()
		codes <- response.StatusCode
	}()
	<-begun
	stop()
	for {
		// Connect until the listener is closed.
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	close(finish)
	if code := <-codes; code != http.StatusOK {
		t.Errorf("answered %d", code)
	}
}

func TestTheConnectionsOfAnAddressAreLimited(t *testing.T) {
	pair, client := newCertificate(t, "127.0.0.1")
	listener := listen(t)
	serve(t.Context(), listener, http.NotFoundHandler(), func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair, nil })
	dialer := &tls.Dialer{Config: client.Transport.(*http.Transport).TLSClientConfig}
	httpservertest.Connections(t, func() (net.Conn, error) { return dialer.DialContext(t.Context(), "tcp", listener.Addr().String()) })
}

func TestAddressInUse(t *testing.T) {
	listener := listen(t)
	defer func() { _ = listener.Close() }()
	if err := Serve(t.Context(), listener.Addr().String(), http.NotFoundHandler(), nil); err == nil {
		t.Error("no error")
	}
}

// pipe is a listener with one in-memory connection.
type pipe struct {
	connections chan net.Conn
	closed      chan struct{}
}

func (p pipe) Accept() (net.Conn, error) {
	select {
	case conn := <-p.connections:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipe) Close() error   { close(p.closed); return nil }
func (p pipe) Addr() net.Addr { return &net.TCPAddr{} }

// TestServerClosesSlowConnections: connections of clients that send nothing, or send slowly.
func TestServerClosesSlowConnections(t *testing.T) {
	for name, say := range map[string]func(*tls.Conn) error{
		"silent before the handshake": func(*tls.Conn) error { return nil },
		"silent after the handshake":  func(c *tls.Conn) error { return c.Handshake() },
		"half a request": func(c *tls.Conn) error {
			_, err := io.WriteString(c, "POST /validate HTTP/1.1\r\nHost: webhook\r\nContent-Length: 100\r\n\r\nhalf")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pair, _ := newCertificate(t, "webhook")
				p := pipe{make(chan net.Conn), make(chan struct{})}
				ctx, stop := context.WithCancel(t.Context())
				handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) })
				serve(ctx, p, handler, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair, nil })
				client, server := net.Pipe()
				p.connections <- server
				begin := time.Now()
				conn := tls.Client(client, &tls.Config{InsecureSkipVerify: true})
				require.NoError(t, say(conn))
				// The connection is closed; the data until then does not matter.
				_, _ = io.ReadAll(client)
				if took := time.Since(begin); took < requestTimeout || took > 2*requestTimeout {
					t.Errorf("kept the connection for %s", took)
				}
				stop()
				// Shutdown polls while a connection is being closed; the time passes in the
				// bubble.
				time.Sleep(2 * stopTimeout)
				synctest.Wait()
			})
		})
	}
}

// review returns the body of the API server's request.
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

func TestReviewsGetResponses(t *testing.T) {
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

// A schedule that the CRD accepts and that nobody can read is allowed, because a pool must not become
// one that cannot be edited, and the client is told what it means.
func TestAnUnreadableScheduleGetsAWarning(t *testing.T) {
	handler := NewHandler(newValidator(t, present()), NewMetrics(prometheus.NewRegistry()))
	rotating := func(group, schedule, zone string) *v1beta1.NstanceMachinePool {
		pool := newPool("new", group, "a")
		pool.Spec.Rotation = &v1beta1.RotationPolicy{Windows: []v1beta1.TimeWindow{
			{Schedule: "0 2 * * *", DurationMinutes: 60}, {Schedule: schedule, DurationMinutes: 60, TimeZone: zone},
		}}
		return pool
	}
	pod := create(t, rotating("new", "0 25 * * *", ""))
	pod.Resource = metav1.GroupVersionResource{Version: "v1", Resource: "pods"}
	elsewhere := create(t, rotating("new", "0 25 * * *", ""))
	elsewhere.Namespace = "other"
	for name, test := range map[string]struct {
		request *admissionv1.AdmissionRequest
		want    []string
	}{
		"no rotation": {create(t, newPool("new", "new", "a")), nil},
		"valid":       {create(t, rotating("new", "0 3 * * *", "Europe/Berlin")), nil},
		"a schedule": {create(t, rotating("new", "0 25 * * *", "")), []string{
			`spec.rotation.windows[1]: schedule "0 25 * * *": end of range (25) above maximum (23): 25; no outdated instance is replaced`}},
		"a time zone": {update(t, newPool("new", "new", "a"), rotating("new", "0 3 * * *", "Mars/Base")), []string{
			`spec.rotation.windows[1]: time zone "Mars/Base" is not known; no outdated instance is replaced`}},
		"a rejected pool":    {create(t, rotating("workers", "0 25 * * *", "")), nil},
		"a pool that leaves": {update(t, newPool("new", "new", "a"), controllertest.Deleting(rotating("new", "0 25 * * *", ""))), nil},
		"a deletion":         {remove(t, rotating("new", "0 25 * * *", "")), nil},
		"another resource":   {pod, nil},
		"another namespace":  {elsewhere, nil},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, post(review(t, test.request)))
			require.Equal(t, http.StatusOK, recorder.Code)
			response := readResponse(t, recorder.Body.Bytes())
			assert.Equal(t, test.want, response.Warnings)
			assert.Equal(t, name != "a rejected pool", response.Allowed)
		})
	}
}

func TestInvalidReviewsGetAnErrorStatus(t *testing.T) {
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
