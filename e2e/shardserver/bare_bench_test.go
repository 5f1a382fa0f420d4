// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardserver

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

const (
	bareInstances = 1000
	// bareWriters is how many instances are created at once: as many as the
	// provider creates Nodes at once.
	bareWriters = 8
)

// createBare creates Nodes and records like those of a shard, in the order in which
// the server does: the record, the Node, the record again. Nothing is decided,
// cached, watched or reported. It returns how long that takes.
func createBare(b *testing.B, shard string) time.Duration {
	b.Helper()
	config := env.AdminConfig()
	config.ContentType = runtime.ContentTypeProtobuf // as the server's
	client, err := kubernetes.NewForConfig(config)
	require.NoError(b, err)
	nodes := client.CoreV1().Nodes()
	list, err := nodes.List(b.Context(), metav1.ListOptions{LabelSelector: kwok.LabelShard + "=" + shard, Limit: 1})
	require.NoError(b, err)
	model := list.Items[0]
	id, err := puidv7.Parse(model.Name)
	require.NoError(b, err)
	const bare = "bare"
	model.Labels[kwok.LabelShard] = bare // of no server
	bucket, err := file.Open(env.Installation.Bucket())
	require.NoError(b, err)
	record, err := bucket.Get(b.Context(), storage.InstanceKey(shard, model.Labels[kwok.LabelTenant], id.StorageKey()))
	require.NoError(b, err)
	records, err := file.Open(b.TempDir())
	require.NoError(b, err)
	begin := time.Now()
	var writers errgroup.Group
	writers.SetLimit(bareWriters)
	for range bareInstances {
		writers.Go(func() error {
			id, err := puidv7.New("knd")
			if err != nil {
				return err
			}
			key := storage.InstanceKey(bare, model.Labels[kwok.LabelTenant], id.StorageKey())
			etag, err := records.Create(b.Context(), key, record.Data)
			if err != nil {
				return err
			}
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: id.String(), Labels: model.Labels, Annotations: model.Annotations},
				Spec:       corev1.NodeSpec{ProviderID: "bare:///" + id.String()},
				Status:     model.Status,
			}
			if _, err := nodes.Create(b.Context(), node, metav1.CreateOptions{}); err != nil {
				return err
			}
			_, err = records.Replace(b.Context(), key, record.Data, etag)
			return err
		})
	}
	require.NoError(b, writers.Wait())
	took := time.Since(begin)
	err = nodes.DeleteCollection(context.WithoutCancel(b.Context()), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: kwok.LabelShard + "=" + bare})
	require.NoError(b, err)
	return took
}
