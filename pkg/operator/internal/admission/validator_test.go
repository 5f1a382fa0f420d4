// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// present returns a world with the static pool main, its MachinePool, pool workers,
// and the shards a and b.
func present() world {
	return world{
		pools:        []*v1beta1.NstanceMachinePool{static(newPool("main", "main", "a")), newPool("workers", "workers", "a", "b")},
		machinePools: []*clusterv1.MachinePool{newMachinePool("main", v1beta1.PoolKind, "main"), newMachinePool("workers", v1beta1.PoolKind, "workers")},
		clusters:     []*clusterv1.Cluster{newCluster(clusterName)},
		shards:       []*corev1.ConfigMap{newShards("a", "b", "b.registration")},
	}
}

func TestCreateAndUpdate(t *testing.T) {
	tests := map[string]struct {
		change  func(*world)
		request *admissionv1.AdmissionRequest
		// want are parts of the reason; empty if the request is allowed.
		want []string
	}{
		"a new pool": {
			request: create(t, newPool("new", "new", "b", "a")),
		},
		"a new pool of a group that another has": {
			request: create(t, newPool("new", "workers", "a")),
			want:    []string{`"new" is invalid`, `spec.group: Invalid value: "workers": the group belongs to pool workers`},
		},
		"a new pool of a group that several have": {
			change:  func(w *world) { w.pools = append(w.pools, newPool("double", "workers", "a")) },
			request: create(t, newPool("new", "workers", "a")),
			want:    []string{"the group belongs to pool double, workers"},
		},
		"a pool that comes back while the cache still has it": {
			request: create(t, newPool("workers", "workers", "a")),
		},
		"a new pool on a shard that is not configured": {
			request: create(t, newPool("new", "new", "a", "z")),
			want:    []string{`spec.shards[1]: Invalid value: "z": the shard is not configured; ConfigMap nstance-shards has: a, b`},
		},
		"a new pool with everything wrong": {
			request: create(t, newPool("new", "main", "z", "y")),
			want:    []string{"spec.group", "spec.shards[0]", "spec.shards[1]"},
		},
		"a key of a shard that is not its id": {
			request: create(t, newPool("new", "new", "b.registration")),
			want:    []string{"has: a, b"},
		},
		"no shard is configured": {
			change:  func(w *world) { w.shards = []*corev1.ConfigMap{newShards()} },
			request: create(t, newPool("new", "new", "a")),
			want:    []string{"spec.shards[0]", "has: none"},
		},
		"the ConfigMap of the shards is missing": {
			change:  func(w *world) { w.shards = nil },
			request: create(t, newPool("new", "new", "z")),
		},
		"a shard is added": {
			request: update(t, newPool("workers", "workers", "a"), newPool("workers", "workers", "a", "b")),
		},
		"a shard is added that is not configured": {
			request: update(t, newPool("workers", "workers", "a"), newPool("workers", "workers", "z", "a")),
			want:    []string{`spec.shards[0]: Invalid value: "z"`},
		},
		"a pool of which a shard was taken out of the configuration": {
			request: update(t, newPool("workers", "workers", "a", "z"), newPool("workers", "workers", "z", "b")),
		},
		"a pool whose group another has since long": {
			change:  func(w *world) { w.pools = append(w.pools, newPool("double", "workers", "a")) },
			request: update(t, newPool("double", "workers", "a"), newPool("double", "workers", "b")),
		},
		"a pool that is being deleted": {
			request: update(t, newPool("workers", "workers", "a"), controllertest.Deleting(newPool("workers", "workers", "z"))),
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := present()
			if test.change != nil {
				test.change(&w)
			}
			err := newValidator(t, w).Validate(test.request)
			if len(test.want) == 0 {
				if err != nil {
					t.Errorf("rejected: %v", err)
				}
				return
			}
			if !apierrors.IsInvalid(err) {
				t.Fatalf("got error %v, want it rejected as invalid", err)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func TestDelete(t *testing.T) {
	tests := map[string]struct {
		change   func(*world)
		object   runtime.Object
		user     string
		rejected string
	}{
		"a dynamic pool": {object: newPool("workers", "workers", "a")},
		"a static pool": {
			object:   static(newPool("main", "main", "a")),
			rejected: `NstanceMachinePool "main" cannot be deleted: group "main" is static`,
		},
		"a static pool without a MachinePool": {
			change:   func(w *world) { w.machinePools = nil },
			object:   static(newPool("main", "main", "a")),
			rejected: `NstanceMachinePool "main"`,
		},
		"a static pool once more": {object: controllertest.Deleting(static(newPool("main", "main", "a")))},
		"a static pool whose MachinePool is being deleted": {
			change: func(w *world) { controllertest.Deleting(w.machinePools[0]) },
			object: static(newPool("main", "main", "a")),
		},
		"a static pool while another MachinePool is being deleted": {
			change:   func(w *world) { controllertest.Deleting(w.machinePools[1]) },
			object:   static(newPool("main", "main", "a")),
			rejected: `NstanceMachinePool "main"`,
		},
		"a static pool while the Cluster is being deleted": {
			change: func(w *world) { controllertest.Deleting(w.clusters[0]) },
			object: static(newPool("main", "main", "a")),
		},
		"a static pool while another Cluster is being deleted": {
			change:   func(w *world) { w.clusters = append(w.clusters, controllertest.Deleting(newCluster("another"))) },
			object:   static(newPool("main", "main", "a")),
			rejected: `NstanceMachinePool "main"`,
		},
		"a static pool before there is a Cluster": {
			change:   func(w *world) { w.clusters = nil },
			object:   static(newPool("main", "main", "a")),
			rejected: `NstanceMachinePool "main"`,
		},
		"a static pool with its namespace": {
			object: static(newPool("main", "main", "a")),
			user:   "system:serviceaccount:kube-system:namespace-controller",
		},
		"a static pool as garbage": {
			object: static(newPool("main", "main", "a")),
			user:   "system:serviceaccount:kube-system:generic-garbage-collector",
		},
		"a static pool as garbage of a controller manager without accounts": {
			object: static(newPool("main", "main", "a")),
			user:   "system:kube-controller-manager",
		},
		"a static pool whose deletion is confirmed": {object: confirmed(static(newPool("main", "main", "a")), "main")},
		"a static pool with the confirmation of another": {
			object:   confirmed(static(newPool("main", "main", "a")), "workers"),
			rejected: `NstanceMachinePool "main"`,
		},
		"the MachinePool of a static pool whose deletion is confirmed": {
			object: confirmed(newMachinePool("main", v1beta1.PoolKind, "main"), "main"),
		},
		"a static pool that was moved":                    {object: moved(static(newPool("main", "main", "a")))},
		"the MachinePool of a static pool that was moved": {object: moved(newMachinePool("main", v1beta1.PoolKind, "main"))},
		"the MachinePool of a dynamic pool":               {object: newMachinePool("workers", v1beta1.PoolKind, "workers")},
		"the MachinePool of a static pool": {
			object:   newMachinePool("main", v1beta1.PoolKind, "main"),
			rejected: `MachinePool "main" cannot be deleted: group "main" is static`,
		},
		"a MachinePool of another name for a static pool": {
			object:   newMachinePool("other", v1beta1.PoolKind, "main"),
			rejected: `MachinePool "other" cannot be deleted: group "main" is static`,
		},
		"a MachinePool of a static pool's name for another kind": {object: newMachinePool("main", "AWSMachinePool", "main")},
		"a MachinePool without a pool":                           {object: newMachinePool("lost", v1beta1.PoolKind, "lost")},
		"the MachinePool of a static pool once more":             {object: controllertest.Deleting(newMachinePool("main", v1beta1.PoolKind, "main"))},
		"the MachinePool of a static pool that is being deleted": {
			change: func(w *world) { controllertest.Deleting(w.pools[0]) },
			object: newMachinePool("main", v1beta1.PoolKind, "main"),
		},
		"the MachinePool of a static pool while the Cluster is being deleted": {
			change: func(w *world) { controllertest.Deleting(w.clusters[0]) },
			object: newMachinePool("main", v1beta1.PoolKind, "main"),
		},
		"the MachinePool of a static pool with its namespace": {
			object: newMachinePool("main", v1beta1.PoolKind, "main"),
			user:   "system:serviceaccount:kube-system:namespace-controller",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := present()
			if test.change != nil {
				test.change(&w)
			}
			request := remove(t, test.object)
			if test.user != "" {
				request.UserInfo.Username = test.user
			}
			err := newValidator(t, w).Validate(request)
			if test.rejected == "" {
				if err != nil {
					t.Errorf("rejected: %v", err)
				}
				return
			}
			if !apierrors.IsForbidden(err) {
				t.Fatalf("got error %v, want it forbidden", err)
			}
			if status := err.(apierrors.APIStatus).Status(); status.Code != http.StatusForbidden || status.Status != metav1.StatusFailure {
				t.Errorf("the status is %+v", status)
			}
			for _, part := range []string{test.rejected, "remove it from there first", "scale the MachinePool to 0"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

// TestOtherRequestsAreAllowed: the validator allows requests that it does not check.
func TestOtherRequestsAreAllowed(t *testing.T) {
	for name, change := range map[string]func(*admissionv1.AdmissionRequest){
		"another namespace": func(r *admissionv1.AdmissionRequest) { r.Namespace = "default" },
		"a subresource":     func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" },
		"another resource":  func(r *admissionv1.AdmissionRequest) { r.Resource.Resource = "nstanceshardgroups" },
		"a connection":      func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Connect },
	} {
		t.Run(name, func(t *testing.T) {
			v := newValidator(t, present())
			request := create(t, newPool("new", "workers", "z"))
			if err := v.Validate(request); err == nil {
				t.Fatal("the request is allowed as it is")
			}
			change(request)
			if err := v.Validate(request); err != nil {
				t.Errorf("rejected: %v", err)
			}
		})
	}
}

func TestEverythingIsAllowedBeforeAllCachesAreSynced(t *testing.T) {
	v := newUnsynced(t, present())
	rejectable := create(t, newPool("new", "workers", "z"))
	for i, synced := range v.synced {
		if synced() {
			t.Errorf("cache %d is complete", i)
		}
		if err := v.Validate(rejectable); err != nil {
			t.Errorf("with %d complete caches of %d: rejected: %v", i, len(v.synced), err)
		}
		v.synced[i] = func() bool { return true }
	}
	if len(v.synced) != 4 {
		t.Errorf("%d caches are waited for", len(v.synced))
	}
	if err := v.Validate(rejectable); err == nil {
		t.Error("allowed although all caches are complete")
	}
}

func TestInvalidObjectsGetNoDecision(t *testing.T) {
	v := newValidator(t, present())
	for name, change := range map[string]func(*admissionv1.AdmissionRequest){
		"no object":             func(r *admissionv1.AdmissionRequest) { r.Object.Raw = nil },
		"a list for an object":  func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte(`[]`) },
		"half an object":        func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte(`{"spec":`) },
		"update of nothing":     func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update },
		"deletion of nothing":   func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Delete },
		"a number for a string": func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte(`{"spec":{"group":7}}`) },
	} {
		t.Run(name, func(t *testing.T) {
			request := create(t, newPool("new", "new", "a"))
			change(request)
			err := v.Validate(request)
			if refusal := apierrors.APIStatus(nil); err == nil || errors.As(err, &refusal) {
				t.Errorf("got %v, want an error that is no decision", err)
			}
		})
	}
}

func TestReplicasMustNotBeRemoved(t *testing.T) {
	const rejection = "spec.replicas: Required value: without a number Cluster API makes 1 of the present 5"
	made := func(replicas *int32, owned bool) *clusterv1.MachinePool {
		machinePool := newMachinePool("workers", v1beta1.PoolKind, "workers")
		machinePool.Spec.Replicas = replicas
		if owned {
			machinePool.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)}}
		}
		return machinePool
	}
	for name, test := range map[string]struct {
		after  *clusterv1.MachinePool
		change func(*clusterv1.MachinePool)
		want   string
	}{
		"a number that Cluster API fills in": {after: made(ptr.To[int32](1), false), want: rejection},
		"a number of the sender":             {after: made(ptr.To[int32](1), true)},
		"a default that deletes no instance": {after: made(ptr.To[int32](5), false)},
		"another infrastructure": {after: made(ptr.To[int32](1), false), change: func(m *clusterv1.MachinePool) {
			m.Spec.Template.Spec.InfrastructureRef.Kind = "DockerMachinePool"
		}},
		"it is handed over to the autoscaler": {after: made(ptr.To[int32](4), false), change: func(m *clusterv1.MachinePool) {
			m.Annotations = map[string]string{clusterv1.AutoscalerMinSizeAnnotation: "1", clusterv1.AutoscalerMaxSizeAnnotation: "4"}
		}},
		"only half of it is handed over": {after: made(ptr.To[int32](1), false), change: func(m *clusterv1.MachinePool) {
			m.Annotations = map[string]string{clusterv1.AutoscalerMinSizeAnnotation: "1"}
		}, want: rejection},
	} {
		t.Run(name, func(t *testing.T) {
			if test.change != nil {
				test.change(test.after)
			}
			err := newValidator(t, present()).Validate(newRequest(t, admissionv1.Update, machinePools, made(ptr.To[int32](5), true), test.after))
			if test.want == "" && err != nil {
				t.Errorf("rejected: %v", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// The servers ignore the template and the subnets of a static group, so a new pool must have
// either the servers' values or no values.
func TestSettingsOfStaticGroups(t *testing.T) {
	worker := shard.GroupSettings{Template: "worker", Subnets: []string{"private", "public"}}
	groups := reportedGroups{
		"a/fixed":   {Static: true, GroupSettings: worker},
		"b/fixed":   {Static: true, GroupSettings: shard.GroupSettings{Template: "other", Subnets: []string{"private"}}},
		"b/mixed":   {Static: true, GroupSettings: worker},
		"a/mixed":   {GroupSettings: worker},
		"a/dynamic": {GroupSettings: worker},
		"a/bare":    {Static: true},
	}
	for name, test := range map[string]struct {
		group    string
		shards   []v1beta1.Identifier
		template string
		subnets  []v1beta1.Identifier
		// want are the parts of the reason; empty if the pool is allowed.
		want []string
	}{
		"no settings":       {group: "fixed", shards: []v1beta1.Identifier{"a", "b"}},
		"the same settings": {group: "fixed", shards: []v1beta1.Identifier{"a"}, template: "worker", subnets: []v1beta1.Identifier{"private", "public"}},
		"another template": {group: "fixed", shards: []v1beta1.Identifier{"a"}, template: "big", want: []string{
			`spec.template: Invalid value: "big": group "fixed" is static, and the configuration of shard a sets "worker"; leave it out`,
		}},
		"another order of subnets": {group: "fixed", shards: []v1beta1.Identifier{"a"}, subnets: []v1beta1.Identifier{"public", "private"}, want: []string{
			`spec.subnets: Invalid value: ["public","private"]: group "fixed" is static, and the configuration of shard a sets private, public; leave it out`,
		}},
		"both": {group: "fixed", shards: []v1beta1.Identifier{"a"}, template: "big", subnets: []v1beta1.Identifier{"public"}, want: []string{
			"spec.template", "spec.subnets",
		}},
		"the settings of one of two shards": {
			group: "fixed", shards: []v1beta1.Identifier{"a", "b"}, template: "worker", subnets: []v1beta1.Identifier{"private"},
			want: []string{`the configuration of shard b sets "other"`, "the configuration of shard a sets private, public"},
		},
		"static on another shard than the first": {group: "mixed", shards: []v1beta1.Identifier{"a", "b"}, template: "big", want: []string{
			`the configuration of shard b sets "worker"`,
		}},
		"static on a shard that the pool does not have": {group: "mixed", shards: []v1beta1.Identifier{"a"}, template: "big"},
		"a dynamic group":                    {group: "dynamic", shards: []v1beta1.Identifier{"a"}, template: "big"},
		"a group that no shard has reported": {group: "new", shards: []v1beta1.Identifier{"a"}, template: "big"},
		"subnets of a group that has none":   {group: "bare", shards: []v1beta1.Identifier{"a"}, subnets: []v1beta1.Identifier{"x"}, want: []string{"shard a sets none"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := present()
			w.groups = groups
			pool := newPool("new", test.group, test.shards...)
			pool.Spec.Template, pool.Spec.Subnets = test.template, test.subnets
			v := newValidator(t, w)
			err := v.Validate(create(t, pool))
			if len(test.want) == 0 && err != nil {
				t.Errorf("rejected: %v", err)
			}
			for _, part := range test.want {
				if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want it invalid with %q", err, part)
				}
			}
			// Changes are validated by the rules of the CRD.
			if err := v.Validate(update(t, pool, pool.DeepCopy())); err != nil {
				t.Errorf("an update is rejected: %v", err)
			}
		})
	}
}

// Cluster API deletes the pool of a deleted MachinePool, also if another one refers to it.
func TestSecondMachinePoolOfAPool(t *testing.T) {
	first, second := newMachinePool("workers", v1beta1.PoolKind, "workers"), newMachinePool("prod-workers", v1beta1.PoolKind, "workers")
	elsewhere := newMachinePool("prod-workers", v1beta1.PoolKind, "other")
	both := func(w *world) { w.machinePools = append(w.machinePools, second) }
	for name, test := range map[string]struct {
		change  func(*world)
		request *admissionv1.AdmissionRequest
		want    string
	}{
		"is created":            {nil, newRequest(t, admissionv1.Create, machinePools, nil, second), `MachinePool "prod-workers" cannot refer to NstanceMachinePool "workers", to which MachinePool "workers" refers already`},
		"refers to it later":    {nil, newRequest(t, admissionv1.Update, machinePools, elsewhere, second), `to which MachinePool "workers" refers already`},
		"is the first":          {nil, newRequest(t, admissionv1.Create, machinePools, nil, first), ""},
		"refers to another":     {nil, newRequest(t, admissionv1.Create, machinePools, nil, elsewhere), ""},
		"of two, is deleted":    {both, remove(t, second), `MachinePool "workers" refers to NstanceMachinePool "workers" too`},
		"of two, the other one": {both, remove(t, first), `MachinePool "prod-workers" refers to NstanceMachinePool "workers" too`},
		"of two, is scaled":     {both, newRequest(t, admissionv1.Update, machinePools, second.DeepCopy(), second), ""},
		"is moved away":         {both, newRequest(t, admissionv1.Update, machinePools, second, elsewhere), ""},
		"the other one is being deleted": {func(w *world) {
			w.machinePools = append(w.machinePools, controllertest.Deleting(second.DeepCopy()))
		}, remove(t, first), ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := present()
			if test.change != nil {
				test.change(&w)
			}
			err := newValidator(t, w).Validate(test.request)
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
			require.True(t, apierrors.IsForbidden(err))
		})
	}
}
