// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package move

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	clusterctl "sigs.k8s.io/cluster-api/cmd/clusterctl/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// clusterctlName is the name under which the program of the tests is clusterctl: it shares all
// code with clusterctl but the command line.
const clusterctlName = "clusterctl"

// runClusterctl is "clusterctl move", with the flags that the procedure uses
// (https://cluster-api.sigs.k8s.io/clusterctl/commands/move).
func runClusterctl(args []string) (err error) {
	if len(args) == 0 || args[0] != "move" {
		return fmt.Errorf("only the command move exists, not %v", args)
	}
	var from, to, namespace string
	flags := flag.NewFlagSet("clusterctl move", flag.ContinueOnError)
	flags.StringVar(&from, "kubeconfig", "", "kubeconfig of the source cluster")
	flags.StringVar(&to, "to-kubeconfig", "", "kubeconfig of the target cluster")
	flags.StringVar(&namespace, "namespace", "", "namespace of the objects")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	log.SetLogger(klog.Background()) // of its clients
	dir, err := os.MkdirTemp("", "clusterctl-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	config := filepath.Join(dir, "clusterctl.yaml")
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil {
		return err
	}
	ctx := context.Background()
	client, err := clusterctl.New(ctx, config)
	if err != nil {
		return err
	}
	return client.Move(ctx, clusterctl.MoveOptions{
		FromKubeconfig: clusterctl.Kubeconfig{Path: from}, ToKubeconfig: clusterctl.Kubeconfig{Path: to}, Namespace: namespace,
	})
}

// labelKinds gives Cluster API's kinds in both clusters the label that "clusterctl init" gives
// them, and by which "clusterctl move" finds the kinds to move. The kinds of Nstance have it.
func labelKinds(ctx context.Context) error {
	for _, cluster := range both() {
		client, err := dynamic.NewForConfig(cluster.AdminConfig())
		if err != nil {
			return err
		}
		kinds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
		list, err := kinds.List(ctx, metav1.ListOptions{LabelSelector: "!" + clusterctlv1.ClusterctlLabel})
		if err != nil {
			return err
		}
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, clusterctlv1.ClusterctlLabel)
		for _, kind := range list.Items {
			if _, err := kinds.Patch(ctx, kind.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}
