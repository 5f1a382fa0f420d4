// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"nstance.dev/operator/pkg/server/deadline"
)

// newClient returns a client for the cluster that the Nodes are in.
func newClient(kubeconfig string) (kubernetes.Interface, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig (shard.infra.options.kubeconfig): %w", err)
	}
	c.UserAgent = "nstance-server"
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	// The API server's priority and fairness limits the rate.
	c.QPS = -1
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return deadline.HTTPClient(next.RoundTrip) })
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("create a client from kubeconfig %s: %w", kubeconfig, err)
	}
	return client, nil
}
