// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nocloud

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGuest of package qemu tests that Linux mounts such an image.
func TestFilesAreFoundFromTheVolumeDescriptor(t *testing.T) {
	files := map[string][]byte{
		"meta-data": []byte("instance-id: a\n"),
		"user-data": bytes.Repeat([]byte("0123456789abcdef"), 1000),
		"empty":     {},
		"sector":    make([]byte, 2048),
	}
	image, err := newISO9660("cidata", files)
	require.NoError(t, err)
	volume := image[16*2048:]
	assert.Equal(t, "\x01CD001\x01\x00", string(volume[:8]))
	assert.Equal(t, "cidata", strings.TrimRight(string(volume[40:72]), " "))
	assert.EqualValues(t, len(image), 2048*binary.LittleEndian.Uint32(volume[80:]))
	assert.Equal(t, "\xffCD001\x01", string(image[17*2048:][:7]))

	folder := image[2048*binary.LittleEndian.Uint32(volume[156+2:]):][:2048]
	found := map[string][]byte{}
	for at := 0; folder[at] != 0; at += int(folder[at]) {
		entry := folder[at : at+int(folder[at])]
		sector, size := binary.LittleEndian.Uint32(entry[2:]), binary.LittleEndian.Uint32(entry[10:])
		assert.Equal(t, sector, binary.BigEndian.Uint32(entry[6:]))
		assert.Equal(t, size, binary.BigEndian.Uint32(entry[14:]))
		if entry[25]&2 == 0 {
			name := string(entry[33:][:entry[32]])
			found[name] = image[2048*sector:][:size:size]
		}
	}
	require.Len(t, found, len(files))
	for name, want := range files {
		assert.Equal(t, string(want), string(found[strings.ToUpper(name)+".;1"]), name)
	}
}

func TestWhatDoesNotFitIsAnError(t *testing.T) {
	many := map[string][]byte{}
	for i := range 60 {
		many[strings.Repeat("x", i%28+1)+string(rune('a'+i/28))] = nil
	}
	for name, files := range map[string]map[string][]byte{
		"a folder in a name": {"a/b": nil}, "no name": {"": nil}, "a long name": {strings.Repeat("x", 29): nil}, "many files": many,
	} {
		_, err := newISO9660("cidata", files)
		require.Error(t, err, name)
	}
	_, err := newISO9660(strings.Repeat("x", 33), nil)
	require.Error(t, err)
}
