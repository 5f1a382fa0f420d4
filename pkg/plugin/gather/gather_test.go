// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather_test

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/gather"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
	"nstance.dev/operator/pkg/plugin/status"
)

func newGatherer(t *testing.T, server *plugintest.Server) *gather.Gatherer {
	t.Helper()
	g, err := gather.New(&rest.Config{Host: server.URL}, nil, plugintest.Namespace)
	require.NoError(t, err)
	return g
}

// drained has a Node of the pool and a Node of no pool that are being drained.
func drained() *objects.Snapshot {
	s := plugintest.AtRest()
	plugintest.Drain(s, "a", "a1", "scale-down")
	plugintest.AddPod(s, "a1", "web-0", nil)
	plugintest.AddBudget(s, "keep-web", "web-0", 0)
	other := plugintest.NewNode("z", "other")
	other.Annotations = map[string]string{v1beta1.AnnotationCordonedFor: "z/other"}
	s.Nodes.Items = append(s.Nodes.Items, other)
	for i := range s.ShardGroups.Items {
		s.ShardGroups.Items[i].Labels = map[string]string{v1beta1.LabelGroup: plugintest.Pool}
	}
	return s
}

// The most expensive reads are made only for Nodes of the pool that are being drained.
func TestStatusReadsPodsOfDrainingNodesOnly(t *testing.T) {
	expensive := []string{"pods", "poddisruptionbudgets", "volumeattachments", "machinedrainrules"}
	server := plugintest.NewServer(t, plugintest.AtRest())
	_, err := newGatherer(t, server).Status(t.Context(), plugintest.Pool)
	require.NoError(t, err)
	for _, resource := range expensive {
		if requests := server.Requests(resource); len(requests) > 0 {
			t.Errorf("without a drain: %+v", requests)
		}
	}

	server = plugintest.NewServer(t, drained())
	s, err := newGatherer(t, server).Status(t.Context(), plugintest.Pool)
	require.NoError(t, err)
	pods := server.Requests("pods")
	if len(pods) != 1 || pods[0].FieldSelector != "spec.nodeName=a1" {
		t.Errorf("requests for Pods: %+v", pods)
	}
	budgets := server.Requests("poddisruptionbudgets")
	if len(budgets) != 1 || budgets[0].Namespace != "web" {
		t.Errorf("requests for PodDisruptionBudgets: %+v", budgets)
	}
	for _, request := range server.Requests("") {
		if request.Method != http.MethodGet || request.Name == "" && request.Limit != "500" {
			t.Errorf("request %+v", request)
		}
	}
	s.Now = plugintest.Now
	built := status.Build(s)
	if len(built.Drains) != 1 || built.Drains[0].State != "Blocked" {
		t.Errorf("drains %+v", built.Drains)
	}
	if nodes := len(s.Nodes.Items); nodes != 4 {
		t.Errorf("%d Nodes, want the 4 of the pool", nodes)
	}
}

// The drain of a Node depends on rules, and these on labels of Machines, Clusters and namespaces. An
// older Cluster API has no rules.
func TestDrainRulesAreReadWithWhatTheySelect(t *testing.T) {
	s := drained()
	skip := clusterv1.MachineDrainRuleDrainConfig{Behavior: clusterv1.MachineDrainRuleDrainBehaviorSkip}
	ofTeam := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "infra"}}
	s.PodNamespaces = map[string]objects.Read[corev1.Namespace]{
		"web": {Items: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: ofTeam.MatchLabels}}}},
	}
	plugintest.AddDrainRule(s, "agents", skip, "web-0", &metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.MachinePoolNameLabel: plugintest.Pool}}, ofTeam)
	server := plugintest.NewServer(t, s)
	drains := func() status.DrainStatus {
		read, err := newGatherer(t, server).Drains(t.Context(), "a1")
		require.NoError(t, err)
		read.Now = plugintest.Now
		return status.BuildDrains(read)
	}
	built := drains()
	require.Empty(t, built.Unknown)
	require.Equal(t, status.DrainDone, built.Drains[0].State, "the Pod is skipped")
	for _, resource := range []string{"machinedrainrules", "namespaces", "machinepools", "clusters"} {
		server.Forbidden = []string{resource}
		built = drains()
		require.NotEmpty(t, built.Unknown, resource)
		require.Equal(t, status.DrainBlocked, built.Drains[0].State, "the budget of the Pod is known without %s", resource)
	}
	server.Forbidden, server.Missing = nil, []string{"machinedrainrules"}
	built = drains()
	require.Empty(t, built.Unknown)
	require.Equal(t, status.DrainBlocked, built.Drains[0].State)
}

func TestEveryPageIsRead(t *testing.T) {
	for name, expire := range map[string]string{"": "", "the list expires": "nodes"} {
		t.Run(name, func(t *testing.T) {
			server := plugintest.NewServer(t, drained())
			server.Expire = expire
			s, err := newGatherer(t, server).Drains(t.Context(), "")
			require.NoError(t, err)
			if got := len(s.Nodes.Items); got != 5 || s.Nodes.Unknown != "" {
				t.Errorf("%d Nodes, want 5; unknown: %q", got, s.Nodes.Unknown)
			}
		})
	}
}

// Each resource that may not be read is named, and never empty.
func TestForbiddenResourcesAreUnknown(t *testing.T) {
	for _, resource := range []string{
		"nstanceshardgroups", "nstancemachines", "nstanceclusters", "machinepools", "machines", "nodes", "pods", "poddisruptionbudgets", "volumeattachments", "machinedrainrules",
	} {
		t.Run(resource, func(t *testing.T) {
			server := plugintest.NewServer(t, drained())
			server.Forbidden = []string{resource}
			s, err := newGatherer(t, server).Status(t.Context(), plugintest.Pool)
			require.NoError(t, err)
			if resource == "nstanceshardgroups" {
				// Then it is not known which Nodes belong to the pool.
				require.Equal(t, []string{"forbidden to list nstanceshardgroups"}, s.Unknown())
				return
			}
			require.Equal(t, []string{"forbidden to list " + resource}, s.Unknown())
		})
	}
	// Only why reads the events of a Node.
	server := plugintest.NewServer(t, drained())
	server.Forbidden = []string{"events"}
	s, err := newGatherer(t, server).Status(t.Context(), plugintest.Pool)
	require.NoError(t, err)
	require.Empty(t, s.Unknown())
	require.Empty(t, server.Requests("events"))
	s, err = newGatherer(t, server).Why(t.Context(), "a1")
	require.NoError(t, err)
	require.Equal(t, []string{"forbidden to list events"}, s.Unknown())

	server = plugintest.NewServer(t, drained())
	server.Forbidden = []string{"nstancemachinepools"}
	_, err = newGatherer(t, server).Status(t.Context(), plugintest.Pool)
	require.EqualError(t, err, "forbidden to get nstancemachinepools")
	_, err = newGatherer(t, server).Status(t.Context(), "")
	require.EqualError(t, err, "forbidden to list nstancemachinepools")
}

func TestNotFoundNamesWhatExists(t *testing.T) {
	g := newGatherer(t, plugintest.NewServer(t, plugintest.AtRest()))
	_, err := g.Status(t.Context(), "worker")
	require.EqualError(t, err, `NstanceMachinePool "worker" not found in namespace "nstance-system"; there are: workers`)
	var notFound *gather.NotFoundError
	if !errors.As(err, &notFound) {
		t.Errorf("%T", err)
	}
	_, err = g.Drains(t.Context(), "z9")
	require.EqualError(t, err, `Node "z9" not found`)
	_, err = g.Why(t.Context(), "z9")
	require.EqualError(t, err, `Node, NstanceMachine or instance "z9" not found in namespace "nstance-system"`)
}

// The Nodes of a management cluster are not the Nodes of the pools.
func TestNodesOfAnotherClusterAreUnknown(t *testing.T) {
	server := plugintest.NewServer(t, drained())
	cluster := v1beta1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Namespace: plugintest.Namespace, Name: "dev--default"}}
	plugintest.SetCondition(&cluster.Status.Conditions, v1beta1.ConditionWorkloadClusterReachable, metav1.ConditionTrue, v1beta1.ReasonReachable, "")
	server.AddClusters(t, cluster)
	want := []string{"the Nodes are in another cluster; name its kubeconfig with --workload-kubeconfig"}
	s, err := newGatherer(t, server).Status(t.Context(), plugintest.Pool)
	require.NoError(t, err)
	require.Equal(t, want, s.Unknown())
	require.Empty(t, server.Requests("nodes"))

	workload := plugintest.NewServer(t, drained())
	g, err := gather.New(&rest.Config{Host: server.URL}, &rest.Config{Host: workload.URL}, plugintest.Namespace)
	require.NoError(t, err)
	s, err = g.Status(t.Context(), plugintest.Pool)
	require.NoError(t, err)
	require.Empty(t, s.Unknown())
	for _, resource := range []string{"nodes", "pods", "poddisruptionbudgets", "volumeattachments"} {
		require.Empty(t, server.Requests(resource), resource)
		require.NotEmpty(t, workload.Requests(resource), resource)
	}
}

// why reads the Pod that has requested an instance.
func TestWhyReadsTheRequestingPod(t *testing.T) {
	s := plugintest.AtRest()
	machine := plugintest.AddOnDemand(s)
	server := plugintest.NewServer(t, s)
	read, err := newGatherer(t, server).Why(t.Context(), machine.Name)
	require.NoError(t, err)
	if len(read.Requesting) != 1 {
		t.Errorf("read %+v", read.Requesting)
	}
	if !slices.ContainsFunc(server.Requests("pods"), func(r plugintest.Request) bool { return r.Namespace == "web" && r.Name == "build" }) {
		t.Errorf("requests %+v", server.Requests("pods"))
	}
}

// The dashboard reads the events of the operator only, and those about Nodes where the
// Nodes are.
func TestDashboardReadsEventsOfTheOperator(t *testing.T) {
	server := plugintest.NewServer(t, plugintest.AtRest())
	namespaces := func(server *plugintest.Server) (found []string) {
		for _, request := range server.Requests("events") {
			require.Equal(t, "reportingController=nstance-operator", request.FieldSelector)
			found = append(found, request.Namespace)
		}
		slices.Sort(found)
		return found
	}
	_, err := newGatherer(t, server).Dashboard(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"default", plugintest.Namespace}, namespaces(server))

	server = plugintest.NewServer(t, plugintest.AtRest())
	g, err := gather.New(&rest.Config{Host: server.URL}, nil, "")
	require.NoError(t, err)
	_, err = g.Dashboard(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{""}, namespaces(server))

	server = plugintest.NewServer(t, plugintest.AtRest())
	workload := plugintest.NewServer(t, plugintest.AtRest())
	g, err = gather.New(&rest.Config{Host: server.URL}, &rest.Config{Host: workload.URL}, "")
	require.NoError(t, err)
	_, err = g.Dashboard(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{""}, namespaces(server))
	require.Equal(t, []string{"default"}, namespaces(workload))
}
