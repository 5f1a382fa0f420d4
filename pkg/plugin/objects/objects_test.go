// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package objects_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// The last of several writers of a field counts, and writers of other fields do not.
func TestWriterOfIsTheLastOne(t *testing.T) {
	object := &metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		plugintest.Wrote("first", time.Hour, `{"f:spec":{"f:replicas":{}}}`),
		plugintest.Wrote("last", time.Minute, `{"f:spec":{".":{},"f:replicas":{}}}`),
		plugintest.Wrote("middle", 30*time.Minute, `{"f:spec":{"f:replicas":{}}}`),
		plugintest.Wrote("other", time.Second, `{"f:spec":{"f:template":{}},"f:replicas":{}}`),
	}}
	writer, found := objects.WriterOf(object, "f:spec", "f:replicas")
	if !found || writer.Manager != "last" || !writer.At.Equal(plugintest.Now.Add(-time.Minute)) {
		t.Errorf("writer %+v, %t", writer, found)
	}
	if writer, found := objects.WriterOf(object, "f:spec", "f:paused"); found {
		t.Errorf("writer %+v of a field without one", writer)
	}
}

// A Node belongs to an instance only if the whole provider id matches.
func TestLocateComparesProviderIDs(t *testing.T) {
	s := plugintest.AtRest()
	node := plugintest.NewNode("z", "a1")
	node.Name = "same-key"
	s.Nodes.Items = append(s.Nodes.Items, node)
	if subject := s.Locate("same-key"); subject.ShardGroup != nil {
		t.Errorf("shard group %s", subject.ShardGroup.Name)
	}
	if subject := s.Locate("a1"); subject.ShardGroup == nil || subject.Pool == nil || subject.MachinePool == nil {
		t.Errorf("subject %+v", subject)
	}
}
