// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test_test

import (
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
)

const (
	subnet = "subnet-01234567"
	image  = "ami-01234567"
)

// newRegion returns a region with one subnet, image and type.
func newRegion(t *testing.T) *ec2test.Server {
	s := ec2test.New()
	s.BootTime = 0
	s.AddSubnet(subnet, ec2test.Zone, 2)
	s.AddImage(ec2test.Image{ID: image, Arch: "arm64"})
	s.AddImage(ec2test.Image{ID: "ami-0000000a", Arch: "x86_64"})
	s.AddType("m7g.large", "arm64")
	s.Start(t)
	return s
}

// call makes a call, and returns the code of its error and the ids of instances in its
// response.
func call(t *testing.T, s *ec2test.Server, action string, parameters map[string]string) (code string, ids []string) {
	t.Helper()
	form := url.Values{"Action": {action}, "Version": {"2016-11-15"}}
	for name, value := range parameters {
		form.Set(name, value)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader(form.Encode()))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+ec2test.AccessKey+"/20260101/us-test-1/ec2/aws4_request, SignedHeaders=host, Signature=0")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	var document struct {
		Code     string   `xml:"Errors>Error>Code"`
		Run      []string `xml:"instancesSet>item>instanceId"`
		Describe []string `xml:"reservationSet>item>instancesSet>item>instanceId"`
	}
	require.NoError(t, xml.Unmarshal(data, &document), "%s", data)
	return document.Code, append(document.Run, document.Describe...)
}

// run returns the parameters of a launch, some of which are changed or, if empty, missing.
func run(changes ...string) map[string]string {
	p := map[string]string{
		"MinCount": "1", "MaxCount": "1", "ImageId": image, "InstanceType": "m7g.large", "SubnetId": subnet, "ClientToken": "one",
		"TagSpecification.1.ResourceType": "instance", "TagSpecification.1.Tag.1.Key": "nstance:instance-id", "TagSpecification.1.Tag.1.Value": "one",
	}
	for n := 0; n < len(changes); n += 2 {
		p[changes[n]] = changes[n+1]
		if changes[n+1] == "" {
			delete(p, changes[n])
		}
	}
	return p
}

// TestRefusals: what the service refuses by its documentation.
func TestRefusals(t *testing.T) {
	s := newRegion(t)
	many := map[string]string{}
	for n := range 51 {
		many[fmt.Sprintf("TagSpecification.1.Tag.%d.Key", n+1)] = fmt.Sprint(n)
	}
	many = merge(run(), many)
	for _, tc := range []struct {
		name, action string
		parameters   map[string]string
		want         string
	}{
		{"a long token", "RunInstances", run("ClientToken", strings.Repeat("x", 65)), "InvalidParameterValue"},
		{"much userdata", "RunInstances", run("UserData", base64.StdEncoding.EncodeToString(make([]byte, 16385))), "InvalidParameterValue"},
		{"userdata that is not encoded", "RunInstances", run("UserData", "#!"), "InvalidUserData.Malformed"},
		{"a tag of AWS", "RunInstances", run("TagSpecification.1.Tag.1.Key", "aws:x"), "InvalidParameterValue"},
		{"many tags", "RunInstances", many, "TagLimitExceeded"},
		{"a tag twice", "RunInstances", run("TagSpecification.1.Tag.2.Key", "nstance:instance-id"), "InvalidParameterValue"},
		{"a long tag", "RunInstances", run("TagSpecification.1.Tag.1.Value", strings.Repeat("x", 257)), "InvalidParameterValue"},
		{"another architecture", "RunInstances", run("ImageId", "ami-0000000a"), "InvalidParameterValue"},
		{"no image", "RunInstances", run("ImageId", ""), "MissingParameter"},
		{"an image that does not exist", "RunInstances", run("ImageId", "ami-00000000"), "InvalidAMIID.NotFound"},
		{"a subnet that does not exist", "RunInstances", run("SubnetId", "subnet-00000000"), "InvalidSubnetID.NotFound"},
		{"a key that does not exist", "RunInstances", run("KeyName", "x"), "InvalidKeyPair.NotFound"},
		{"a group that does not exist", "RunInstances", run("SecurityGroupId.1", "sg-00000000"), "InvalidGroup.NotFound"},
		{"a small volume", "RunInstances", run("BlockDeviceMapping.1.Ebs.VolumeSize", "1"), "InvalidBlockDeviceMapping"},
		{"an unknown filter", "DescribeInstances", map[string]string{"Filter.1.Name": "nstance", "Filter.1.Value.1": "x"}, "InvalidParameterValue"},
		{"a small page", "DescribeInstances", map[string]string{"MaxResults": "4"}, "InvalidParameterValue"},
		{"ids with pages", "DescribeInstances", map[string]string{"MaxResults": "5", "InstanceId.1": "i-00000000"}, "InvalidParameterCombination"},
		{"an id that does not exist", "DescribeInstances", map[string]string{"InstanceId.1": "i-00000000"}, "InvalidInstanceID.NotFound"},
		{"no id", "DescribeInstances", map[string]string{"InstanceId.1": "x"}, "InvalidInstanceID.Malformed"},
		{"no instance", "TerminateInstances", map[string]string{"InstanceId.1": "i-00000000"}, "InvalidInstanceID.NotFound"},
		{"no subnet", "DescribeSubnets", map[string]string{"SubnetId.1": "subnet-00000000"}, "InvalidSubnetID.NotFound"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, ids := call(t, s, tc.action, tc.parameters)
			assert.Equal(t, tc.want, code)
			assert.Empty(t, ids)
		})
	}
	assert.Empty(t, s.Made())
}

func merge(all ...map[string]string) map[string]string {
	merged := map[string]string{}
	for _, params := range all {
		maps.Copy(merged, params)
	}
	return merged
}

// TestTokens: a repeated call gives the same instance. A different call with the token is
// refused.
func TestTokens(t *testing.T) {
	s := newRegion(t)
	_, first := call(t, s, "RunInstances", run())
	require.Len(t, first, 1)
	_, again := call(t, s, "RunInstances", run())
	assert.Equal(t, first, again)
	code, _ := call(t, s, "RunInstances", run("UserData", "YQ=="))
	assert.Equal(t, "IdempotentParameterMismatch", code)
	s.Terminate("one")
	code, _ = call(t, s, "RunInstances", run())
	assert.Equal(t, "IdempotentInstanceTerminated", code)
	assert.Len(t, s.Made(), 1)

	// A launch that was refused for lack of capacity has used its token.
	s.SetFull("m7g.large", ec2test.Zone, "on-demand", true)
	code, _ = call(t, s, "RunInstances", run("ClientToken", "two"))
	assert.Equal(t, "InsufficientInstanceCapacity", code)
	code, _ = call(t, s, "RunInstances", run("ClientToken", "two", "UserData", "YQ=="))
	assert.Equal(t, "IdempotentParameterMismatch", code)
	s.SetFull("m7g.large", ec2test.Zone, "on-demand", false)
	code, _ = call(t, s, "RunInstances", run("ClientToken", "two"))
	assert.Empty(t, code)
}

// TestFaults: full subnets, quotas, hidden instances and throttling.
func TestFaults(t *testing.T) {
	s := newRegion(t)
	s.DelayVisibility(time.Hour)
	_, ids := call(t, s, "RunInstances", run())
	require.Len(t, ids, 1)
	_, listed := call(t, s, "DescribeInstances", nil)
	assert.Empty(t, listed)
	code, _ := call(t, s, "TerminateInstances", map[string]string{"InstanceId.1": ids[0]})
	assert.Equal(t, "InvalidInstanceID.NotFound", code)
	s.DelayVisibility(0)
	_, listed = call(t, s, "DescribeInstances", nil)
	assert.Equal(t, ids, listed)
	s.SetQuota("on-demand", 1)
	code, _ = call(t, s, "RunInstances", run("ClientToken", "two"))
	assert.Equal(t, "VcpuLimitExceeded", code)
	s.SetQuota("on-demand", -1)
	_, ids = call(t, s, "RunInstances", run("ClientToken", "two"))
	assert.Len(t, ids, 1)
	code, _ = call(t, s, "RunInstances", run("ClientToken", "three"))
	assert.Equal(t, "InsufficientFreeAddressesInSubnet", code)
	s.Throttle(time.Hour)
	code, _ = call(t, s, "DescribeInstances", nil)
	assert.Equal(t, "RequestLimitExceeded", code)
}
