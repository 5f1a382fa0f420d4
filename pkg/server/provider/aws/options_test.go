// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// read returns the options in a text, and what is wrong with them.
func read(t *testing.T, text string, subnets ...string) (*Options, []string) {
	t.Helper()
	return providertest.ReadOptions[*Options](t, ReadOptions, text, subnets...)
}

func TestReadOptions(t *testing.T) {
	options, errs := read(t, "{}", largeSubnet, "subnet-01234567")
	require.Empty(t, errs)
	assert.True(t, options.RunsAgent())
	assert.EqualValues(t, 10, options.AddressReserve)
	for name, arch := range map[string]string{"m7i.large": provider.ArchAMD64, "c7g.8xlarge": provider.ArchARM64, "t3.2xlarge": provider.ArchAMD64} {
		assert.Equal(t, arch, options.Catalogue()[name].Arch, name)
	}
	r7g := options.Catalogue()["r7g.2xlarge"]
	assert.Equal(t, "8 64Gi", r7g.CPU.String()+" "+r7g.Memory.String())
	assert.NotContains(t, options.Catalogue(), "t3.4xlarge")

	options, errs = read(t, `{"endpoint": "https://vpce-1.ec2.us-west-2.vpce.amazonaws.com", "image": "ami-01234567", "agent": false,
		"instance_types": {"m8g.large": {"cpu": "2", "memory": "8Gi", "arch": "arm64"}}, "quota": {"m8g.large": 3}}`)
	require.Empty(t, errs)
	assert.False(t, options.RunsAgent())
	assert.EqualValues(t, 3, *options.Catalogue()["m8g.large"].Quota)
	for _, immutable := range options.ImmutableFields(field.NewPath("options")) {
		assert.NotContains(t, immutable.Path.String(), "instance_types")
	}
}

// TestZones: a zone is of the region, also a local zone.
func TestZones(t *testing.T) {
	path := field.NewPath("zone")
	for _, zone := range []string{"us-west-2a", "us-west-2-lax-1a", "us-west-2-wl1-sea-wlz-1"} {
		assert.Empty(t, (&Options{}).ValidateZone(path, "us-west-2", zone), zone)
	}
	for _, zone := range []string{"us-east-1a", "us-west-2"} {
		assert.Equal(t, []string{`zone: Invalid value: "` + zone + `": must be a zone of region us-west-2, such as us-west-2a`},
			providertest.Messages((&Options{}).ValidateZone(path, "us-west-2", zone)))
	}
}

// TestSubnets: a subnet is named by its id, and a mistake is reported where the name is.
func TestSubnets(t *testing.T) {
	path := field.NewPath("subnet_pools", "default").Index(0)
	for _, subnet := range []string{largeSubnet, "subnet-01234567"} {
		assert.Empty(t, (&Options{}).ValidateSubnet(path, subnet), subnet)
	}
	for _, subnet := range []string{"lan", "subnet-123", "Subnet-01234567"} {
		assert.Equal(t, []string{`subnet_pools.default[0]: Invalid value: "` + subnet + `": must be the id of a subnet, such as subnet-0123456789abcdef0`},
			providertest.Messages((&Options{}).ValidateSubnet(path, subnet)))
	}
}

// TestUserdataThatIsTooLarge: gzip counts.
func TestUserdataThatIsTooLarge(t *testing.T) {
	require.NoError(t, (&Options{}).CheckUserdata(make([]byte, 1<<20)))
	require.ErrorContains(t, (&Options{}).CheckUserdata(incompressible(20000)), "must be smaller: the userdata has 20000 bytes")
}

func TestInvalidOptions(t *testing.T) {
	for _, tc := range []struct{ name, text, subnet, want string }{
		{"an endpoint", `{"endpoint": "ec2.us-west-2.amazonaws.com"}`, largeSubnet, `options.endpoint: Invalid value: "ec2.us-west-2.amazonaws.com": must be an address such as`},
		{"an endpoint of load balancers", `{"load_balancer_endpoint": "elb"}`, largeSubnet, `options.load_balancer_endpoint: Invalid value: "elb"`},
		{"a reserve", `{"address_reserve": -1}`, largeSubnet, "options.address_reserve: Invalid value: -1: must be a number from 0 to 65536"},
		{"a path", `{"endpoint": "https://a/b"}`, largeSubnet, "options.endpoint: Invalid value"},
		{"a password", `{"endpoint": "https://a:b@c"}`, largeSubnet, "options.endpoint: Invalid value"},
		{"an image", `{"image": "debian-12"}`, largeSubnet, `options.image: Invalid value: "debian-12": must be the id of an image`},
		{"a type", `{"instance_types": {"small": {"cpu": "1", "memory": "1Gi", "arch": "amd64"}}}`, largeSubnet, `options.instance_types.small: Invalid value: "small": must be the name of an instance type`},
		{"an architecture", `{"instance_types": {"a.b": {"cpu": "1", "memory": "1Gi", "arch": "x86"}}}`, largeSubnet, "options.instance_types.a.b.arch: Unsupported value"},
		{"a quota", `{"quota": {"none.large": 1}}`, largeSubnet, "quota.none.large: Invalid value"},
		{"an unknown option", `{"region": "us-west-2"}`, largeSubnet, "region: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, errs := read(t, tc.text, tc.subnet)
			require.NotEmpty(t, errs)
			assert.Contains(t, errs[0], tc.want)
		})
	}
}

func TestValidateArgs(t *testing.T) {
	path, o := field.NewPath("args"), &Options{}
	// Texts that are rendered later are not checked before.
	assert.Empty(t, o.ValidateArgs(path, map[string]any{
		"image": "{{.Vars.image}}", "market": "{{.Vars.market}}", "spot_max_price": "{{.Vars.price}}", "security_groups": []any{"{{.Vars.group}}"},
		"root_volume": map[string]any{"size": "{{.Vars.size}}", "type": "{{.Vars.type}}"}, "launch_template": map[string]any{"name": "{{.Vars.template}}"},
	}))
	for _, tc := range []struct {
		name  string
		value any
		want  string
	}{
		{"image", "debian", `args.image: Invalid value: "debian": must be the id of an image`},
		{"image", 5.0, "args.image: Invalid value: 5: must be a string"},
		{"image_filters", map[string]any{"name": "x"}, "args.image_owners: Required value: every account can publish an image with any name"},
		{"image_filters", map[string]any{"Name": "x"}, `args.image_filters[Name]: Invalid value: "Name": must be the name of a filter`},
		{"image_filters", map[string]any{"name": []any{}}, "args.image_filters[name]: Required value: must have a value"},
		{"image_owners", []any{"debian"}, `args.image_owners[0]: Invalid value: "debian"`},
		{"image_owners", "self", `args.image_owners: Invalid value: "self": must be a list of strings`},
		{"security_groups", []any{"default"}, `args.security_groups[0]: Invalid value: "default"`},
		{"iam_instance_profile", "a b", `args.iam_instance_profile: Invalid value: "a b"`},
		{"key_name", " a", "args.key_name: Invalid value"},
		{"root_volume", map[string]any{"size": "20GB"}, `args.root_volume.size: Invalid value: "20GB": must be full Gi`},
		{"root_volume", map[string]any{"size": "1500Mi"}, "args.root_volume.size: Invalid value"},
		{"root_volume", map[string]any{"type": "gp4"}, `args.root_volume.type: Unsupported value: "gp4": supported values: "gp2"`},
		{"root_volume", map[string]any{"iops": "3000"}, `args.root_volume.iops: Invalid value: "3000": must be a whole number between 100 and 256000`},
		{"root_volume", map[string]any{"iops": 3000.5}, "args.root_volume.iops: Invalid value"},
		{"root_volume", map[string]any{"volume_size": 20.0}, `args.root_volume.volume_size: Unsupported value: "volume_size": supported values: "device", "encrypted"`},
		{"root_volume", map[string]any{"encrypted": "yes"}, "args.root_volume.encrypted: Invalid value"},
		{"root_volume", "20Gi", `args.root_volume: Invalid value: "20Gi": must be an object`},
		{"market", "reserved", `args.market: Unsupported value: "reserved": supported values: "on-demand", "spot"`},
		{"spot_max_price", "0.05", "args.spot_max_price: Forbidden: only instances of the market spot have a price"},
		{"metadata_options", map[string]any{"http_tokens": "never"}, "args.metadata_options.http_tokens: Unsupported value"},
		{"metadata_options", map[string]any{"http_put_response_hop_limit": 65.0}, "args.metadata_options.http_put_response_hop_limit: Invalid value"},
		{"ipv6_addresses", -1.0, "args.ipv6_addresses: Invalid value"},
		{"launch_template", map[string]any{"version": "1"}, "must have exactly one of id, name"},
		{"launch_template", map[string]any{"id": "lt-01234567", "name": "abc"}, "must have exactly one of id, name"},
		{"launch_template", map[string]any{"id": "abc"}, `args.launch_template.id: Invalid value: "abc"`},
		{"launch_template", map[string]any{"name": "abc", "version": "latest"}, "args.launch_template.version: Invalid value"},
		{"tags", map[string]any{"": "x"}, `args.tags[]: Invalid value: "": must have 1 to 128 characters`},
		{"tags", map[string]any{"a": strings.Repeat("x", 257)}, "must have at most 256 characters"},
		{"tags", map[string]any{"a": 5.0}, "args.tags.a: Invalid value: 5: must be a string"},
		{"ImageId", "ami-01234567", `args.ImageId: Unsupported value: "ImageId": supported values: "iam_instance_profile", "image"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs := providertest.Messages(o.ValidateArgs(path, map[string]any{tc.name: tc.value}))
			require.NotEmpty(t, errs)
			assert.Contains(t, strings.Join(errs, "\n"), tc.want)
		})
	}
}

// TestAnUnusedProviderCostsNothing: options are read and validated without the SDK's
// configuration, which a broken file would show.
func TestAnUnusedProviderCostsNothing(t *testing.T) {
	t.Setenv("AWS_CONFIG_FILE", t.TempDir())
	t.Setenv("AWS_PROFILE", "missing")
	_, errs := read(t, "{}", largeSubnet)
	require.Empty(t, errs)
	_, err := NewAPI(&Options{}, testShard)
	require.ErrorContains(t, err, "read the configuration of the SDK")
}

// TestExpectedNode has less memory than its type.
func TestExpectedNode(t *testing.T) {
	s := spec()
	node := expectedNode(testShard)(s)
	assert.Equal(t, "2", node.Status.Capacity.Cpu().String())
	if memory := node.Status.Capacity.Memory(); memory.Cmp(s.Type.Memory) >= 0 || memory.Value() < 7<<30 {
		t.Errorf("the Node has %s of %s", memory, s.Type.Memory.String())
	}
}

// TestDocumentedPolicy: the document allows the calls that the provider makes, and no more.
func TestDocumentedPolicy(t *testing.T) {
	policy := ec2test.ReadPolicy(t, "../../../../docs/aws.md", `"prod"`, `"test"`, "nstance-node", "node")
	needed := permissionsOfBalancers(t)
	region := newRegion()
	region.Enforce(policy)
	inBubble(t, region, func(t *testing.T, w *world) {
		h := w.startProvider()
		s := spec()
		s.Args = map[string]any{
			"image_owners": []any{"123456789012"}, "image_filters": map[string]any{"name": "*"}, "iam_instance_profile": "node", "market": "spot",
			"security_groups": []any{ec2test.SecurityGroup}, "root_volume": map[string]any{"size": "20Gi"},
		}
		id := h.MustRun(s)
		time.Sleep(5 * time.Minute)
		h.MustDelete(id)
		_ = w.api.Terminate(t.Context(), []cloud.VM{{ID: id}})
		time.Sleep(5 * time.Minute)
		assert.Empty(t, h.Failures)
		assert.Empty(t, w.Existing())
		w.AddInterface(leaderInterface, ec2test.Zone, leaderAddress.String())
		for _, name := range []string{"a", "b"} {
			w.AddInstance(serverID(name), largeSubnet)
			n := (&eniBackend{w.Server, t}).Machine(name)
			require.NoError(t, n.Assign(t.Context(), provider.Network{IP: leaderAddress, InterfaceID: leaderInterface}))
		}
		needed = append(w.Permissions(), needed...)
		slices.Sort(needed)
		assert.Equal(t, needed, policy.Actions())
	})
}

// permissionsOfBalancers returns the actions that target groups need.
func permissionsOfBalancers(t *testing.T) []string {
	b := newELBBackend(t)
	vm := b.NewInstance()
	require.NoError(t, b.balancers.Register(t.Context(), b.Balancer(), []instance.VM{vm}))
	b.list()
	require.NoError(t, b.balancers.Deregister(t.Context(), b.Balancer(), []instance.VM{vm}))
	return b.Permissions()
}
