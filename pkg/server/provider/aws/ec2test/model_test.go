// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test_test

import (
	"net/url"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
)

// needModel skips a test without a model of botocore, or fails it with make test-moto.
func needModel(t *testing.T, model *ec2test.Model, service string) {
	t.Helper()
	switch {
	case model != nil:
	case os.Getenv("NSTANCE_TEST_MOTO") != "":
		t.Fatalf("no model of %s was found: make test-moto installs botocore", service)
	default:
		t.Skipf("NOT TESTED: botocore is not installed, so that no call of the provider was compared with its model of %s", service)
	}
}

// TestModel: what the model of botocore refuses.
func TestModel(t *testing.T) {
	model := ec2test.LoadModel(t)
	needModel(t, model, "EC2")
	valid := url.Values{
		"Action": {"RunInstances"}, "Version": {"2016-11-15"}, "MinCount": {"1"}, "MaxCount": {"1"}, "MetadataOptions.HttpTokens": {"required"},
		"TagSpecification.1.ResourceType": {"instance"}, "TagSpecification.1.Tag.1.Key": {"a"},
	}
	require.NoError(t, model.Check("RunInstances", valid))
	for name, tc := range map[string]struct{ name, value, want string }{
		"an unknown parameter": {"ClientTokens", "a", "RunInstances has no parameter ClientTokens"},
		"no number":            {"MinCount", "one", `RunInstances.MinCount: "one" is no number`},
		"an enumeration":       {"MetadataOptions.HttpTokens", "always", `RunInstances.MetadataOptions.HttpTokens: "always" is none of`},
		"a gap in a list":      {"SecurityGroupId.2", "sg-1", "RunInstances.SecurityGroupId has no element 2"},
		"a member of a text":   {"ImageId.Id", "a", "RunInstances.ImageId has no members"},
		"a text as a list":     {"SecurityGroupId", "sg-1", "RunInstances.SecurityGroupId is a list"},
		"no boolean":           {"EbsOptimized", "yes", "is neither true nor false"},
	} {
		t.Run(name, func(t *testing.T) {
			form := url.Values{}
			for key, values := range valid {
				form[key] = values
			}
			form.Set(tc.name, tc.value)
			require.ErrorContains(t, model.Check("RunInstances", form), tc.want)
		})
	}
	form := url.Values{"Action": {"RunInstances"}, "MinCount": {"1"}}
	require.ErrorContains(t, model.Check("RunInstances", form), "RunInstances lacks MaxCount")
	assert.Error(t, model.Check("RunMachines", form))
}

// TestModelOfLoadBalancers has lists of another form.
func TestModelOfLoadBalancers(t *testing.T) {
	model, err := ec2test.ReadModel("elbv2/2015-12-01", "")
	require.NoError(t, err)
	needModel(t, model, "load balancers")
	form := url.Values{"Action": {"RegisterTargets"}, "TargetGroupArn": {"a"}, "Targets.member.1.Id": {"i-1"}, "Targets.member.1.Port": {"80"}}
	require.NoError(t, model.Check("RegisterTargets", form))
	form.Set("Targets.member.1.Port", "65536")
	require.ErrorContains(t, model.Check("RegisterTargets", form), "is too short, long, small or large")
	form = url.Values{"Action": {"RegisterTargets"}, "TargetGroupArn": {"a"}, "Targets.1.Id": {"i-1"}}
	require.ErrorContains(t, model.Check("RegisterTargets", form), "RegisterTargets.Targets has no member")
	form = url.Values{"Action": {"RegisterTargets"}, "TargetGroupArn": {"a"}}
	require.ErrorContains(t, model.Check("RegisterTargets", form), "RegisterTargets lacks Targets")
}
