// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2/textlogger"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// upsertGroups is the number of groups of the shard: each change writes them all.
	upsertGroups = 100
	// upsertBlock is how many changes take turns with as many bare writes, so
	// that both find the same disk.
	upsertBlock = 50
	// upsertBlocks make one iteration, so that even one iteration measures something.
	upsertBlocks = 10
)

// BenchmarkUpsertGroup changes groups through a real server: mutual TLS, gRPC, storage in
// files. The metric x-bare is the factor by which that takes longer than only the system
// calls that replace a file of the same size safely: the median of all blocks, because other
// work on the machine delays some of them. The changes of several callers share writes.
func BenchmarkUpsertGroup(b *testing.B) {
	for _, callers := range []int{1, 8} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			// It logs as much as a server does by default.
			logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.Discard)))
			s := servertest.Start(b, servertest.Options{Logger: &logger})
			operator := s.Operator("default")
			revision := 0
			// The groups have no instances, which would be work besides.
			change := func(group int) error {
				_, err := operator.UpsertGroup(b.Context(), &nstancev1.UpsertGroupRequest{
					Key: fmt.Sprintf("group-%03d", group),
					Config: &nstancev1.GroupConfig{
						Template: "worker", InstanceType: "m7i.large",
						Vars: map[string]string{"revision": fmt.Sprintf("%09d", revision)},
					},
				})
				return err
			}
			for group := range upsertGroups {
				require.NoError(b, change(group))
			}
			bare := newBareFile(b, s.DataDir)

			var upserting, writing time.Duration
			var ratios []float64
			changes := 0
			for b.Loop() {
				for range upsertBlocks {
					revision++ // each change has its own
					begin := time.Now()
					var calls errgroup.Group
					calls.SetLimit(callers)
					for n := range upsertBlock {
						calls.Go(func() error { return change(n) })
					}
					require.NoError(b, calls.Wait())
					changing := time.Since(begin)

					data, err := os.ReadFile(s.GroupsPath())
					require.NoError(b, err)
					begin = time.Now()
					for range upsertBlock {
						require.NoError(b, bare.replace(data))
					}
					replacing := time.Since(begin)
					upserting += changing
					writing += replacing
					ratios = append(ratios, float64(changing)/float64(replacing))
					changes += upsertBlock
				}
			}
			b.ReportMetric(float64(changes)/upserting.Seconds(), "upserts/s")
			b.ReportMetric(float64(changes)/writing.Seconds(), "bare/s")
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "x-bare")
		})
	}
}

// bareFile is a file that is replaced as every safe writer must, without a server.
type bareFile struct {
	path   string
	folder *os.File
}

func newBareFile(b *testing.B, dir string) *bareFile {
	b.Helper()
	path := filepath.Join(dir, "bare")
	require.NoError(b, os.Mkdir(path, 0o700))
	folder, err := os.Open(path)
	require.NoError(b, err)
	b.Cleanup(func() { _ = folder.Close() })
	return &bareFile{path: filepath.Join(path, "object"), folder: folder}
}

func (f *bareFile) replace(data []byte) error {
	temporary, err := os.Create(f.path + ".new")
	if err != nil {
		return err
	}
	if _, err := temporary.Write(data); err != nil {
		return err
	}
	if err := temporary.Sync(); err != nil {
		return err
	}
	if err := temporary.Close(); err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), f.path); err != nil {
		return err
	}
	return f.folder.Sync()
}
