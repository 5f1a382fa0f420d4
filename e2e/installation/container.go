// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deploymentName and containerName are those of the operator's manifests.
const (
	deploymentName = "nstance-operator"
	containerName  = "manager"
)

// container is what a kubelet would read of a Pod to run a container of it.
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
