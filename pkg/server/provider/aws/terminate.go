// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"fmt"
	"slices"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"nstance.dev/operator/pkg/server/provider/cloud"
)

// Terminate terminates instances in one call.
func (a *API) Terminate(ctx context.Context, list []cloud.VM) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	errs := map[string]error{}
	byID := map[string]cloud.VM{}
	var ids []string
	for _, vm := range list {
		found, err := a.toTerminate(ctx, vm)
		if err != nil {
			errs[vm.ID] = fmt.Errorf("terminate the instance of %s: %w", vm.ID, err)
			continue
		}
		for _, id := range found {
			byID[id] = vm
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return errs
	}
	size := len(ids)
	if len(list) == 1 {
		size = 1 // the caller cannot divide a call for one VM
	}
	a.step("terminate the instance")
	report := func(id string, err error) {
		if vm := byID[id]; err != nil {
			errs[vm.ID] = fmt.Errorf("terminate instance %s of %s: %w", id, vm.ID, err)
		}
	}
	for some := range slices.Chunk(ids, size) {
		a.terminate(ctx, some, report)
	}
	a.step("return")
	return errs
}

// toTerminate returns the EC2 ids of a VM. It searches by tags if the VM has no provider id:
// then only the token has shown that it was launched. The error wraps cloud.ErrNotFound if
// EC2 does not know the VM.
func (a *API) toTerminate(ctx context.Context, vm cloud.VM) ([]string, error) {
	if vm.ProviderID != "" {
		id, err := instanceID(vm.ProviderID)
		return []string{id}, err
	}
	all, err := a.describe(ctx, append(a.filters(), filter("tag:"+tagInstanceID, vm.ID)))
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, cloud.ErrNotFound
	}
	var ids []string
	for n := range all {
		if state := all[n].State; state == nil || state.Name != types.InstanceStateNameTerminated {
			ids = append(ids, awssdk.ToString(all[n].InstanceId))
		}
	}
	return ids, nil
}

// terminate terminates instances and reports the result of each. If EC2 refuses the call
// because of one instance, it terminates none.
func (a *API) terminate(ctx context.Context, ids []string, report func(id string, err error)) {
	_, err := a.calls.terminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: ids})
	err = classify(err)
	isMissing := codeOf(err) == codeNotFound
	bad := mentioned(err, ids)
	for _, id := range ids {
		switch {
		case !isRefusal(err) || isAccess(err):
			report(id, err)
		case isMissing && (len(ids) == 1 || bad[id]):
			report(id, fmt.Errorf("%w: %w", cloud.ErrNotFound, err)) // or it is not visible yet
		case len(ids) == 1 || bad[id] && len(bad) < len(ids):
			report(id, fmt.Errorf("%w: %w", cloud.ErrRefused, err))
		default:
			report(id, fmt.Errorf("%w: %w", cloud.ErrRefusedTogether, err))
		}
	}
}

// mentioned returns the ids that an error contains.
func mentioned(err error, ids []string) map[string]bool {
	found := map[string]bool{}
	if err != nil {
		for _, id := range mentions.FindAllString(err.Error(), -1) {
			if slices.Contains(ids, id) {
				found[id] = true
			}
		}
	}
	return found
}

// splitNamed divides ids into the ids that an error names and the others. If the error names
// no id or all ids, it returns two halves.
func splitNamed(err error, ids []string) (bad, others []string) {
	found := mentioned(err, ids)
	for _, id := range ids {
		if found[id] {
			bad = append(bad, id)
		} else {
			others = append(others, id)
		}
	}
	if len(bad) == 0 || len(others) == 0 {
		return ids[:len(ids)/2], ids[len(ids)/2:]
	}
	return bad, others
}
