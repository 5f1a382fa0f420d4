// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package apitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Respond returns an API server's response: an object, the status of an error, or success
// for nil. An error without a status is the connection's.
func Respond(request *http.Request, answer any) (*http.Response, error) {
	code := http.StatusOK
	if err, ok := answer.(error); ok {
		failed, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok {
			return nil, err
		}
		code, answer = int(failed.Status().Code), failed.Status()
	} else if answer == nil {
		answer = metav1.Status{Status: metav1.StatusSuccess}
	}
	if status, ok := answer.(metav1.Status); ok {
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer = status
	}
	body, err := json.Marshal(answer)
	return &http.Response{
		StatusCode: code,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(bytes.NewReader(body)),
		Request:    request,
	}, err
}
