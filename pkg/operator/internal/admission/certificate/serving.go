// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/controller"
)

// errMissing fails handshakes until the Secret has a certificate.
var errMissing = errors.New("the webhook has no serving certificate yet")

// Serving is the certificate with which this replica serves the webhook. The zero
// value is ready for use. It is safe for concurrent use.
type Serving struct {
	current atomic.Pointer[tls.Certificate]
}

// Watch updates the certificate from the Secret that secrets watches. It returns
// the registration of its event handler. If the Secret is missing or invalid, the
// last certificate stays in force.
func (s *Serving) Watch(ctx context.Context, secrets cache.SharedIndexInformer) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := secrets.AddEventHandler(controller.OnChange(func(_, after *corev1.Secret) {
		if after == nil {
			return
		}
		certificate, err := tls.X509KeyPair(after.Data[corev1.TLSCertKey], after.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			klog.FromContext(ctx).Error(err, "Certificate of the admission webhook is invalid, keeping the last one", "secret", klog.KObj(after))
			return
		}
		s.current.Store(&certificate)
	}))
	if err != nil {
		return nil, fmt.Errorf("watch the certificate of the admission webhook: %w", err)
	}
	return registration, nil
}

// GetCertificate returns the certificate in force.
func (s *Serving) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if certificate := s.current.Load(); certificate != nil {
		return certificate, nil
	}
	return nil, errMissing
}
