// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package attackers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/testing/tier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// The operator of a tenant reaches nothing of another tenant, fills no server, and its account in
// Kubernetes reads no Secrets, not even through its webhook.
func TestOperator(t *testing.T) {
	expectAlive(t, "shard-"+honestShard)
	attacker, owner := operatorOf(t, otherTenant), operatorOf(t, installation.Tenant)
	list, err := owner.ListGroups(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	var instance string
	for _, group := range list.GetGroups() {
		if group.GetKey() == controlPlane {
			for _, managed := range group.GetInstances().GetInstances() {
				instance = managed.GetId()
			}
		}
	}
	require.NotEmpty(t, instance, "the instance of the control plane")

	// Groups, templates and instances of another tenant.
	none, err := attacker.ListGroups(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	assert.Empty(t, none.GetGroups(), "groups of the attacker")
	for _, template := range []string{"worker", installation.OnDemandTemplate, "unknown"} {
		_, err = attacker.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
			Key: "taken", Config: &nstancev1.GroupConfig{Template: template, Size: 1},
		})
		expectRefused(t, err, codes.InvalidArgument, "unknown template")
		for _, foreign := range []string{"worker,", installation.OnDemandTemplate + ",", "known are " + installation.OnDemandTemplate} {
			assert.NotContains(t, err.Error(), foreign, "a template of another tenant")
		}
	}
	_, err = attacker.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{
		Config: &nstancev1.InstanceConfig{Group: controlPlane},
	})
	expectRefused(t, err, codes.FailedPrecondition, "does not exist")
	_, err = attacker.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: instance})
	expectRefused(t, err, codes.PermissionDenied, "another tenant")
	_, err = attacker.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: instance})
	expectRefused(t, err, codes.PermissionDenied, "another tenant")
	_, err = attacker.AcknowledgeDrained(t.Context(), &nstancev1.DrainAckRequest{InstanceId: instance})
	expectRefused(t, err, codes.PermissionDenied, "another tenant")

	// Its own groups allow only what the configuration does: no machine for a Pod, and no var.
	_, err = owner.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{
		Config: &nstancev1.InstanceConfig{Group: controlPlane},
	})
	expectRefused(t, err, codes.InvalidArgument, "limits.on_demand")
	_, err = owner.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: controlPlane, Config: &nstancev1.GroupConfig{Template: "worker", Size: 1, Vars: map[string]string{"a": "b"}},
	})
	expectRefused(t, err, codes.InvalidArgument, "limits.vars")

	// Requests of the maximum size store nothing.
	before, err := env.Installation.Records(honestShard)
	require.NoError(t, err)
	large := strings.Repeat("x", 3<<20)
	flooded(t, "shard-"+honestShard, func() {
		for i := range tier.Pick(20, 200) {
			_, err := owner.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{
				Config: &nstancev1.InstanceConfig{Group: builders, Vars: map[string]string{"pod_name": large}},
			})
			expectRefused(t, err, codes.InvalidArgument, "pod_name")
			_, err = owner.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{
				Config: &nstancev1.InstanceConfig{Group: builders}, IdempotencyKey: fmt.Sprint(i) + large,
			})
			expectRefused(t, err, codes.InvalidArgument, "idempotency_key")
		}
	})
	after, err := env.Installation.Records(honestShard)
	require.NoError(t, err)
	assert.Len(t, after, len(before), "records after the flood")

	testAccountOfOperator(t)
}

// testAccountOfOperator attacks the API server with the account of the operator.
func testAccountOfOperator(t *testing.T) {
	t.Helper()
	account := as(t, installation.OperatorUser)
	_, err := account.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	assert.True(t, apierrors.IsForbidden(err), "lists Secrets: %v", err)
	err = account.CoreV1().Pods(installation.Namespace).Delete(t.Context(), "any", metav1.DeleteOptions{})
	assert.True(t, apierrors.IsForbidden(err), "deletes Pods: %v", err)
	// With these rules, the API server would send every Secret to the webhook.
	const rules = `[{"op":"replace","path":"/webhooks/0/rules","value":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["secrets"]}]}]`
	_, err = account.AdmissionregistrationV1().ValidatingWebhookConfigurations().
		Patch(t.Context(), "nstance-operator", types.JSONPatchType, []byte(rules), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	assert.ErrorContains(t, err, "may change only caBundle")
}
