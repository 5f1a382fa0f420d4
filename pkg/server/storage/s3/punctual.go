// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package s3

import (
	"net/http"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"nstance.dev/operator/pkg/server/storage"
)

// punctualClient sends no request whose context has ended. Between the call of a
// method and this last moment the SDK signs, and waits before it tries again,
// and the process may be paused.
type punctualClient struct {
	s3.HTTPClient
}

// Do sends a request.
func (c punctualClient) Do(request *http.Request) (*http.Response, error) {
	if err := storage.Ended(request.Context()); err != nil {
		return nil, err
	}
	return c.HTTPClient.Do(request)
}
