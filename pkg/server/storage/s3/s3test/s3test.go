// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package s3test runs an S3 service for tests: the Versity gateway with a
// temporary folder behind it.
package s3test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	accessKey = "test"
	secretKey = "testtest"
	// patience is for the service to listen after it was started.
	patience = time.Minute
)

// Start runs an S3 service until the test ends. It sets the standard AWS_*
// environment, which child processes inherit, so that clients find it; therefore
// the test cannot be parallel. middleware may be nil; it is put before the
// service, to lose answers and the like.
func Start(t testing.TB, middleware func(service http.Handler) http.Handler) {
	t.Helper()
	// The path of a socket has little room, less than t.TempDir may need.
	dir, err := os.MkdirTemp("", "s3")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	socket := filepath.Join(dir, "socket")
	startGateway(t, socket, dir)

	handler := http.Handler(newProxy(socket))
	if middleware != nil {
		handler = middleware(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_S3":   server.URL,
		"AWS_REGION":            "us-east-1",
		"AWS_ACCESS_KEY_ID":     accessKey,
		"AWS_SECRET_ACCESS_KEY": secretKey,
		// Nothing of what the developer has set counts.
		"AWS_SESSION_TOKEN":           "",
		"AWS_PROFILE":                 "",
		"AWS_CONFIG_FILE":             os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(name, value)
	}
}

// CreateBucket makes a bucket in the service that Start has started.
func CreateBucket(t testing.TB, name string) {
	t.Helper()
	c, err := config.LoadDefaultConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := s3.NewFromConfig(c, func(o *s3.Options) { o.UsePathStyle = true })
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
		t.Fatal(err)
	}
}

// startGateway runs the gateway until the test ends. It listens at a socket,
// because no port is sure to be free.
func startGateway(t testing.TB, socket, dir string) {
	t.Helper()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	cmd := exec.Command(program, "--quiet", "--port", socket, "posix", data)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+accessKey, "ROOT_SECRET_KEY="+secretKey)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // says that it was killed
		if t.Failed() {
			t.Logf("the S3 service says:\n%s", output.Bytes())
		}
	})
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		return true, conn.Close()
	})
	if err != nil {
		t.Fatalf("waiting for the S3 service to listen: %v", err)
	}
}

// newProxy forwards requests to the socket as they are: the host is signed.
func newProxy(socket string) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "socket"})
			r.Out.Host = r.In.Host
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
			DisableCompression: true,
		},
	}
}
