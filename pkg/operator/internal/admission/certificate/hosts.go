// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"fmt"
	"net/url"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"
)

// hostsOf returns the sorted names and addresses by which the API server calls the
// webhooks of a configuration, and more. The host of a Service is name.namespace.svc.
func hostsOf(configuration *admissionregistrationv1.ValidatingWebhookConfiguration, more []string) ([]string, error) {
	hosts := slices.Clone(more)
	for _, webhook := range configuration.Webhooks {
		if service := webhook.ClientConfig.Service; service != nil {
			hosts = append(hosts, service.Name+"."+service.Namespace+".svc")
			continue
		}
		address, err := url.Parse(ptr.Deref(webhook.ClientConfig.URL, ""))
		if err != nil || address.Hostname() == "" {
			return nil, fmt.Errorf("webhook %s of configuration %s has neither a service nor a URL with a host", webhook.Name, configuration.Name)
		}
		hosts = append(hosts, address.Hostname())
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}
