// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The age of an object differs from run to run, and with it the width of its column. Only Cluster
// API has another column behind it, without a value.
var (
	age     = regexp.MustCompile(`(?m)[0-9]+[smh][0-9smh]* *$`)
	heading = regexp.MustCompile(`AGE +VERSION *`)
)

// kubectl prints the columns in the golden file. UPDATE_GOLDEN=1 rewrites the file, and fails.
func TestColumns(t *testing.T) {
	t.Parallel()
	const name, golden = "columns", "columns.golden"
	env.CreatePoolForTest(t, name, 4)
	env.UntilRunning(t, name, 4)

	arguments := []string{"get", "nsmp/" + name}
	for _, shard := range shardIDs {
		arguments = append(arguments, "nssg/"+v1beta1.ShardGroupName(name, shard))
	}
	arguments = append(arguments, "machinepool/"+name)
	got := heading.ReplaceAllString(age.ReplaceAllString(env.Kubectl(t, arguments...), "<age>"), "AGE   VERSION")
	path := filepath.Join("testdata", golden)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		t.Fatalf("wrote %s; run the test again without UPDATE_GOLDEN", path)
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	if got != string(want) {
		t.Errorf("kubectl prints\n%s\nwant\n%s", got, want)
	}
}

// Every column of every kind shows something on a live object.
func TestColumnsResolve(t *testing.T) {
	t.Parallel()
	const name = "columns-resolve"
	env.CreatePoolForTest(t, name, 3)
	createTemplate(t, name)
	env.UntilRunning(t, name, 3)
	single := createMachine(t, name, name)
	testcluster.Eventually(t, 2*time.Minute, "the machine runs", single.hasNode)
	for resource, object := range map[string]string{
		"nstanceclusters":         installation.ClusterName,
		"nstancemachinepools":     name,
		"nstanceshardgroups":      v1beta1.ShardGroupName(name, shardIDs[0]),
		"nstancemachines":         name,
		"nstancemachinetemplates": name,
	} {
		data, err := env.Nstance.InfrastructureV1beta1().RESTClient().Get().
			Namespace(installation.Namespace).Resource(resource).Name(object).
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
			DoRaw(t.Context())
		require.NoError(t, err)
		var table metav1.Table
		require.NoError(t, json.Unmarshal(data, &table))
		if len(table.Rows) != 1 || len(table.ColumnDefinitions) < 3 {
			t.Errorf("%s: %d rows of %d columns", resource, len(table.Rows), len(table.ColumnDefinitions))
			continue
		}
		for i, column := range table.ColumnDefinitions {
			if cell := table.Rows[0].Cells[i]; cell == nil || cell == "" || cell == "<unknown>" {
				t.Errorf("%s: column %s shows %v", resource, column.Name, cell)
			}
		}
	}
}

// createTemplate creates a template, which only users do.
func createTemplate(t *testing.T, name string) {
	t.Helper()
	templates := env.NstanceMachineTemplates()
	template := &v1beta1.NstanceMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	template.Spec.Template.Spec.GroupRef.Name = v1beta1.Identifier(name)
	_, err := templates.Create(t.Context(), template, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, templates.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
	})
}
