// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

// kinds are the kinds that there may be thousands of, by resource.
var kinds = map[string]string{
	"nstancemachinepools": "NstanceMachinePool", "nstanceshardgroups": "NstanceShardGroup", "nstancemachines": "NstanceMachine",
	"clusters": "Cluster", "machinepools": "MachinePool", "machines": "Machine",
	"nodes": "Node", "volumeattachments": "VolumeAttachment",
}

// listOne is an API server with one object of each of kinds, and watches without
// events.
func listOne(w http.ResponseWriter, r *http.Request) {
	type object = map[string]any
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	version, kind := parts[1], kinds[parts[len(parts)-1]]
	if parts[0] == "apis" {
		version += "/" + parts[2]
	}
	w.Header().Set("Content-Type", "application/json")
	var reply object
	switch query := r.URL.Query(); {
	case query.Get("sendInitialEvents") != "":
		// The client lists instead.
		w.WriteHeader(http.StatusUnprocessableEntity)
		reply = object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": http.StatusUnprocessableEntity}
	case kind == "", query.Get("watch") != "":
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	default:
		entry := object{
			"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": object{"f:spec": object{"f:replicas": object{}}},
		}
		reply = object{
			"kind": kind + "List", "apiVersion": version, "metadata": object{"resourceVersion": "1"},
			"items": []any{object{"metadata": object{
				"namespace": "nstance-system", "name": "one", "resourceVersion": "1", "managedFields": []any{entry},
			}}},
		}
	}
	_ = json.NewEncoder(w).Encode(reply)
}

// The managed fields are half of an object, and only who set the replicas of a
// MachinePool matters.
func TestCachesHaveNoManagedFields(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(listOne))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"clusters": [{"name": "test", "cluster": {"server": "` + server.URL + `"}}],
		"contexts": [{"name": "test", "context": {"cluster": "test"}}], "current-context": "test"}`
	require.NoError(t, os.WriteFile(kubeconfig, []byte(config), 0o600))
	clients, err := newClients(&Options{Kubeconfig: kubeconfig})
	require.NoError(t, err)
	all, err := newInformers(clients, complete())
	require.NoError(t, err)
	informers := map[string]cache.SharedIndexInformer{
		"nstancemachinepools": all.Nstance.NstanceMachinePools().Informer(),
		"nstanceshardgroups":  all.Nstance.NstanceShardGroups().Informer(),
		"nstancemachines":     all.Nstance.NstanceMachines().Informer(),
		"clusters":            all.Clusters, "machinepools": all.MachinePools, "machines": all.Machines,
		"nodes": all.Nodes, "volumeattachments": all.VolumeAttachments,
	}
	if len(informers) != len(kinds) {
		t.Fatalf("%d informers of %d kinds", len(informers), len(kinds))
	}
	all.run(t.Context())
	for resource, informer := range informers {
		if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
			t.Fatalf("the cache of %s did not sync", resource)
		}
		objects := informer.GetStore().List()
		if len(objects) != 1 {
			t.Fatalf("the cache of %s has %d objects, want 1", resource, len(objects))
		}
		object, err := meta.Accessor(objects[0])
		require.NoError(t, err)
		for _, entry := range object.GetManagedFields() {
			if resource != "machinepools" || entry.Manager != "" {
				t.Errorf("the cache of %s has the managed fields of %q", resource, entry.Manager)
			}
		}
	}
}
