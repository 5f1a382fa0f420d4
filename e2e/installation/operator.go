// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
)

// Operator has the name, ports and flags of an operator process.
type Operator struct {
	// Component is the name it runs under, such as "operator".
	Component string
	// HTTPPort serves health and metrics. Zero means any free port.
	HTTPPort int
	// WebhookPort serves the admission webhook. Zero means the port that the API server calls for
	// the operator that is started first, and any free port for other operators.
	WebhookPort int
	// Server is the URL at which the operator reaches the API server. Empty
	// means the API server's own.
	Server string
	// Flags are added to the command line.
	Flags []string
}

// URL is where the operator serves health and metrics.
func (o Operator) URL() string { return "http://" + address(o.HTTPPort) }

// WebhookURL is where the operator serves the admission webhook.
func (o Operator) WebhookURL() string { return webhookURL(o.WebhookPort) }

func webhookURL(port int) string { return "https://" + address(port) + "/validate" }

// StartOperator runs an operator as a kubelet would run a Pod of its Deployment, with the
// rights of its ServiceAccount and nothing more. It returns the operator with its ports
// filled in once its caches have synced. Several may run: one leads.
//
// The Deployment defines the arguments, the environment and the ServiceAccount. Flags replace only
// the values that a Pod gets from its Node or its network.
func (n *Installation) StartOperator(ctx context.Context, o Operator) (Operator, error) {
	if o.WebhookPort == 0 && !n.webhookServed {
		o.WebhookPort = n.webhook
	}
	n.webhookServed = true
	if err := controlplane.FillInPorts([]*int{&o.HTTPPort, &o.WebhookPort}); err != nil {
		return o, err
	}
	c, err := n.operatorContainer(ctx, o.Component)
	if err != nil {
		return o, err
	}
	token, err := requestToken(ctx, n.client, n.namespace, c.serviceAccount)
	if err != nil {
		return o, err
	}
	kubeconfig, err := n.cp.KubeconfigThrough(cmp.Or(o.Server, n.cp.Server()), o.Component, token)
	if err != nil {
		return o, err
	}
	workload, err := n.workloadFlags(ctx, o.Component)
	if err != nil {
		return o, err
	}
	_, err = n.cp.Run(ctx, controlplane.Spec{
		Name: o.Component,
		Argv: slices.Concat([]string{n.options.Operator}, c.args, []string{
			"--kubeconfig", kubeconfig,
			"--http-address", address(o.HTTPPort),
			"--webhook-address", address(o.WebhookPort),
			// Metric reads without TLS: for a scrape over TLS the operator makes two requests, and
			// tests count its requests.
			"--metrics-address", "",
			"--capi-kubeconfig-server", n.cp.Server(),
		}, workload, o.Flags),
		// The shard servers read their configuration from a folder, every two seconds. It is no flag,
		// because the previous version of the operator would refuse it.
		Env:   append(slices.Clone(c.env), "NSTANCE_IMPORT_DELAY=5s"),
		Ports: []int{o.HTTPPort, o.WebhookPort},
		Ready: controlplane.Probe{URL: o.URL() + c.readinessPath},
	})
	return o, err
}

// requestToken requests a token of a ServiceAccount with the lifetime of the certificates:
// nothing renews it, as the kubelet does for a Pod.
func requestToken(ctx context.Context, client kubernetes.Interface, namespace, account string) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(certificateLifetime.Seconds())),
	}}
	response, err := client.CoreV1().ServiceAccounts(namespace).
		CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request a token of ServiceAccount %s/%s: %w", namespace, account, err)
	}
	return response.Status.Token, nil
}

// deploymentName and containerName are the names in the operator's manifests.
const (
	deploymentName = "nstance-operator"
	containerName  = "manager"
)

// container has the fields that a kubelet would read from a Pod to run its container.
type container struct {
	serviceAccount string
	args, env      []string
	readinessPath  string
}

// operatorContainer returns the operator's container of the Deployment that the API server
// has. The Pod has the name pod.
func (n *Installation) operatorContainer(ctx context.Context, pod string) (*container, error) {
	deployment, err := n.client.AppsV1().Deployments(n.namespace).Get(ctx, deploymentName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get Deployment %s/%s: %w", n.namespace, deploymentName, err)
	}
	c, err := newContainer(deployment, pod)
	if err != nil {
		return nil, fmt.Errorf("read container %s of Deployment %s/%s: %w", containerName, n.namespace, deploymentName, err)
	}
	return c, nil
}

func newContainer(deployment *appsv1.Deployment, pod string) (*container, error) {
	spec := deployment.Spec.Template.Spec
	i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == containerName })
	if i < 0 {
		return nil, errors.New("not found")
	}
	c := spec.Containers[i]
	if c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet == nil {
		return nil, errors.New("no readiness probe by HTTP")
	}
	if len(c.Command) > 0 || len(c.EnvFrom) > 0 {
		return nil, errors.New("command and envFrom are not supported")
	}
	result := &container{serviceAccount: spec.ServiceAccountName, readinessPath: c.ReadinessProbe.HTTPGet.Path}
	var references []string
	for _, variable := range c.Env {
		value := strings.NewReplacer(references...).Replace(variable.Value)
		if variable.ValueFrom != nil {
			var err error
			if value, err = downward(variable.ValueFrom, deployment, pod); err != nil {
				return nil, fmt.Errorf("variable %s: %w", variable.Name, err)
			}
		}
		result.env = append(result.env, variable.Name+"="+value)
		references = append(references, "$("+variable.Name+")", value)
	}
	for _, arg := range c.Args {
		result.args = append(result.args, strings.NewReplacer(references...).Replace(arg))
	}
	return result, nil
}

// downward returns a field of the Pod.
func downward(source *corev1.EnvVarSource, deployment *appsv1.Deployment, pod string) (string, error) {
	if source.FieldRef == nil {
		return "", errors.New("only fields of the Pod are supported")
	}
	switch path := source.FieldRef.FieldPath; path {
	case "metadata.namespace":
		return deployment.Namespace, nil
	case "metadata.name":
		return pod, nil
	case "spec.serviceAccountName":
		return deployment.Spec.Template.Spec.ServiceAccountName, nil
	default:
		return "", fmt.Errorf("field %s is not supported", path)
	}
}
