// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/stock"
	"nstance.dev/operator/pkg/server/provider"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// uses returns the use of candidates that a test sets.
type uses []stock.Use

func (u uses) Uses(*groups.Group, []instance.Instance) []stock.Use { return u }

// cpuNodes expects a Node with as many CPUs as the name of the instance type says.
type cpuNodes struct{}

func (cpuNodes) ExpectedNode(spec provider.Spec) *corev1.Node {
	node := &corev1.Node{}
	node.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse(spec.Type.Name)}
	return node
}

func TestCandidateUseIsReported(t *testing.T) {
	s := &shard{groups: map[instance.GroupKey]*groups.Group{}, instances: map[instance.GroupKey][]instance.Instance{}}
	variants := []groups.Variant{
		{Name: "base", InstanceType: "8", Market: provider.MarketStandard, Type: provider.InstanceType{Name: "8"}},
		{Name: "spot", InstanceType: "4", Market: provider.MarketSpot, Type: provider.InstanceType{Name: "4"}},
	}
	c := NewStatusCache(StatusOptions{Groups: s, Instances: s, Nodes: cpuNodes{}, Candidates: uses{
		{Variant: &variants[0], Instances: 2}, {Variant: &variants[1], Unavailable: "caf\xe9"},
	}})
	s.groups[key("workers")] = &groups.Group{Key: key("workers"), Variants: variants}
	c.Refresh(key("workers"))
	got := c.list()[0]
	want := []*nstancev1.CandidateUse{
		{Name: "base", InstanceType: "8", Market: "Standard", Instances: 2},
		{Name: "spot", InstanceType: "4", Market: "Spot", Unavailable: "caf\uFFFD"},
	}
	assert.Empty(t, cmp.Diff(want, got.CandidateUse, protocmp.Transform()))
	assert.Equal(t, "4", got.Node.Capacity["cpu"], "the smallest")
}

// fullTypes are the instance types without capacity.
type fullTypes map[string]bool

func (f fullTypes) CheckCapacity(spec provider.Spec) error {
	if f[spec.Type.Name] {
		return provider.OutOfCapacity("no %s", spec.Type.Name)
	}
	return nil
}

// An on-demand instance is declined if all candidates lack capacity, or its own type does.
func TestOnDemandInstanceOfCandidatesIsDeclined(t *testing.T) {
	s := newService(t)
	full := fullTypes{}
	s.Capacity = full
	group, found := s.Store.Get(key("plain"))
	require.True(t, found)
	own, other := group.InstanceType, "c7i.large"
	require.NotEqual(t, own, other)
	_, _, err := s.Store.Upsert(t.Context(), key("plain"), groups.Change{
		Settings: groups.Settings{Candidates: []candidates.Candidate{{Name: "own"}, {Name: "other", InstanceType: other}}}, Size: group.Size,
	})
	require.NoError(t, err)
	create := func(instanceType string) codes.Code {
		_, err := s.CreateInstance(s.ctx(), &nstancev1.CreateInstanceRequest{Config: &nstancev1.InstanceConfig{Group: "plain", InstanceType: instanceType}})
		return status.Code(err)
	}
	full[own] = true
	assert.Equal(t, codes.OK, create(""))
	assert.Equal(t, codes.ResourceExhausted, create(own), "a list of one")
	full[other] = true
	assert.Equal(t, codes.ResourceExhausted, create(""))
}
