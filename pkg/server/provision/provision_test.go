// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/registration"
)

// everything uses all that userdata can.
const everything = `id={{.Instance.ID}} kind={{.Instance.Kind}} arch={{.Instance.Arch}} type={{.Instance.Type}}
cluster={{.Cluster.ID}} ca={{.Cluster.CACert}}
shard={{.Server.Shard}} registration={{.Server.RegistrationAddr}} operator={{.Server.OperatorAddr}} agent={{.Server.AgentAddr}} every={{.Server.HealthCheckInterval}}
provider={{.Provider.Kind}} region={{.Provider.Region}} zone={{.Provider.Zone}}
{{range $name, $value := .Vars}}{{$name}}={{$value}} {{end}}
nonce={{.Nonce}}`

func TestSpec(t *testing.T) {
	c := newConfig(t)
	p, nonces := newProvisioner(t, c)
	group := *newGroup(t, c, "main")
	group.Userdata = config.Userdata{Inline: everything}
	record := newRecord()

	spec, err := p.Spec(t.Context(), &group, record, "subnet-a")
	require.NoError(t, err)
	if len(nonces.signed) != 1 {
		t.Fatalf("%d nonces were signed, want one", len(nonces.signed))
	}
	want := provider.Spec{
		ID: instanceID, Group: record.Key(), Template: "worker", Kind: "knc", CreatedAt: record.CreatedAt,
		Type:   c.Shard.Infra.InstanceTypes["m7i.large"],
		Subnet: "subnet-a",
		Args:   map[string]any{"labels": map[string]any{"from": "worker", "defaults": "yes", "worker": "yes", "main": "yes"}},
		Userdata: []byte(`id=knc06bgm7733st2576nx5jht4ecjw kind=knc arch=amd64 type=m7i.large
cluster=prod ca=-----BEGIN CERTIFICATE-----

shard=us-west-2a registration=10.0.0.1:8992 operator=10.0.0.1:8993 agent=10.0.0.1:8994 every=1m0s
provider=fake region=us-west-2 zone=us-west-2z
defaults=yes from=worker main=yes worker=yes 
nonce=` + nonces.signed[0]),
	}
	if diff := cmp.Diff(want, spec); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNonceSaysWhoseItIs(t *testing.T) {
	c := newConfig(t)
	p, nonces := newProvisioner(t, c)
	group := newGroup(t, c, "main")
	record := newRecord()
	record.OnDemand = true
	for range 2 {
		_, err := p.Spec(t.Context(), group, record, "subnet-a")
		require.NoError(t, err)
	}
	if len(nonces.signed) != 2 {
		t.Fatalf("%d nonces were signed for two specs", len(nonces.signed))
	}
	claims, err := registration.ParseNonce(nonces.signed[0], nonces.key)
	require.NoError(t, err)
	want := registration.NonceClaims{
		Kind: "agent", Subject: instanceID, ClusterID: "prod", Tenant: "default", Shard: "us-west-2a",
		Group: "main", OnDemand: true, ConfigHash: group.RuntimeConfigHash,
		CreatedAt: claims.CreatedAt, ExpiresAt: claims.ExpiresAt,
	}
	if diff := cmp.Diff(want, claims); diff != "" || group.RuntimeConfigHash == "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNoUserdataNoNonce(t *testing.T) {
	c := newConfig(t)
	p, nonces := newProvisioner(t, c)
	group := *newGroup(t, c, "main")
	group.Userdata = config.Userdata{}
	group.Args = nil
	spec, err := p.Spec(t.Context(), &group, newRecord(), "subnet-a")
	if err != nil || spec.Userdata != nil || spec.Args != nil || len(nonces.signed) != 0 {
		t.Errorf("got userdata %q, arguments %v, %d nonces, error %v", spec.Userdata, spec.Args, len(nonces.signed), err)
	}
}

// marketOptions are options with the argument market.
type marketOptions struct {
	providertest.Options
	provider.MarketArgument
}

// MarketArgs is not called.
func (o *marketOptions) MarketArgs(map[string]any, string) (map[string]any, error) {
	return nil, errors.New("unexpected call")
}

// TestTheMarketOfAnInstance is known in arguments unless a template decides about it, and in userdata.
func TestTheMarketOfAnInstance(t *testing.T) {
	withMarkets := &marketOptions{MarketArgument: provider.MarketArgument{
		Name: "market", Values: map[string]string{"Standard": "on-demand", "Spot": "spot"}, Default: "on-demand",
	}}
	for name, tc := range map[string]struct {
		options        provider.Options
		market         any
		args, userdata string
	}{
		"named":                       {withMarkets, "spot", "Spot", "Spot"},
		"not named":                   {withMarkets, nil, "Standard", "Standard"},
		"rendered":                    {withMarkets, "{{.Vars.market}}", "", "Spot"},
		"a provider without a market": {&providertest.Options{}, nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConfig(t)
			c.Shard.Infra.Options = tc.options
			p, _ := newProvisioner(t, c)
			group := *newGroup(t, c, "main")
			group.Vars = map[string]string{"market": "spot"}
			group.Args = map[string]any{"labels": map[string]any{"market": "{{.Instance.Market}}"}}
			if tc.market != nil {
				group.Args["market"] = tc.market
			}
			group.Userdata = config.Userdata{Inline: "{{.Instance.ID}} {{.Nonce}} market={{.Instance.Market}}."}
			spec, err := p.Spec(t.Context(), &group, newRecord(), "subnet-a")
			require.NoError(t, err)
			assert.Equal(t, map[string]any{"market": tc.args}, spec.Args["labels"])
			assert.Contains(t, string(spec.Userdata), " market="+tc.userdata+".")
		})
	}
}

// TestConfigurationInForce: changes while the server runs count for the next instance.
func TestConfigurationInForce(t *testing.T) {
	c := newConfig(t)
	p, _ := newProvisioner(t, c)
	group := *newGroup(t, c, "main")
	group.Args = map[string]any{"labels": map[string]any{"zone": "{{.Provider.Zone}}"}}
	next := *c
	next.Shard.Infra.Zone = "elsewhere"
	p.Config = func() *config.Config { return &next }
	spec, err := p.Spec(t.Context(), &group, newRecord(), "subnet-a")
	require.NoError(t, err)
	if diff := cmp.Diff(map[string]any{"labels": map[string]any{"zone": "elsewhere"}}, spec.Args); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestErrorsKeepSecrets: they name the failed step and the instance, but no secret of the
// instance.
func TestErrorsKeepSecrets(t *testing.T) {
	const password = "hunter2"
	broken := func(text string) func(*config.Userdata, map[string]any, *nonces) {
		return func(userdata *config.Userdata, _ map[string]any, _ *nonces) {
			userdata.Inline = "password " + password + " {{.Nonce}}\n" + text
		}
	}
	tests := []struct {
		name, want string
		change     func(*config.Userdata, map[string]any, *nonces)
	}{
		{"no template", `the userdata of template "worker" must be a Go template: mistake in line 2`, broken("{{.Nonce")},
		{"var that does not exist", `render the userdata of template "worker": userdata:2:7: map has no entry for key "missing"`, broken("{{.Vars.missing}}")},
		{"the wrong name of the vars", "userdata:2:6: can't evaluate field Var", broken("{{.Var.role}}")},
		{"value that is not known yet", "userdata:2:11: can't evaluate field Hostname", broken("{{.Instance.Hostname}}")},
		{"images", "userdata:2:2: can't evaluate field Image", broken("{{.Image}}")},
		{"field of the nonce", "userdata:2:8: can't evaluate field X", broken("{{.Nonce.X}}")},
		{"call of the nonce", "", broken("{{call .Nonce}}")},
		{"piece of the nonce", "", broken("{{slice .Nonce 0 9999}}")},
		{"member that the nonce names", "", broken("{{index .Nonce .Nonce}}")},
		{"comparison with the nonce", "", broken("{{lt 1 .Nonce}}")},
		{"function that is none", `must be a Go template: mistake in line 2`, broken("{{" + password + "}}")},
		{"text in the place of a template", `userdata:2:11: this has no value`, broken("{{template `" + password + "`}}")},
		{"text in the place of a function", `userdata:2:2: this has no value`, broken("{{call `" + password + "`}}")},
		{"text in the place of an object", `userdata:2:2: this has no value`, broken("{{index .Vars `" + password + "` 1}}")},
		{"no id", "must contain {{.Instance.ID}} and {{.Nonce}}", broken("")},
		{"no nonce", "must contain {{.Instance.ID}} and {{.Nonce}}", func(userdata *config.Userdata, _ map[string]any, _ *nonces) {
			userdata.Inline = password + " {{.Instance.ID}}"
		}},
		{"encoding", `the userdata of template "worker" must not have the unknown encoding "zip"`, func(userdata *config.Userdata, _ map[string]any, _ *nonces) {
			*userdata = config.Userdata{Inline: password + " {{.Instance.ID}} {{.Nonce}}", Encoding: "zip"}
		}},
		{"base64", `the userdata of template "worker" must be base64: illegal base64 data at input byte 7`, func(userdata *config.Userdata, _ map[string]any, _ *nonces) {
			*userdata = config.Userdata{Inline: password + " {{.Instance.ID}} {{.Nonce}}", Encoding: config.EncodingBase64}
		}},
		{"argument", `executing "args.labels.x" at <.Vars.missing>`, func(_ *config.Userdata, labels map[string]any, _ *nonces) {
			labels["x"] = "{{.Vars.missing}}"
		}},
		{"nonce in an argument", "can't evaluate field Nonce in type", func(_ *config.Userdata, labels map[string]any, _ *nonces) {
			labels["x"] = "{{.Nonce}}"
		}},
		{"signer", "sign the registration nonce: out of ink", func(_ *config.Userdata, _ map[string]any, nonces *nonces) {
			nonces.err = errors.New("out of ink")
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			c := newConfig(t)
			p, nonces := newProvisioner(t, c)
			group := *newGroup(t, c, "main")
			labels := map[string]any{}
			group.Args = map[string]any{"labels": labels}
			tc.change(&group.Userdata, labels, nonces)

			spec, err := p.Spec(t.Context(), &group, newRecord(), "subnet-a")
			if err == nil {
				t.Fatalf("got %s", spec.Userdata)
			}
			text := err.Error()
			if !strings.HasPrefix(text, "prepare instance "+instanceID+" of group default/main: ") || !strings.Contains(text, tc.want) {
				t.Errorf("got  %s\nwant %s", text, tc.want)
			}
			if strings.Contains(text, password) {
				t.Errorf("the error has the userdata in it: %s", text)
			}
			for _, signed := range nonces.signed {
				if strings.Contains(text, signed) {
					t.Errorf("the error has the nonce in it: %s", text)
				}
			}
			if diff := cmp.Diff(provider.Spec{}, spec); diff != "" {
				t.Errorf("there is an incomplete spec: %s", diff)
			}
		})
	}
}
