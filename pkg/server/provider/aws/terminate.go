// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"errors"
	"fmt"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/machines"
)

// Terminate terminates instances, and one of them alone if the others could not be
// terminated because of it.
func (a *API) Terminate(ctx context.Context, list []machines.Machine) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	errs := map[string]error{}
	byID := map[string]machines.Machine{}
	var ids []string
	for _, m := range list {
		found, err := a.toTerminate(ctx, m)
		if err != nil {
			errs[m.ID] = fmt.Errorf("terminate the instance of %s: %w", m.ID, err)
			continue
		}
		for _, id := range found {
			byID[id] = m
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return errs
	}
	a.step("terminate the instance")
	a.terminate(ctx, ids, func(id string, err error) {
		m := byID[id]
		switch {
		case err != nil:
			errs[m.ID] = fmt.Errorf("terminate instance %s of %s: %w", id, m.ID, err)
		case m.State == instance.Failed:
			a.end(id)
		}
	})
	a.step("return")
	return errs
}

// toTerminate returns the ids of the instances of a machine. The launch of one without a
// provider id was only known from its token. The error wraps machines.ErrNotFound if the
// service does not know any.
func (a *API) toTerminate(ctx context.Context, m machines.Machine) ([]string, error) {
	if m.ProviderID != "" {
		id, err := instanceID(m.ProviderID)
		return []string{id}, err
	}
	all, err := a.describe(ctx, append(a.filters(), filter("tag:"+tagInstanceID, m.ID)))
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, machines.ErrNotFound
	}
	var ids []string
	for n := range all {
		if state := all[n].State; state == nil || state.Name != types.InstanceStateNameTerminated {
			ids = append(ids, awssdk.ToString(all[n].InstanceId))
		}
	}
	return ids, nil
}

// terminate terminates instances and reports the result of each. If the service refuses a
// call because of some of them, it has terminated none.
func (a *API) terminate(ctx context.Context, ids []string, report func(id string, err error)) {
	_, err := a.calls.terminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: ids})
	switch {
	case err == nil:
	case codeOf(err) == codeNotFound && len(ids) == 1:
		err = fmt.Errorf("%w: %w", machines.ErrNotFound, err) // or is not visible yet
	case isRefusal(err) && len(ids) > 1 && codeOf(err) != codeUnauthorized && !errors.Is(classify(err), machines.ErrThrottled):
		bad, others := named(err, ids)
		for _, some := range [][]string{bad, others} {
			if len(some) > 0 {
				a.terminate(ctx, some, report)
			}
		}
		return
	}
	for _, id := range ids {
		report(id, classify(err))
	}
}

// named divides ids in those that an error names and the others. If it names none or all,
// they are two halves.
func named(err error, ids []string) (bad, others []string) {
	mentioned := map[string]bool{}
	for _, id := range mentions.FindAllString(err.Error(), -1) {
		mentioned[id] = true
	}
	for _, id := range ids {
		if mentioned[id] {
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

// end notes that an instance that has failed was terminated: the service shows it for some
// time.
func (a *API) end(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended[id] = time.Now()
}
