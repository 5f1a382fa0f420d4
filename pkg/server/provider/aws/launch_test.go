// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestLaunch: what an instance is launched with, and that another process finds it with all
// that a record needs.
func TestLaunch(t *testing.T) {
	s := newRegion()
	s.AddLaunchTemplate("lt-0123456789abcdef0", testImage)
	inBubble(t, s, func(t *testing.T, w *world) {
		r := request(t)
		r.Origin = instance.Origin{OnDemand: true, IdempotencyKey: strings.Repeat("any\ntext é ", 80), InfraConfigHash: "abc"}
		r.Args = map[string]any{
			"image":                testImage,
			"security_groups":      []any{ec2test.SecurityGroup},
			"iam_instance_profile": "node",
			"key_name":             ec2test.KeyName,
			"root_volume":          map[string]any{"size": "20Gi", "type": "gp3", "iops": 4000.0, "throughput": 200.0, "encrypted": true, "kms_key": "alias/a"},
			"market":               "spot",
			"spot_max_price":       "0.05",
			"metadata_options":     map[string]any{"http_put_response_hop_limit": 2.0, "instance_metadata_tags": "enabled"},
			"ipv6_addresses":       1.0,
			"launch_template":      map[string]any{"id": "lt-0123456789abcdef0", "version": "$Latest"},
			"tags":                 map[string]any{"team": "one", "Name": "two"},
		}
		m := w.launch(r)
		made := w.Instance(r.ID)
		require.NotNil(t, made)
		assert.Equal(t, cloud.VM{
			ID: r.ID, ProviderID: "aws:///us-test-1a/" + made.ID, Group: workers, Origin: r.Origin, Type: testType.Name, State: instance.Pending,
			Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::0:0:1:1")}, Hostname: "ip-10-0-0-1.ec2.internal",
		}, m)
		assert.Equal(t, r.Userdata, made.Userdata)
		assert.Equal(t, []string{"instance", "volume", "network-interface", "spot-instances-request"}, made.Tagged)
		tags, encoded := map[string]string{}, 0
		for key, value := range made.Tags {
			if strings.HasPrefix(key, "nstance:idempotency-key") {
				encoded++
				continue
			}
			tags[key] = value
		}
		assert.Equal(t, map[string]string{
			"Name": "two", "team": "one", "nstance:managed": "true", "nstance:instance-id": r.ID, "nstance:cluster-id": "test", "nstance:shard": "a",
			"nstance:tenant": "default", "nstance:group": "workers", "nstance:kind": "knd", "nstance:template": "worker",
			"nstance:created-at": "2026-02-03T04:05:06Z", "nstance:on-demand": "true", "nstance:infra-config-hash": "abc",
		}, tags)
		assert.Equal(t, 5, encoded, "parts of the idempotency key")
		params := map[string]string{}
		for name, value := range made.Params {
			if !strings.HasPrefix(name, "TagSpecification") && name != "UserData" {
				params[name] = value
			}
		}
		assert.Equal(t, map[string]string{
			"ClientToken": r.ID, "MinCount": "1", "MaxCount": "1", "ImageId": testImage, "InstanceType": "m7i.large", "SubnetId": largeSubnet,
			"SecurityGroupId.1": ec2test.SecurityGroup, "IamInstanceProfile.Name": "node", "KeyName": ec2test.KeyName, "Ipv6AddressCount": "1",
			"BlockDeviceMapping.1.DeviceName": "/dev/xvda", "BlockDeviceMapping.1.Ebs.VolumeSize": "20", "BlockDeviceMapping.1.Ebs.VolumeType": "gp3",
			"BlockDeviceMapping.1.Ebs.Iops": "4000", "BlockDeviceMapping.1.Ebs.Throughput": "200", "BlockDeviceMapping.1.Ebs.Encrypted": "true",
			"BlockDeviceMapping.1.Ebs.KmsKeyId": "alias/a", "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
			"InstanceMarketOptions.MarketType": "spot", "InstanceMarketOptions.SpotOptions.MaxPrice": "0.05",
			"InstanceMarketOptions.SpotOptions.SpotInstanceType": "one-time", "InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
			"MetadataOptions.HttpTokens": "required", "MetadataOptions.HttpPutResponseHopLimit": "2", "MetadataOptions.InstanceMetadataTags": "enabled",
			"LaunchTemplate.LaunchTemplateId": "lt-0123456789abcdef0", "LaunchTemplate.Version": "$Latest",
			"InstanceInitiatedShutdownBehavior": "terminate",
		}, params)

		time.Sleep(time.Minute)
		m.State = instance.Running
		assert.Equal(t, map[string]cloud.VM{r.ID: m}, w.list())
		other, found, err := w.newAPI().Find(t.Context(), r.ID)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, m, other)
	})
}

// TestNoCallFollowsALaunch: if a second call failed, the request could be rejected although
// its instance exists.
func TestNoCallFollowsALaunch(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		r := request(t)
		r.Args = nil
		w.Calls()
		w.launch(r)
		assert.Equal(t, map[string]int{"RunInstances": 1}, w.Calls())
	})
}

// TestLaunchDefaults: without arguments, only version 2 of the metadata service is used,
// and no market is named.
func TestLaunchDefaults(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		r := request(t)
		w.launch(r)
		made := w.Instance(r.ID)
		assert.Equal(t, "required", made.Params["MetadataOptions.HttpTokens"])
		assert.Equal(t, testImage, made.Params["ImageId"])
		assert.Equal(t, "test-workers-"+r.ID, made.Tags["Name"])
		assert.Equal(t, []string{"instance", "volume", "network-interface"}, made.Tagged)
		assert.NotContains(t, made.Params, "InstanceMarketOptions.MarketType")
		r = request(t)
		r.Args = map[string]any{"metadata_options": map[string]any{"http_tokens": "optional"}}
		w.launch(r)
		assert.Equal(t, "optional", w.Instance(r.ID).Params["MetadataOptions.HttpTokens"])
	})
}

// TestImages: the newest image of the architecture is found, and not searched again for a
// while.
func TestImages(t *testing.T) {
	s := newRegion()
	for n, name := range []string{"node-2", "node-3", "other-9"} {
		s.AddImage(ec2test.Image{ID: fmt.Sprintf("ami-0000000%d", n), Owner: "123456789012", Name: name, Arch: "x86_64", Created: fmt.Sprintf("2026-02-0%dT00:00:00.000Z", n+1)})
	}
	s.AddImage(ec2test.Image{ID: "ami-0000000a", Owner: "999999999999", Name: "node-9", Arch: "x86_64", Created: "2026-03-01T00:00:00.000Z"})
	s.AddImage(ec2test.Image{ID: "ami-0000000b", Owner: "123456789012", Name: "node-9", Arch: "arm64", Created: "2026-03-01T00:00:00.000Z"})
	inBubble(t, s, func(t *testing.T, w *world) {
		launched := func() string {
			r := request(t)
			r.Args = map[string]any{"image_owners": []any{"123456789012"}, "image_filters": map[string]any{"name": "node-*"}}
			w.launch(r)
			return w.Instance(r.ID).Params["ImageId"]
		}
		assert.Equal(t, "ami-00000001", launched())
		w.AddImage(ec2test.Image{ID: "ami-0000000c", Owner: "123456789012", Name: "node-4", Arch: "x86_64", Created: "2026-02-04T00:00:00.000Z"})
		assert.Equal(t, "ami-00000001", launched())
		assert.Equal(t, 1, w.Calls()["DescribeImages"])
		time.Sleep(imageAge + time.Second)
		assert.Equal(t, "ami-0000000c", launched())

		r := request(t)
		r.Args = map[string]any{"image_owners": []any{"self"}, "image_filters": map[string]any{"name": []any{"none"}}}
		_, err := w.api.Launch(t.Context(), r)
		assert.Equal(t, cloud.Scope{Group: workers}, rejectionOf(t, err).Scope)
		require.ErrorContains(t, err, "no image of self is available with state available, architecture x86_64, name none")
	})
}

func rejectionOf(t *testing.T, err error) *cloud.Rejection {
	t.Helper()
	var rejection *cloud.Rejection
	require.ErrorAs(t, err, &rejection)
	return rejection
}

// TestRejections: which errors mean that nothing was created, and what else they concern.
func TestRejections(t *testing.T) {
	ofType := cloud.Scope{Type: testType.Name, Market: provider.MarketStandard}
	ofSpot := cloud.Scope{Type: testType.Name, Market: provider.MarketSpot}
	ofSubnet := cloud.Scope{Subnet: largeSubnet}
	ofGroup := cloud.Scope{Group: workers}
	for _, tc := range []struct {
		code   string
		status int
		spot   bool
		want   cloud.Scope
		lack   bool
	}{
		{"InsufficientInstanceCapacity", 500, false, ofType, true},
		{"InsufficientInstanceCapacity", 500, true, ofSpot, true},
		{"UnfulfillableCapacity", 400, true, ofSpot, true},
		{"InsufficientVolumeCapacity", 500, false, ofType, true},
		{"VcpuLimitExceeded", 400, false, ofType, true},
		{"InstanceLimitExceeded", 400, false, ofType, true},
		{"MaxSpotInstanceCountExceeded", 400, true, ofSpot, true},
		{"InsufficientFreeAddressesInSubnet", 400, false, ofSubnet, true},
		{"InvalidSubnetID.NotFound", 400, false, ofSubnet, false},
		{"SpotMaxPriceTooLow", 400, true, cloud.Scope{Group: workers, Type: testType.Name, Market: provider.MarketSpot}, true},
		{"Unsupported", 400, false, cloud.Scope{Group: workers, Type: testType.Name, Market: provider.MarketStandard}, false},
		{"InvalidAMIID.NotFound", 400, false, ofGroup, false},
		{"InvalidParameterValue", 400, false, ofGroup, false},
		{"UnauthorizedOperation", 403, false, ofGroup, false},
	} {
		t.Run(tc.code, func(t *testing.T) {
			inBubble(t, newRegion(), func(t *testing.T, w *world) {
				w.SetFaults(&ec2test.Fault{Before: true, Call: "RunInstances", Status: tc.status, Code: tc.code, Message: "because"})
				r := request(t)
				if tc.spot {
					r.Args = map[string]any{"market": "spot"}
				}
				_, err := w.api.Launch(t.Context(), r)
				require.ErrorContains(t, err, "because")
				assert.Equal(t, tc.want, rejectionOf(t, err).Scope)
				lack, is := provider.AsCapacityError(err)
				require.Equal(t, tc.lack, is, "a lack of capacity")
				if is {
					assert.NotContains(t, lack.Error(), r.ID)
					assert.NotContains(t, lack.Error(), "RequestID")
				}
			})
		})
	}
	// After these the instance may exist, or the same request may succeed.
	for _, tc := range []struct {
		code   string
		status int
		want   error
	}{
		{"InternalError", 500, nil},
		{"Unavailable", 503, nil},
		{"", 502, nil},
		{"", 0, nil},
		{"AuthFailure", 401, nil},
		{"ExpiredToken", 400, nil},
		{"RequestLimitExceeded", 503, cloud.ErrThrottled},
		{"IdempotentParameterMismatch", 400, cloud.ErrTokenUsed},
	} {
		t.Run(fmt.Sprint(tc.code, tc.status), func(t *testing.T) {
			inBubble(t, newRegion(), func(t *testing.T, w *world) {
				w.SetFaults(&ec2test.Fault{Before: true, Call: "RunInstances", Status: tc.status, Code: tc.code})
				_, err := w.api.Launch(t.Context(), request(t))
				require.Error(t, err)
				var rejection *cloud.Rejection
				assert.NotErrorAs(t, err, &rejection)
				for _, target := range []error{cloud.ErrThrottled, cloud.ErrTokenUsed} {
					assert.Equal(t, errors.Is(target, tc.want), errorIs(err, target), "%v is %v", err, target)
				}
			})
		})
	}
}

// TestRejectedBeforeACall: nothing is sent that the service would refuse, or that would be
// stored wrongly.
func TestRejectedBeforeACall(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*cloud.Request)
		want   string
	}{
		"userdata": {func(r *cloud.Request) { r.Userdata = incompressible(20000) },
			"with gzip, at most 16384 are allowed"},
		"a tag that cannot be in metadata": {func(r *cloud.Request) {
			r.Args = map[string]any{
				"tags": map[string]any{"kubernetes.io/cluster/prod": "owned"}, "metadata_options": map[string]any{"instance_metadata_tags": "enabled"},
			}
		}, `args.tags[kubernetes.io/cluster/prod]: Invalid value: "kubernetes.io/cluster/prod": must consist of letters`},
		"a subnet": {func(r *cloud.Request) { r.Subnet = "lan" }, `subnet "lan" must be the id of a subnet`},
		"an id":    {func(r *cloud.Request) { r.ID = "no-id" }, "no-id"},
		"a tag": {func(r *cloud.Request) {
			r.Args = map[string]any{"tags": map[string]any{"nstance:instance-id": "x"}}
		}, "tags with the prefix nstance: are the server's own"},
		"an argument": {func(r *cloud.Request) { r.Args = map[string]any{"spot": true} }, `args.spot: Unsupported value: "spot": supported values: "iam_instance_profile"`},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newRegion(), func(t *testing.T, w *world) {
				r := request(t)
				tc.change(&r)
				_, err := w.api.Launch(t.Context(), r)
				require.ErrorContains(t, err, tc.want)
				_ = rejectionOf(t, err)
				assert.Empty(t, w.Calls())
			})
		})
	}
	r := request(t)
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		r.Userdata = make([]byte, 16384)
		w.launch(r)
		assert.Equal(t, r.Userdata, w.Instance(r.ID).Userdata)
	})
	for _, shard := range []provider.Shard{{ClusterID: "Test", ID: "a", Region: "r"}, {ClusterID: "test", ID: "a--b", Region: "r"}, {ClusterID: "test", ID: "a", Region: "r/x"}} {
		_, err := NewAPI(&Options{}, shard)
		assert.Error(t, err, "%v", shard)
	}
}

// incompressible returns bytes that gzip makes no smaller.
func incompressible(size int) []byte {
	data := make([]byte, size)
	generator := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(generator.Uint32())
	}
	return data
}

// TestLargeUserdataIsCompressed: cloud-init unpacks gzip. A repeated request is the same.
func TestLargeUserdataIsCompressed(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		r := request(t)
		r.Userdata = []byte("#!/bin/sh\n" + strings.Repeat("echo 1\n", 10000))
		first := w.launch(r)
		unpacking, err := gzip.NewReader(bytes.NewReader(w.Instance(r.ID).Userdata))
		require.NoError(t, err)
		unpacked, err := io.ReadAll(unpacking)
		require.NoError(t, err)
		assert.Equal(t, string(r.Userdata), string(unpacked))
		again, err := w.newAPI().Launch(t.Context(), r)
		require.NoError(t, err)
		assert.Equal(t, first.ProviderID, again.ProviderID)
	})
}

// TestTagsInMetadata are off unless an argument turns them on, whatever the account's default is:
// controllers of AWS need tags that cannot be there.
func TestTagsInMetadata(t *testing.T) {
	s := newRegion()
	s.MetadataTags = true
	inBubble(t, s, func(t *testing.T, w *world) {
		r := request(t)
		r.Args = map[string]any{"tags": map[string]any{"kubernetes.io/cluster/prod": "owned", "with space": "x"}}
		w.launch(r)
		assert.Equal(t, "disabled", w.Instance(r.ID).Params["MetadataOptions.InstanceMetadataTags"])

		r = request(t)
		r.Args = map[string]any{"tags": map[string]any{"team": "a"}, "metadata_options": map[string]any{"instance_metadata_tags": "enabled"}}
		w.launch(r)
		assert.Equal(t, "enabled", w.Instance(r.ID).Params["MetadataOptions.InstanceMetadataTags"])
	})
}

// TestRoomOfSubnets: the free addresses without the reserve. An IPv6-only subnet reports none, and
// has room.
func TestRoomOfSubnets(t *testing.T) {
	const ipv6Subnet, elsewhere = "subnet-00000000000000006", "subnet-00000000000000007"
	s := newRegion()
	s.AddIPv6Subnet(ipv6Subnet, ec2test.Zone)
	s.AddSubnet(elsewhere, "us-test-1b", 100)
	inBubble(t, s, func(t *testing.T, w *world) {
		room := func(subnet string) int {
			free, err := w.api.Room(t.Context(), subnet)
			require.NoError(t, err)
			return free
		}
		assert.Greater(t, room(ipv6Subnet), 1000)
		r := request(t)
		r.Subnet = ipv6Subnet
		w.launch(r)
		assert.Equal(t, 2, room(smallSubnet))
		w.options.AddressReserve = 10
		assert.Equal(t, 4990, room(largeSubnet))
		assert.Zero(t, room(smallSubnet))

		_, err := w.api.Room(t.Context(), elsewhere)
		require.ErrorContains(t, err, elsewhere+" is in zone us-test-1b, and the shard in zone "+ec2test.Zone)
	})
}

// TestMarketsOfRequests: what is known before a text is rendered.
func TestMarketsOfRequests(t *testing.T) {
	for value, want := range map[any]string{nil: "Standard", "": "Standard", "spot": "Spot", "on-demand": "Standard", "{{.Vars.market}}": "", 7.0: ""} {
		s := spec()
		s.ID = providertest.NewID(t)
		if value != nil {
			s.Args = map[string]any{"market": value}
		}
		assert.Equal(t, want, market(s), "%v", value)
	}
}
