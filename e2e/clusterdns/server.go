// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package clusterdns serves the names of Services, as the DNS of a cluster does, to the Pods of
// nodes that are containers.
package clusterdns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// Domain is the cluster domain that the kubelets are configured with (--cluster-domain).
const Domain = "cluster.local"

// ttl is how many seconds a response may be used.
const ttl = 1

// Run serves the names of the Services of a cluster at port 53 of address, until ctx is done.
func Run(ctx context.Context, client kubernetes.Interface, address net.IP) error {
	connection, err := net.ListenUDP("udp", &net.UDPAddr{IP: address, Port: 53})
	if err != nil {
		return fmt.Errorf("serve the names of Services: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	factory := informers.NewSharedInformerFactory(client, 0)
	s := &server{
		services:       factory.Core().V1().Services().Lister(),
		endpointSlices: factory.Discovery().V1().EndpointSlices().Lister(),
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	// Before the caches have synced, the response to every name would be NXDOMAIN.
	factory.WaitForCacheSync(ctx.Done())
	return s.serve(ctx, connection)
}

type server struct {
	services       corelisters.ServiceLister
	endpointSlices discoverylisters.EndpointSliceLister
}

func (s *server) serve(ctx context.Context, connection *net.UDPConn) error {
	buffer := make([]byte, 512)
	for {
		length, from, err := connection.ReadFromUDP(buffer)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a query: %w", err)
		}
		response, err := s.respond(buffer[:length])
		if err != nil {
			klog.FromContext(ctx).Error(err, "A query was ignored", "from", from)
			continue
		}
		if _, err := connection.WriteToUDP(response, from); err != nil {
			klog.FromContext(ctx).Error(err, "A response was not sent", "to", from)
		}
	}
}

// respond returns the response to a query.
func (s *server) respond(query []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, fmt.Errorf("parse the header: %w", err)
	}
	question, err := parser.Question()
	if err != nil {
		return nil, fmt.Errorf("parse the question: %w", err)
	}
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired,
			RCode: dnsmessage.RCodeNameError,
		},
		Questions: []dnsmessage.Question{question},
	}
	addresses, found, err := s.lookup(question.Name.String())
	switch {
	case err != nil:
		reply.RCode = dnsmessage.RCodeServerFailure
	case found:
		reply.RCode = dnsmessage.RCodeSuccess
	}
	if question.Type == dnsmessage.TypeA {
		for _, address := range addresses {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: ttl},
				Body:   &dnsmessage.AResource{A: address},
			})
		}
	}
	return reply.Pack()
}

// lookup returns the IPv4 addresses of SERVICE.NAMESPACE.svc.cluster.local, and false if there is
// no such Service: the cluster IP, or the ready endpoints of a headless Service, and all of them
// with publishNotReadyAddresses
// (https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/).
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

// ipv4 returns the IPv4 addresses among addresses.
func ipv4(addresses ...string) [][4]byte {
	var parsed [][4]byte
	for _, text := range addresses {
		if address, err := netip.ParseAddr(text); err == nil && address.Is4() {
			parsed = append(parsed, address.As4())
		}
	}
	return parsed
}
