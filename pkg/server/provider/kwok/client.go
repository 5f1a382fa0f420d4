// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"nstance.dev/operator/pkg/server/deadline"
)

// NodeClient has the calls for Nodes. The typed client of client-go contains all kinds of
// Kubernetes, which would make the server a third larger.
type NodeClient interface {
	Create(ctx context.Context, node *corev1.Node, o metav1.CreateOptions) (*corev1.Node, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Node, error)
	List(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// nodesResource is the name of Nodes in paths of the API.
const nodesResource = "nodes"

// nodeClient is the NodeClient of an API server.
type nodeClient struct {
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// newClient returns a client for the cluster of the Nodes.
func newClient(kubeconfig string) (NodeClient, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig (shard.infra.options.kubeconfig): %w", err)
	}
	c.UserAgent = "nstance-server"
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	// The API server limits the rate
	// (https://kubernetes.io/docs/concepts/cluster-administration/flow-control/).
	c.QPS = -1
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return deadline.HTTPClient(next.RoundTrip) })
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("create a client from kubeconfig %s: %w", kubeconfig, err)
	}
	return &nodeClient{rest: client, parameters: runtime.NewParameterCodec(scheme)}, nil
}

func (c *nodeClient) Create(ctx context.Context, node *corev1.Node, o metav1.CreateOptions) (*corev1.Node, error) {
	created := &corev1.Node{}
	err := c.rest.Post().Resource(nodesResource).VersionedParams(&o, c.parameters).Body(node).Do(ctx).Into(created)
	return created, err
}

func (c *nodeClient) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return c.rest.Delete().Resource(nodesResource).Name(name).Body(&o).Do(ctx).Error()
}

func (c *nodeClient) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Node, error) {
	node := &corev1.Node{}
	err := c.rest.Get().Resource(nodesResource).Name(name).VersionedParams(&o, c.parameters).Do(ctx).Into(node)
	return node, err
}

func (c *nodeClient) List(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	list := &corev1.NodeList{}
	err := c.rest.Get().Resource(nodesResource).VersionedParams(&o, c.parameters).Timeout(timeoutOf(o)).Do(ctx).Into(list)
	return list, err
}

func (c *nodeClient) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return c.rest.Get().Resource(nodesResource).VersionedParams(&o, c.parameters).Timeout(timeoutOf(o)).Watch(ctx)
}

// timeoutOf returns the timeout of a list or watch, or zero.
func timeoutOf(o metav1.ListOptions) time.Duration {
	if o.TimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*o.TimeoutSeconds) * time.Second
}
