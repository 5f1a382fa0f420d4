// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// capiUser is the ServiceAccount with which clusterctl installs the manager. Admission
// policies know it by this name.
const capiUser = "system:serviceaccount:capi-system:capi-manager"

// startCAPI runs the Cluster API core manager with its webhooks. The manager needs
// the CRDs in order to start; the webhooks are configured once it answers.
func (cp *ControlPlane) startCAPI(ctx context.Context) error {
	config := filepath.Join(cp.binaries.CAPIModule, "core", "config")
	crds, err := cp.capiObjects(filepath.Join(config, "crd"))
	if err != nil {
		return err
	}
	webhooks, err := cp.capiObjects(filepath.Join(config, "webhook"))
	if err != nil {
		return err
	}
	if err := Apply(ctx, cp.config, CAPI, crds); err != nil {
		return err
	}
	if err := cp.runCAPI(ctx); err != nil {
		return err
	}
	return Apply(ctx, cp.config, CAPI, webhooks)
}

func (cp *ControlPlane) runCAPI(ctx context.Context) error {
	kubeconfig, err := cp.Kubeconfig(capiUser)
	if err != nil {
		return err
	}
	certs, err := cp.authority.serving(CAPI)
	if err != nil {
		return err
	}
	health := address(cp.ports.CAPIHealth)
	_, err = cp.Run(ctx, Spec{
		Name: CAPI,
		Argv: append([]string{
			cp.binaries.CAPI,
			"--kubeconfig=" + kubeconfig,
			"--leader-elect=false",
			"--webhook-cert-dir=" + certs,
			"--webhook-port=" + strconv.Itoa(cp.ports.CAPIWebhook),
			"--health-addr=" + health,
			"--diagnostics-address=" + address(cp.ports.CAPIDiagnostics),
			"--insecure-diagnostics",
		}, cp.capiFlags...),
		// The manager looks for a Pod of this name to find out whether it runs on the cluster that
		// it manages. It does not.
		Env: []string{
			"POD_NAMESPACE=capi-system",
			"POD_NAME=capi-controller-manager",
			"POD_UID=00000000-0000-0000-0000-000000000000",
		},
		Ports: []int{cp.ports.CAPIWebhook, cp.ports.CAPIHealth, cp.ports.CAPIDiagnostics},
		Ready: Probe{URL: "http://" + health + "/readyz"},
	})
	return err
}

// capiObjects builds a kustomization of Cluster API and directs every admission
// webhook in it to the manager's port on this machine. The manager's Service is left
// out, and so are unused versions of its kinds.
func (cp *ControlPlane) capiObjects(dir string) ([]*unstructured.Unstructured, error) {
	objects, err := Render(dir)
	if err != nil {
		return nil, err
	}
	var kept []*unstructured.Unstructured
	for _, object := range objects {
		switch object.GetKind() {
		case "Service":
			continue
		case crdKind:
			err = keepStoredVersion(object)
		default:
			err = cp.redirectWebhooks(object)
		}
		if err != nil {
			return nil, fmt.Errorf("adapting %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		kept = append(kept, object)
	}
	return kept, nil
}

// keepStoredVersion removes all versions of a CRD but the stored version, so that nothing is
// converted. The API server has a cache of each version, for which the manager converts every
// changed object: with hundreds of Machines the conversions are most of the work of both.
func keepStoredVersion(crd *unstructured.Unstructured) error {
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		return err
	}
	versions = slices.DeleteFunc(versions, func(version any) bool {
		fields, _ := version.(map[string]any)
		return fields["storage"] != true
	})
	unstructured.RemoveNestedField(crd.Object, "spec", "conversion")
	return unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions")
}

// redirectWebhooks rewrites the client configurations of admission webhooks.
func (cp *ControlPlane) redirectWebhooks(object *unstructured.Unstructured) error {
	webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, webhook := range webhooks {
		fields, ok := webhook.(map[string]any)
		if !ok {
			return fmt.Errorf("a webhook is a %T, not a map", webhook)
		}
		if err := cp.redirect(fields); err != nil {
			return err
		}
	}
	return unstructured.SetNestedSlice(object.Object, webhooks, "webhooks")
}

func (cp *ControlPlane) redirect(webhook map[string]any) error {
	path, found, err := unstructured.NestedString(webhook, "clientConfig", "service", "path")
	if err != nil {
		return err
	}
	if !found {
		return errors.New("no path of a service in its client configuration")
	}
	webhook["clientConfig"] = map[string]any{
		"url":      "https://" + address(cp.ports.CAPIWebhook) + path,
		"caBundle": base64.StdEncoding.EncodeToString(cp.authority.caPEM()),
	}
	return nil
}
