// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package file

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkReplace replaces an object as large as the record of an instance. The
// metric x-bare is the ratio to the system calls that every safe replacement of a
// file needs, measured alternately in the same run.
func BenchmarkReplace(b *testing.B) {
	dir := b.TempDir()
	s := open(b, dir)
	etag := create(b, s, "instance/a/object", "")
	bare := filepath.Join(dir, "bare")
	require.NoError(b, os.Mkdir(bare, 0o700))
	data := make([]byte, 1000)
	var total, bareTotal time.Duration
	for n := 0; b.Loop(); n++ {
		copy(data, fmt.Sprintf("%09d", n))
		begin := time.Now()
		var err error
		etag, err = s.Replace(b.Context(), "instance/a/object", data, etag)
		require.NoError(b, err)
		middle := time.Now()
		require.NoError(b, replaceBare(bare, data))
		total += middle.Sub(begin)
		bareTotal += time.Since(middle)
	}
	b.ReportMetric(float64(total)/float64(bareTotal), "x-bare")
	b.ReportMetric(float64(total.Microseconds())/float64(b.N), "µs/replace")
}

func replaceBare(folder string, data []byte) error {
	file, err := os.Create(filepath.Join(folder, "temporary"))
	if err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), filepath.Join(folder, "object")); err != nil {
		return err
	}
	return syncFolder(folder)
}
