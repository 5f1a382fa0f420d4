// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// motoEnv is the environment variable without which the tests with moto and the AWS CLI are
// skipped: make test-moto sets it.
const motoEnv = "NSTANCE_TEST_MOTO"

// motoZone is a zone where moto has a subnet.
const motoZone = "us-west-2a"

// program returns the path of a program of Python, which make test-moto installs.
func program(t *testing.T, name string) string {
	t.Helper()
	if os.Getenv(motoEnv) == "" {
		t.Skipf("NOT TESTED with moto and the AWS CLI: %s is not set (make test-moto)", motoEnv)
	}
	path, err := exec.LookPath(name)
	require.NoError(t, err)
	return path
}

// startMoto starts moto and returns its address. It stops with the test.
func startMoto(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(program(t, "moto_server"), "-H", "127.0.0.1", "-p", "0")
	cmd.Env = append(os.Environ(), "MOTO_ENABLE_AMI_VALIDATION=true", "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION=true", "PYTHONUNBUFFERED=1")
	output, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // the error is that it was killed
	})
	address := regexp.MustCompile(`http://127\.0\.0\.1:[0-9]+`)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if url := address.FindString(lines.Text()); url != "" {
			go func() { _, _ = io.Copy(io.Discard, output) }() // ends with the process
			return url
		}
	}
	t.Fatal("moto has not started")
	return ""
}

// moto is moto and the AWS CLI, which sees what the provider has created.
type moto struct {
	t        *testing.T
	cli, url string
}

// run runs a command of the AWS CLI for EC2 and decodes its output.
func (m moto) run(result any, args ...string) {
	m.t.Helper()
	m.call(result, append([]string{"ec2"}, args...)...)
}

// call runs a command of the AWS CLI, which begins with the service, and decodes its output.
func (m moto) call(result any, args ...string) {
	m.t.Helper()
	cmd := exec.Command(m.cli, append([]string{"--endpoint-url", m.url, "--region", "us-west-2", "--output", "json"}, args...)...)
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	require.NoError(m.t, err, "aws %v", args)
	if result != nil {
		require.NoError(m.t, json.Unmarshal(output, result), "%s", output)
	}
}

// motoShard is a shard in a zone of moto.
var motoShard = provider.Shard{ClusterID: "test", ID: "a", Region: "us-west-2", Zone: motoZone}

// motoSubnet is a subnet as the AWS CLI shows it.
type motoSubnet struct {
	SubnetID                string `json:"SubnetId"`
	AvailableIpAddressCount int
}

// subnet returns the only subnet in the zone.
func (m moto) subnet() motoSubnet {
	m.t.Helper()
	var all []motoSubnet
	m.run(&all, "describe-subnets", "--filters", "Name=availability-zone,Values="+motoZone, "--query", "Subnets")
	require.Len(m.t, all, 1)
	return all[0]
}

// request returns a request for an instance whose image and type moto has.
func (m moto) request() cloud.Request {
	m.t.Helper()
	r := request(m.t)
	r.Subnet = m.subnet().SubnetID
	r.Type = provider.InstanceType{Name: "m6g.large", Arch: provider.ArchARM64}
	r.Args = map[string]any{"image_owners": []any{"amazon"}, "image_filters": map[string]any{"name": "amzn2-ami-*"}}
	return r
}

// launch launches instances, and returns them with their ids at EC2.
func (m moto) launch(count int) (list []instance.VM, ids []string) {
	m.t.Helper()
	api, err := NewAPI(&Options{Endpoint: m.url}, motoShard)
	require.NoError(m.t, err)
	for range count {
		launched, err := api.Launch(m.t.Context(), m.request())
		require.NoError(m.t, err)
		id, err := instanceID(launched.ProviderID)
		require.NoError(m.t, err)
		list, ids = append(list, instance.VM{ID: launched.ID, ProviderID: launched.ProviderID}), append(ids, id)
	}
	return list, ids
}

// TestMoto tests the provider with an independent emulator of EC2, moto, and with AWS's own
// client (https://docs.getmoto.org/). moto lacks EC2's rules for tokens, capacity, quotas,
// full subnets and throttling, and its instances run and are visible at once.
func TestMoto(t *testing.T) {
	m := moto{t: t, cli: program(t, "aws"), url: startMoto(t)}
	api, err := NewAPI(&Options{Endpoint: m.url}, motoShard)
	require.NoError(t, err)
	api.limits.PollInterval, api.limits.IdleInterval, api.limits.VisibilityDelay = 200*time.Millisecond, 500*time.Millisecond, time.Second

	subnet := m.subnet()
	room, err := api.Room(t.Context(), subnet.SubnetID)
	require.NoError(t, err)
	assert.Equal(t, subnet.AvailableIpAddressCount, room)

	r := m.request()
	r.Origin = instance.Origin{OnDemand: true, IdempotencyKey: "any: é\n", InfraConfigHash: "abc"}
	r.Args = map[string]any{
		"image_owners": []any{"amazon"}, "image_filters": map[string]any{"name": "amzn2-ami-*"}, "root_volume": map[string]any{"size": "40Gi", "type": "gp3"},
		"metadata_options": map[string]any{"http_put_response_hop_limit": 2.0}, "tags": map[string]any{"team": "one"},
	}
	launched, err := api.Launch(t.Context(), r)
	require.NoError(t, err)
	launched.State = instance.Running
	list, err := api.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []cloud.VM{launched}, list)
	found, exists, err := api.Find(t.Context(), r.ID)
	require.NoError(t, err)
	assert.True(t, exists)
	assert.Equal(t, launched, found)
	found, exists, err = api.FindKnown(t.Context(), launched)
	require.NoError(t, err)
	assert.True(t, exists)
	assert.Equal(t, launched, found)

	// Another client sees the same instance.
	id, err := instanceID(launched.ProviderID)
	require.NoError(t, err)
	var seen struct {
		Type, Architecture, Subnet, Tokens string
		Tags                               []struct{ Key, Value string }
	}
	m.run(&seen, "describe-instances", "--instance-ids", id, "--query",
		"Reservations[0].Instances[0].{Type: InstanceType, Architecture: Architecture, Subnet: SubnetId, Tokens: MetadataOptions.HttpTokens, Tags: Tags}")
	tags := map[string]string{}
	for _, tag := range seen.Tags {
		tags[tag.Key] = tag.Value
	}
	assert.Equal(t, tagsOf(motoShard, r.Spec, map[string]string{"team": "one"}), tags)
	assert.Equal(t, "m6g.large", seen.Type)
	assert.Equal(t, "arm64", seen.Architecture)
	assert.Equal(t, "required", seen.Tokens)
	assert.Equal(t, r.Subnet, seen.Subnet)
	var volumes []struct {
		Size int
		Tags []struct{ Key, Value string }
	}
	m.run(&volumes, "describe-volumes", "--filters", "Name=attachment.instance-id,Values="+id, "--query", "Volumes[].{Size: Size, Tags: Tags}")
	require.Len(t, volumes, 1)
	assert.Equal(t, 40, volumes[0].Size)
	assert.Len(t, volumes[0].Tags, len(tags))
	var userdata string
	m.run(&userdata, "describe-instance-attribute", "--instance-id", id, "--attribute", "userData", "--query", "UserData.Value")
	assert.Equal(t, r.Userdata, decode(t, userdata))

	// An instance that does not exist does not keep others from being terminated.
	missing := launched
	missing.ID, missing.ProviderID = providertest.NewID(t), "aws:///"+motoZone+"/i-00000000000000000"
	errs := api.Terminate(t.Context(), []cloud.VM{missing, launched})
	require.Len(t, errs, 2)
	require.ErrorIs(t, errs[missing.ID], cloud.ErrNotFound)
	require.ErrorIs(t, errs[launched.ID], cloud.ErrRefusedTogether)
	require.Empty(t, api.Terminate(t.Context(), []cloud.VM{launched}))
	// EC2 shows a terminated instance for a while.
	list, err = api.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, launched.ProviderID, list[0].ProviderID)
	assert.True(t, list[0].Ended)

	testMotoProvider(t, m, api, r)
}

// TestMotoLoadBalancers: instances are registered with a target group and deregistered, and the AWS CLI
// sees it.
func TestMotoLoadBalancers(t *testing.T) {
	m := moto{t: t, cli: program(t, "aws"), url: startMoto(t)}
	p, err := (&Options{Endpoint: m.url, LoadBalancerEndpoint: m.url}).newProvider(motoShard, nil, nil)
	require.NoError(t, err)
	balancers := p.(provider.LoadBalancers)
	var vpc, arn string
	m.run(&vpc, "describe-vpcs", "--query", "Vpcs[0].VpcId")
	m.call(&arn, "elbv2", "create-target-group", "--name", "web", "--protocol", "TCP", "--port", "80", "--target-type", "instance", "--vpc-id", vpc,
		"--query", "TargetGroups[0].TargetGroupArn")
	list, ids := m.launch(2)
	web := provider.LoadBalancer{Key: "web", Settings: balancerSettings{arns: []string{arn}}}
	expect := func(want ...int) {
		t.Helper()
		var seen, targets, wantIDs, wantTargets []string
		m.call(&seen, "elbv2", "describe-target-health", "--target-group-arn", arn, "--query", "TargetHealthDescriptions[].Target.Id")
		registered, err := balancers.Targets(t.Context(), web)
		require.NoError(t, err)
		for _, target := range registered {
			assert.Equal(t, provider.Registered, target.State)
			targets = append(targets, target.ProviderID)
		}
		for _, n := range want {
			wantIDs, wantTargets = append(wantIDs, ids[n]), append(wantTargets, list[n].ProviderID)
		}
		assert.ElementsMatch(t, wantIDs, seen)
		assert.ElementsMatch(t, wantTargets, targets)
	}
	expect()
	for range 2 {
		require.NoError(t, balancers.Register(t.Context(), web, list))
		expect(0, 1)
	}
	for range 2 {
		require.NoError(t, balancers.Deregister(t.Context(), web, list[:1]))
		expect(1)
	}
	unknown := provider.LoadBalancer{Key: "none", Settings: balancerSettings{arns: []string{arn[:len(arn)-16] + "0123456789abcdef"}}}
	_, err = balancers.Targets(t.Context(), unknown)
	require.ErrorContains(t, err, "TargetGroupNotFound")
	require.ErrorContains(t, balancers.Register(t.Context(), unknown, list), "TargetGroupNotFound")
}

// TestMotoLeaderNetwork: the interface of the leader moves from one server to another. moto has no
// metadata service, from which servers read their ids.
func TestMotoLeaderNetwork(t *testing.T) {
	m := moto{t: t, cli: program(t, "aws"), url: startMoto(t)}
	_, ids := m.launch(2)
	var nic struct{ ID, IP string }
	m.run(&nic, "create-network-interface", "--subnet-id", m.subnet().SubnetID, "--query", "NetworkInterface.{ID: NetworkInterfaceId, IP: PrivateIpAddress}")
	network := provider.Network{IP: netip.MustParseAddr(nic.IP), InterfaceID: nic.ID}
	expectOwner := func(want string) {
		t.Helper()
		var owner string
		m.run(&owner, "describe-network-interfaces", "--network-interface-ids", nic.ID, "--query", "NetworkInterfaces[0].Attachment.InstanceId")
		assert.Equal(t, want, owner, "the instance that has the interface")
	}
	var servers []*leaderNetwork
	for _, id := range ids {
		server, err := (&Options{Endpoint: m.url}).newLeaderNetwork(motoShard, nil, "")
		require.NoError(t, err)
		server.own = id
		servers = append(servers, server)
	}
	for _, n := range []int{0, 0, 1, 0} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := servers[n].Assign(ctx, network)
		cancel()
		require.NoError(t, err)
		expectOwner(ids[n])
	}
	require.NoError(t, servers[1].Release(t.Context(), network))
	expectOwner(ids[0])
	require.NoError(t, servers[0].Release(t.Context(), network))
	expectOwner("")
}

// TestTheOfficialClient understands the server that the other tests use.
func TestTheOfficialClient(t *testing.T) {
	s := newRegion()
	s.BootTime, s.PageSize = 0, 5
	s.Start(t)
	c := moto{t: t, cli: program(t, "aws"), url: s.URL}
	api, err := NewAPI(testOptions(s), testShard)
	require.NoError(t, err)
	var ids []string
	for range 7 {
		r := request(t)
		_, err := api.Launch(t.Context(), r)
		require.NoError(t, err)
		ids = append(ids, s.Instance(r.ID).ID)
	}
	var seen []string
	c.run(&seen, "describe-instances", "--filters", "Name=tag:nstance:group,Values=work*", "Name=instance-state-name,Values=running", "--query", "Reservations[].Instances[].InstanceId")
	assert.Equal(t, ids, seen)
	var state string
	c.run(&state, "terminate-instances", "--instance-ids", ids[0], "--query", "TerminatingInstances[0].CurrentState.Name")
	assert.Equal(t, "shutting-down", state)
	var free int
	c.run(&free, "describe-subnets", "--subnet-ids", largeSubnet, "--query", "Subnets[0].AvailableIpAddressCount")
	assert.Equal(t, 4993, free)
	var status []string
	c.run(&status, "describe-instance-status", "--instance-ids", ids[1], "--query", "InstanceStatuses[].SystemStatus.Status")
	assert.Equal(t, []string{"ok"}, status)
	var image string
	c.run(&image, "describe-images", "--image-ids", testImage, "--query", "Images[0].RootDeviceName")
	assert.Equal(t, "/dev/xvda", image)
}

// testMotoProvider creates and deletes instances. The AWS CLI deletes one of them.
func testMotoProvider(t *testing.T, m moto, api *API, r cloud.Request) {
	h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
		return cloud.New(api, cloud.Options{CallContext: callContext, Market: market})
	})
	s := r.Spec
	s.ID = ""
	first, second, third := h.MustRun(s), h.MustRun(s), h.MustRun(s)
	vm, _ := h.Get(first)
	id, err := instanceID(vm.ProviderID)
	require.NoError(t, err)
	m.run(nil, "terminate-instances", "--instance-ids", id)
	h.Await(workers, map[string]instance.State{first: providertest.Ended, second: instance.Running})
	vm, _ = h.Get(third)
	id, err = instanceID(vm.ProviderID)
	require.NoError(t, err)
	m.run(nil, "stop-instances", "--instance-ids", id)
	h.Await(workers, map[string]instance.State{third: instance.Stopped})
	h.MustDelete(second)
	h.MustDelete(third)
	h.Await(workers, map[string]instance.State{second: providertest.Deleted, third: providertest.Deleted})
	assert.Empty(t, h.Failures)
	var left []string
	m.run(&left, "describe-instances", "--filters", "Name=instance-state-name,Values=pending,running,stopping,stopped", "--query", "Reservations[].Instances[].InstanceId")
	assert.Empty(t, left)
}
