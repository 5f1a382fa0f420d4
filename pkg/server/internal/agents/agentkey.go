// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
)

// keyGrace is how long a replaced key is accepted: the agent moves its streams to a connection
// with the next key (docs/protocol.md#certificates).
const keyGrace = 10 * time.Minute

// withNextKey returns the registration of a certificate for a key, which may be another key than
// the present one. The present key stays valid until the agent has used the next one.
func withNextKey(present instance.Registration, keyPEM string) instance.Registration {
	present.NextPublicKeyPEM = ""
	if keyPEM != present.PublicKeyPEM {
		present.NextPublicKeyPEM = keyPEM
	}
	return present
}

// withUsedKey returns the registration after the agent has used a key. The error is
// instancestore.ErrOtherKey if the key is neither the present nor the next one.
func withUsedKey(present instance.Registration, keyPEM string, now time.Time) (instance.Registration, error) {
	switch keyPEM {
	case present.PublicKeyPEM:
		return present, nil
	case present.NextPublicKeyPEM:
		present.PreviousPublicKeyPEM, present.PreviousUntil = present.PublicKeyPEM, now.Add(keyGrace)
		present.PublicKeyPEM, present.NextPublicKeyPEM = keyPEM, ""
		return present, nil
	}
	return present, instancestore.ErrOtherKey
}

// isPrevious reports whether a key was replaced a short time ago.
func isPrevious(present *instance.Registration, keyPEM string, now time.Time) bool {
	return keyPEM == present.PreviousPublicKeyPEM && now.Before(present.PreviousUntil)
}

// useKey stores that the agent of a registered instance has used a key, if it is not the present
// one.
func (r *Registrar) useKey(ctx context.Context, i *instance.Instance, keyPEM string) error {
	if keyPEM == i.Registration.PublicKeyPEM || isPrevious(i.Registration, keyPEM, time.Now()) {
		return nil
	}
	if keyPEM != i.Registration.NextPublicKeyPEM {
		return fmt.Errorf("%w: %w", ErrInstance, instancestore.ErrOtherKey)
	}
	var used instance.Registration
	err := r.Instances.Register(ctx, i.ID, func(present *instance.Registration) (instance.Registration, error) {
		if present == nil {
			return instance.Registration{}, instancestore.ErrOtherKey
		}
		var err error
		used, err = withUsedKey(*present, keyPEM, time.Now())
		return used, err
	})
	switch {
	case isRefused(err):
		return fmt.Errorf("%w: %w", ErrInstance, err)
	case err != nil:
		return fmt.Errorf("store the key of the agent of instance %s: %w", i.ID, err)
	}
	klog.FromContext(ctx).Info("The agent uses its next key", "instance", i.ID)
	i.Registration = &used
	return nil
}
