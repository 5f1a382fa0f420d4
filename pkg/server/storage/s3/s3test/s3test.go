// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package s3test runs an S3 service for tests: the Versity gateway with a
// temporary folder behind it.
package s3test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/testing/source"
)

const (
	accessKey = "test"
	secretKey = "testtest"
	// startTimeout is the time for the service to listen after it was started.
	startTimeout = time.Minute
)

// Start runs an S3 service until the end of the test. It sets the standard AWS_*
// environment variables for clients, also in child processes, so the test cannot be
// parallel. middleware wraps the service, for example to drop responses; it may be
// nil.
func Start(t testing.TB, middleware func(service http.Handler) http.Handler) {
	t.Helper()
	// The path of a socket must be shorter than the path of t.TempDir may be
	// (https://man7.org/linux/man-pages/man7/unix.7.html).
	dir, err := os.MkdirTemp("", "s3")
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, os.RemoveAll(dir))
	})
	socket := filepath.Join(dir, "socket")
	startGateway(t, socket, dir)

	handler := http.Handler(newProxy(socket))
	if middleware != nil {
		handler = middleware(handler)
	}
	Use(t, handler)
}

// Use serves an S3 service until the end of the test, and sets the environment as Start does.
func Use(t testing.TB, service http.Handler) {
	t.Helper()
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_S3":   server.URL,
		"AWS_REGION":            "us-east-1",
		"AWS_ACCESS_KEY_ID":     accessKey,
		"AWS_SECRET_ACCESS_KEY": secretKey,
		// The developer's own settings must not apply.
		"AWS_SESSION_TOKEN":           "",
		"AWS_PROFILE":                 "",
		"AWS_CONFIG_FILE":             os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(name, value)
	}
}

// CreateBucket creates a bucket in the service of Start.
func CreateBucket(t testing.TB, name string) {
	t.Helper()
	c, err := config.LoadDefaultConfig(t.Context())
	require.NoError(t, err)
	client := s3.NewFromConfig(c, func(o *s3.Options) { o.UsePathStyle = true })
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
		t.Fatal(err)
	}
}

// startGateway runs the gateway until the end of the test. It listens at a socket,
// because any port may be in use.
func startGateway(t testing.TB, socket, dir string) {
	t.Helper()
	program, err := build()
	require.NoError(t, err)
	data := filepath.Join(dir, "data")
	require.NoError(t, os.Mkdir(data, 0o700))
	var output bytes.Buffer
	cmd := exec.Command(program, "--quiet", "--port", socket, "posix", data)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+accessKey, "ROOT_SECRET_KEY="+secretKey)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Dir = dir
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // the error says that it was killed
		if t.Failed() {
			t.Logf("output of the S3 service:\n%s", output.Bytes())
		}
	})
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, startTimeout, true, func(context.Context) (bool, error) {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		return true, conn.Close()
	})
	require.NoError(t, err, "waiting for the S3 service to listen")
}

// newProxy forwards requests to the socket unchanged, because the host is part of
// the signature.
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

// build returns the path of the gateway's program. The program has a module of its own, so
// that its requirements are not requirements of this module. hack/test.sh builds it before the
// tests; otherwise the first test does, which takes minutes.
var build = sync.OnceValues(func() (string, error) {
	root, err := source.Root("hack/versitygw/go.*")
	if err != nil {
		return "", err
	}
	module, folder := filepath.Join(root, "hack", "versitygw"), filepath.Join(root, ".dev", "versitygw")
	unlock, err := lock(folder)
	if err != nil {
		return "", err
	}
	defer unlock()
	program := filepath.Join(folder, "versitygw")
	// Building would set the time of a program that is up to date, and Go's test cache would
	// take the program for another.
	if isNewer(program, filepath.Join(module, "go.mod")) && isNewer(program, filepath.Join(module, "go.sum")) {
		return program, nil
	}
	_, err = source.Go(module, "build", "-ldflags=-s -w", "-o", program, "github.com/versity/versitygw/cmd/versitygw")
	if err != nil {
		return "", fmt.Errorf("build the S3 service: %w", err)
	}
	return program, nil
})

// isNewer reports whether a file exists that was written after the input.
func isNewer(path, input string) bool {
	file, err := os.Stat(path)
	if err != nil {
		return false
	}
	than, err := os.Stat(input)
	return err == nil && file.ModTime().After(than.ModTime())
}

// lock lets one test process at a time build the program. The others find it up to date, and
// do not replace it while it runs.
func lock(folder string) (unlock func(), err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	unlock = func() { _ = file.Close() }
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		unlock()
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return unlock, nil
}
