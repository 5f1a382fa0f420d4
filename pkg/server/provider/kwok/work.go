// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// work carries out one request. It returns false when the queue has shut down.
func (p *Provider) work(ctx context.Context, changed func(instance.GroupKey), failed provider.FailureFunc) bool {
	id, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(id)
	p.mu.Lock()
	request, requested := p.requests[id]
	absent, isAbsent := p.absent[id]
	p.mu.Unlock()
	if !requested && !isAbsent {
		p.queue.Forget(id)
		return true
	}
	deleted, err := p.confirm(ctx, id, changed, failed)
	if err == nil && !deleted && requested {
		err = p.carryOut(ctx, id, request, changed)
	}
	if ctx.Err() != nil {
		return false
	}
	if !requested {
		request.spec.Group = absent.vm.Group
	}
	if requested && !request.delete && isRejection(err) {
		klog.FromContext(ctx).Error(err, "Instance was rejected, will not retry", "instance", id)
		failed(request.spec.Group, id, err)
		p.queue.Forget(id)
		p.giveUp(request.spec, err)
		changed(request.spec.Group)
		return true
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Request for instance failed, will retry", "instance", id)
		failed(request.spec.Group, id, err)
		p.queue.AddRateLimited(id)
		return true
	}
	p.queue.Forget(id)
	return true
}

// carryOut makes one call to the API server. The queue never gives an id to two
// workers, so a deletion cannot overtake a running creation.
func (p *Provider) carryOut(ctx context.Context, id string, request request, changed func(instance.GroupKey)) error {
	if p.config.CallContext != nil {
		callCtx, cancel := p.config.CallContext(ctx)
		defer cancel()
		if err := deadline.Check(callCtx); err != nil {
			return fmt.Errorf("instance %s: %w", id, errors.Join(err, context.Cause(callCtx)))
		}
		ctx = callCtx
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nodes := p.config.Client

	if !request.delete {
		// An attempt whose response was lost may have created the Node.
		_, err := nodes.Create(ctx, p.newNode(request.spec), metav1.CreateOptions{FieldManager: fieldManager})
		if apierrors.IsAlreadyExists(err) {
			_, err = p.find(ctx, request.spec)
		}
		if err != nil {
			return fmt.Errorf("create Node %s: %w", id, err)
		}
		// The request stays until the watch shows the Node. A Node that another
		// client deletes before that must be created again.
		p.queue.AddAfter(id, confirmTimeout)
		return nil
	}
	uid, err := p.uidOf(ctx, request.spec)
	if err == nil {
		// Not another Node that has the name by now.
		err = nodes.Delete(ctx, id, *metav1.NewPreconditionDeleteOptions(string(uid)))
	}
	switch {
	case apierrors.IsNotFound(err), errors.Is(err, errForeignNode):
		if p.settle(id) {
			changed(request.spec.Group)
			break
		}
		// The cache has the Node: the watch is late, or the response was wrong.
		p.queue.AddAfter(id, confirmTimeout)
	case err != nil:
		return fmt.Errorf("delete Node %s: %w", id, err)
	default:
		// The request stays until the watch shows the deletion. Otherwise a Node
		// that the watch does not show yet would reappear as a running instance.
		p.queue.AddAfter(id, confirmTimeout)
	}
	return nil
}
