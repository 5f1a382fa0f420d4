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

// errMissing is the reason of a handshake before there was a certificate.
var errMissing = errors.New("the webhook has no serving certificate yet")

// Serving is the certificate that this replica serves the webhook with. It is
// ready for use as it is and safe for concurrent use.
type Serving struct {
	current atomic.Pointer[tls.Certificate]
}

// Watch has the certificate follow the Secret that secrets watches, and returns
// the registration for waiting until it has seen it. A Secret that is gone or
// damaged changes nothing: what was last in force stays.
func (s *Serving) Watch(ctx context.Context, secrets cache.SharedIndexInformer) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := secrets.AddEventHandler(controller.OnChange(func(_, after *corev1.Secret) {
		if after == nil {
			return
		}
		certificate, err := tls.X509KeyPair(after.Data[corev1.TLSCertKey], after.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			klog.FromContext(ctx).Error(err, "Certificate of the admission webhook cannot be used, keeping the last one", "secret", klog.KObj(after))
			return
		}
		s.current.Store(&certificate)
	}))
	if err != nil {
		return nil, fmt.Errorf("watch the certificate of the admission webhook: %w", err)
	}
	return registration, nil
}

// GetCertificate is the certificate in force, for each new connection.
func (s *Serving) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if certificate := s.current.Load(); certificate != nil {
		return certificate, nil
	}
	return nil, errMissing
}
