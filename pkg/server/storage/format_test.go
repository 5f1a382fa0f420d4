// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

type embedded struct {
	Embedded string `json:"embedded,omitempty"`
}

type object struct {
	embedded

	Name   string `json:"name"`
	Hidden string `json:"-"`
}

func TestDecodeAndEncode(t *testing.T) {
	for _, test := range []struct {
		data    string
		want    object
		unknown UnknownFields
		written string
	}{
		{`{"name":"a","embedded":"b"}`, object{Name: "a", embedded: embedded{"b"}}, nil, `{"embedded":"b","name":"a"}`},
		{`{"format_version":1,"name":"a"}`, object{Name: "a"}, nil, `{"name":"a"}`},
		{`{"NAME":"a","z":1}`, object{Name: "a"}, UnknownFields{"z": json.RawMessage("1")}, `{"name":"a","z":1}`},
		{
			`{"b":{"c":[1, 2]},"name":"a","embedded":"x","a":null,"Hidden":"y"}`, object{Name: "a", embedded: embedded{"x"}},
			UnknownFields{"a": json.RawMessage("null"), "b": json.RawMessage(`{"c":[1, 2]}`), "Hidden": json.RawMessage(`"y"`)},
			`{"embedded":"x","name":"a","Hidden":"y","a":null,"b":{"c":[1,2]}}`,
		},
	} {
		decoded, unknown, err := Decode[object]([]byte(test.data))
		require.NoError(t, err, test.data)
		require.Equal(t, test.want, decoded, test.data)
		require.Equal(t, test.unknown, unknown, test.data)
		written, err := Encode(decoded, unknown)
		require.NoError(t, err, test.data)
		require.Equal(t, test.written, string(written), test.data)
	}
	written, err := Encode(embedded{}, UnknownFields{"a": json.RawMessage("1")})
	require.NoError(t, err)
	require.Equal(t, `{"a":1}`, string(written))
}

func TestNewerFormats(t *testing.T) {
	const reason = "the object has format version 2, and this server reads versions up to 1"
	// The rest of the object may have another form.
	for _, data := range []string{`{"format_version":2}`, `{"format_version":2,"name":{"first":"a"}}`} {
		_, _, err := Decode[object]([]byte(data))
		newer := &NewerFormatError{}
		require.ErrorAs(t, err, &newer, data)
		require.Equal(t, 2, newer.Found, data)
		require.ErrorContains(t, err, reason, data)
		require.ErrorContains(t, CheckFormat([]byte(data)), reason, data)
	}
	for _, data := range []string{`{`, `[]`, `{}}`, `{"name":1}`, `{"format_version":"1"}`} {
		_, _, err := Decode[object]([]byte(data))
		require.Error(t, err, data)
		newer := &NewerFormatError{}
		require.NotErrorAs(t, err, &newer, data)
	}
	require.NoError(t, CheckFormat([]byte(`{"name":"a"}`)))
}
