// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clusterdns

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// lookup returns the IPv4 addresses of a name, and false if there is no such name: for
// SERVICE.NAMESPACE.svc.cluster.local those of the endpoints of a headless Service that are
// ready, which includes others if the Service says so, or that of any other Service.
func (s *server) lookup(name string) (addresses [][4]byte, found bool, err error) {
	service, found := strings.CutSuffix(strings.ToLower(name), ".svc."+Domain+".")
	if !found {
		return nil, false, nil
	}
	service, namespace, found := strings.Cut(service, ".")
	if !found {
		return nil, false, nil
	}
	object, err := s.services.Services(namespace).Get(service)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if object.Spec.ClusterIP != corev1.ClusterIPNone {
		return ipv4(object.Spec.ClusterIP), true, nil
	}
	list, err := s.endpointSlices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}))
	if err != nil {
		return nil, false, err
	}
	for _, slice := range list {
		for _, endpoint := range slice.Endpoints {
			if ptr.Deref(endpoint.Conditions.Ready, true) {
				addresses = append(addresses, ipv4(endpoint.Addresses...)...)
			}
		}
	}
	return addresses, true, nil
}

// ipv4 returns those of the addresses that are of IPv4.
func ipv4(addresses ...string) [][4]byte {
	var parsed [][4]byte
	for _, text := range addresses {
		if address, err := netip.ParseAddr(text); err == nil && address.Is4() {
			parsed = append(parsed, address.As4())
		}
	}
	return parsed
}
