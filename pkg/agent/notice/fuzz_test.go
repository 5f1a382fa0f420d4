// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package notice

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
)

// answer is a metadata service with the same response to every request.
type answer struct {
	status int
	header string
	body   []byte
}

func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	header := http.Header{}
	header.Set(googleHeader, a.header)
	return &http.Response{StatusCode: a.status, Header: header, Body: io.NopCloser(bytes.NewReader(a.body))}, nil
}

// FuzzPoll reads arbitrary responses of a metadata service, which other programs on the machine's
// network may have forged. A notice has an action, and there is never a notice with an error.
func FuzzPoll(f *testing.F) {
	f.Add(200, googleFlavor, []byte(`{"action": "terminate", "time": "2026-01-02T03:04:05Z"}`))
	f.Add(200, "", []byte(`{"Events": [{"EventType": "Preempt", "Resources": ["x"], "NotBefore": "now"}]}`))
	f.Add(200, googleFlavor, []byte("TRUE"))
	f.Add(200, "x", []byte(googleTerminate+"\n"))
	f.Add(404, "", []byte("not found"))
	f.Add(401, "", []byte("\x00"))
	f.Fuzz(func(t *testing.T, status int, header string, body []byte) {
		client := &http.Client{Transport: answer{status, header, body}}
		for _, source := range []Source{
			&aws{service: service{serviceURL, client}}, &google{service{serviceURL, client}}, &azure{service: service{serviceURL, client}, name: "x"},
		} {
			notice, err := source.Poll(t.Context())
			if notice != nil {
				assert.NoError(t, err)
				assert.NotEmpty(t, notice.Action)
			}
			if status != http.StatusOK {
				assert.Nil(t, notice)
			}
		}
	})
}
