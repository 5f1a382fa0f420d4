// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package attackers attacks a cluster with the access that each party of the trust model
// (SECURITY.md) has, and shows that the attacks fail: the operator, the API server and the shard
// servers are real. Each attacker has a test. Whatever an attacker gets by right, such as machines
// up to a limit, is a part of its test: an attack on something that never works would fail too.
package attackers

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/testing/tier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// honestShard has the static groups controlPlane and builders. Its instances are Nodes.
	honestShard = "us-west-2a"
	// evilShard is a shard whose server an attacker controls.
	evilShard = "us-west-2e"
	// machineShard has machines that run agents, and no Nodes.
	machineShard = "us-west-2m"

	// controlPlane is a static group that allows operators nothing but sizes, and builders a static
	// group for on-demand instances.
	controlPlane = "control-plane"
	builders     = "builders"

	// guests and allowed are namespaces of Pods. Only the Pods in allowed may request machines,
	// onDemandLimit of them.
	guests, allowed = "guests", "allowed"
	onDemandLimit   = 2

	// otherTenant is a tenant without a group.
	otherTenant = "other"

	loopback = "127.0.0.1"
	timeout  = 2 * time.Minute
)

// env is the cluster that all tests of this package share.
var env *testcluster.Cluster

func TestMain(m *testing.M) {
	testcluster.Main(m, &env, testcluster.Options{
		Shards: []installation.Shard{
			{ID: honestShard, BootDelay: 100 * time.Millisecond, Groups: map[string]installation.Group{
				controlPlane: {Size: 1},
				builders:     {Template: installation.OnDemandTemplate},
			}},
			{ID: evilShard, BootDelay: 100 * time.Millisecond, DrainTimeout: time.Hour},
		},
		Prepare: func(ctx context.Context) error {
			if err := startMachineShard(ctx); err != nil {
				return fmt.Errorf("start shard %s: %w", machineShard, err)
			}
			return startEvilRelay(ctx)
		},
		Closed: stopMachines,
		OperatorFlags: []string{
			"--resync-period", "5s",
			"--on-demand-namespaces", allowed,
			"--on-demand-limit", fmt.Sprint(onDemandLimit),
		},
	})
}

// account is a ServiceAccount with rights in one or more namespaces, and nothing else.
type account struct {
	kubernetes.Interface
	nstance versioned.Interface
}

// newAccount returns clients of a new ServiceAccount with the rules in the namespaces.
func newAccount(t *testing.T, name string, rules []rbacv1.PolicyRule, namespaces ...string) account {
	t.Helper()
	for _, namespace := range namespaces {
		_, err := env.Kube.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules,
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = env.Kube.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespaces[0], Name: name}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	return as(t, "system:serviceaccount:"+namespaces[0]+":"+name)
}

// as returns clients of a ServiceAccount with nothing but its own rights.
func as(t *testing.T, user string) account {
	t.Helper()
	config := rest.CopyConfig(env.AdminConfig())
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	nstance, err := versioned.NewForConfig(config)
	require.NoError(t, err)
	return account{client, nstance}
}

// shardAddress returns where operators reach a shard, or with the suffix ".registration" where
// they register.
func shardAddress(t *testing.T, key string) string {
	t.Helper()
	shards, err := env.Kube.CoreV1().ConfigMaps(installation.Namespace).Get(t.Context(), "nstance-shards", metav1.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, shards.Data, key)
	return shards.Data[key]
}

// operatorOf returns a client of the honest shard with a certificate of the operator of a tenant.
func operatorOf(t *testing.T, tenant string) nstancev1.OperatorServiceClient {
	t.Helper()
	return nstancev1.NewOperatorServiceClient(dial(t, shardAddress(t, honestShard), issue(t, tenant, time.Hour)))
}

// issue returns the certificate of a client with the role of an operator.
func issue(t *testing.T, tenant string, ttl time.Duration) *tls.Config {
	t.Helper()
	certPEM, keyPEM, err := env.Installation.Authority().IssueClient(pki.Client{ID: "attacker", Tenant: tenant, Role: pki.RoleOperator}, ttl)
	require.NoError(t, err)
	return clientConfig(t, certPEM, keyPEM)
}

// clientConfig returns the configuration of a client with a certificate, or without one if certPEM
// is nil. The client trusts the cluster.
func clientConfig(t *testing.T, certPEM, keyPEM []byte) *tls.Config {
	t.Helper()
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(env.Installation.Authority().CertificatePEM()))
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: loopback}
	if certPEM != nil {
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		require.NoError(t, err)
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

func dial(t *testing.T, address string, config *tls.Config, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient(address, append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// expectRefused fails unless err has a code, and a text with all parts.
func expectRefused(t *testing.T, err error, code codes.Code, parts ...string) {
	t.Helper()
	require.NoError(t, refused(err, code, parts...))
}

func refused(err error, code codes.Code, parts ...string) error {
	if status.Code(err) != code {
		return fmt.Errorf("got %w, want code %s", cmp.Or(err, errors.New("no error")), code)
	}
	if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(err.Error(), part) }) {
		return nil
	}
	return fmt.Errorf("got %w, want it to name %q", err, parts)
}

// expectAlive fails at the end of the test if a process has exited since: it would have been
// started again with another process id, or not at all.
func expectAlive(t *testing.T, components ...string) {
	t.Helper()
	for _, name := range components {
		before, running := env.Component(name).PID()
		require.True(t, running, "%s runs", name)
		t.Cleanup(func() {
			after, running := env.Component(name).PID()
			assert.True(t, running, "%s runs", name)
			assert.Equal(t, before, after, "the process of %s", name)
		})
	}
}

// flooded calls flood. In make test-full it then waits until the resident memory of a process is at
// most 1.5 times the memory before: the Go runtime returns memory that is free in minutes
// (https://pkg.go.dev/runtime/debug#FreeOSMemory).
func flooded(t *testing.T, component string, flood func()) {
	t.Helper()
	const factor = 1.5
	before, _, err := env.Component(component).Memory()
	require.NoError(t, err)
	flood()
	check := func(context.Context) error {
		after, peak, err := env.Component(component).Memory()
		t.Logf("%s has %.0f MiB resident before the flood, %.0f after, at most %.0f", component, before, after, peak)
		if err == nil && after > factor*before {
			err = fmt.Errorf("%s has %.0f MiB resident after a flood, %.0f before", component, after, before)
		}
		return err
	}
	if !tier.Full() {
		_ = check(t.Context())
		return
	}
	testcluster.EventuallyEvery(t, 10*time.Second, 10*time.Minute, "the memory is free again", check)
}
