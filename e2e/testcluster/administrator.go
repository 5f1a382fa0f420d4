// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/runbook"
	"nstance.dev/operator/pkg/admin"
)

// StartProcedure starts a procedure of docs/runbooks on the cluster, with its
// variables set to values. The administrator has kubectl and the programs of Nstance.
func (c *Cluster) StartProcedure(t testing.TB, heading string, values map[string]string) *runbook.Procedure {
	t.Helper()
	return runbook.StartProcedure(t, heading, c.Tools(t), values)
}

// Tools are the files and programs of the administrator.
func (c *Cluster) Tools(t testing.TB) runbook.Tools {
	t.Helper()
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	admin, err := controlplane.Builder{Root: root, Progress: os.Stderr}.Admin(t.Context())
	require.NoError(t, err)
	return runbook.Tools{
		Root:       root,
		Kubeconfig: c.KubeconfigPath(),
		Programs: map[string]string{
			"kubectl":        c.kubectl[0],
			"nstance-admin":  admin,
			"nstance-server": c.ShardServer(c.ShardIDs[0]).Argv[0],
		},
	}
}

// Admin runs an nstance-admin command on the storage of the servers, and returns what it
// prints. Commands of the family cluster get the encryption key.
func (c *Cluster) Admin(t testing.TB, args ...string) string {
	t.Helper()
	command := admin.NewCommand()
	var output bytes.Buffer
	command.SetOut(&output)
	flags := []string{"--storage", "file", "--storage-bucket", c.Installation.Bucket()}
	if args[0] == "cluster" {
		flags = append(flags, "--key-provider", "file", "--key", c.Installation.EncryptionKeyFile())
	}
	command.SetArgs(slices.Concat(args, flags))
	require.NoError(t, command.ExecuteContext(t.Context()), "nstance-admin %s", args)
	return output.String()
}

// BackUpEtcd returns a copy of etcd's data.
func (c *Cluster) BackUpEtcd(t testing.TB) string {
	t.Helper()
	defer Freeze(t, c.Component(controlplane.Etcd))()
	backup := filepath.Join(t.TempDir(), "etcd")
	require.NoError(t, os.CopyFS(backup, os.DirFS(c.etcdDir())))
	return backup
}

// RestoreEtcd replaces etcd's data, and restarts the control plane, as the procedure for
// a restore demands.
func (c *Cluster) RestoreEtcd(t testing.TB, backup string) {
	t.Helper()
	stopped := []string{controlplane.APIServer, controlplane.Etcd}
	clients := []string{controlplane.ControllerManager, controlplane.Scheduler, controlplane.CAPI, controlplane.KWOK}
	for _, name := range slices.Concat(clients, stopped) {
		require.NoError(t, c.Component(name).Kill(t.Context()))
	}
	require.NoError(t, os.RemoveAll(c.etcdDir()))
	require.NoError(t, os.CopyFS(c.etcdDir(), os.DirFS(backup)))
	slices.Reverse(stopped)
	for _, name := range slices.Concat(stopped, clients) {
		Start(t, c.Component(name))
	}
}

func (c *Cluster) etcdDir() string { return filepath.Join(c.Dir(), "etcd") }

// SaveConfigMap returns a function that restores a ConfigMap.
func (c *Cluster) SaveConfigMap(t testing.TB, name string) (restore func()) {
	t.Helper()
	client := c.Kube.CoreV1().ConfigMaps(installation.Namespace)
	saved, err := client.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return func() {
		t.Helper()
		ctx := context.WithoutCancel(t.Context())
		saved.ObjectMeta = metav1.ObjectMeta{Name: saved.Name, Namespace: saved.Namespace, Labels: saved.Labels}
		_, err := client.Update(ctx, saved, metav1.UpdateOptions{})
		if err != nil {
			_, err = client.Create(ctx, saved, metav1.CreateOptions{})
		}
		require.NoError(t, err)
	}
}

// EditShards changes the shards in the operator's configuration.
func (c *Cluster) EditShards(t testing.TB, change func(map[string]string)) {
	t.Helper()
	client := c.Kube.CoreV1().ConfigMaps(installation.Namespace)
	shards, err := client.Get(t.Context(), "nstance-shards", metav1.GetOptions{})
	require.NoError(t, err)
	change(shards.Data)
	_, err = client.Update(t.Context(), shards, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// CreateAccount creates a ServiceAccount with a ClusterRole, and returns a token of it that
// is valid for a day.
func (c *Cluster) CreateAccount(t testing.TB, name, role string) (token string) {
	t.Helper()
	accounts := c.Kube.CoreV1().ServiceAccounts(installation.Namespace)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: installation.Namespace, Name: name}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](24 * 60 * 60)}}
	response, err := accounts.CreateToken(t.Context(), name, request, metav1.CreateOptions{})
	require.NoError(t, err)
	return response.Status.Token
}

// Kubectl runs kubectl as the administrator, in the namespace of the
// installation, and returns what it prints.
func (c *Cluster) Kubectl(t testing.TB, arguments ...string) string {
	t.Helper()
	// The context of a test has ended when its cleanups run.
	printed, err := c.KubectlCommand(context.WithoutCancel(t.Context()), arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", arguments, err, printed)
	}
	return string(printed)
}

// KubectlCommand returns the command that Kubectl runs.
func (c *Cluster) KubectlCommand(ctx context.Context, arguments ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.kubectl[0], slices.Concat(c.kubectl[1:], arguments)...)
}
