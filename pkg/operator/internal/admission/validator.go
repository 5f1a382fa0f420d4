// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package admission rejects changes that the validation rules of the CRDs cannot
// check: a group that another pool uses, a shard that is not configured, settings of a
// new pool that the configuration of its shard servers sets otherwise, and the deletion of
// a pool whose group is in that configuration.
//
// Every replica responds to AdmissionReviews, from caches only. The webhook is optional:
// without a response the API server allows the request. Deletions are also checked by the
// policies in manifests/policies.
package admission

import (
	"fmt"
	"net/http"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	informers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// Resources that are validated, as AdmissionReviews name them.
var (
	pools        = metav1.GroupVersionResource(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"))
	machinePools = metav1.GroupVersionResource(clusterv1.GroupVersion.WithResource("machinepools"))
)

// garbageCollectors delete the dependents of deleted objects
// (https://kubernetes.io/docs/concepts/architecture/garbage-collection/). Rejecting their
// requests would keep a namespace or an orphan for ever.
var garbageCollectors = []string{
	"system:serviceaccount:kube-system:namespace-controller",
	"system:serviceaccount:kube-system:generic-garbage-collector",
	// A controller manager without --use-service-account-credentials sends all requests as
	// this user.
	"system:kube-controller-manager",
}

// deleteForMove is the annotation of objects that clusterctl move deletes after it has copied
// them to another management cluster
// (https://cluster-api.sigs.k8s.io/clusterctl/commands/move, docs/capi.md#deletion).
const deleteForMove = "clusterctl.cluster.x-k8s.io/delete-for-move"

// Config names the objects that a Validator decides by.
type Config struct {
	// Namespace is the namespace of the operator's objects. Requests in others are
	// allowed.
	Namespace string
	// ClusterName is the Cluster whose deletion deletes all pools.
	ClusterName string
	// ShardsConfigMap has a key for each configured shard.
	ShardsConfigMap string
}

// Groups returns the groups that the shards last reported. It is empty on a standby, which has
// no connections.
type Groups interface {
	Get(shardID, key string) (shard.Group, bool)
}

// Validator validates changes of pools and MachinePools. It is safe for concurrent
// use.
type Validator struct {
	config           Config
	pools            nstancelisters.NstanceMachinePoolNamespaceLister
	poolIndex        *controllers.Pools
	machinePoolIndex cache.Indexer
	clusters         listers.ResourceIndexer[*clusterv1.Cluster]
	shards           cache.Store
	groups           Groups
	synced           []cache.InformerSynced
}

// NewValidator returns a Validator that reads the caches of these informers. It adds indexes
// to them, so they must not run yet. The informer shards must watch only the ConfigMap of the
// shards.
func NewValidator(
	config Config,
	poolInformer informers.NstanceMachinePoolInformer,
	machinePoolInformer *capi.Informer[*clusterv1.MachinePool],
	clusterInformer *capi.Informer[*clusterv1.Cluster],
	shards cache.SharedIndexInformer,
	groups Groups,
) (*Validator, error) {
	poolIndex, err := controllers.NewPools(poolInformer.Informer())
	if err != nil {
		return nil, err
	}
	return &Validator{
		config:           config,
		pools:            poolInformer.Lister().NstanceMachinePools(config.Namespace),
		poolIndex:        poolIndex,
		machinePoolIndex: machinePoolInformer.GetIndexer(),
		clusters:         clusterInformer.Lister(),
		shards:           shards.GetStore(),
		groups:           groups,
		synced: []cache.InformerSynced{
			poolInformer.Informer().HasSynced, machinePoolInformer.HasSynced, clusterInformer.HasSynced, shards.HasSynced,
		},
	}, nil
}

// Validate returns nil if the request is allowed, an *apierrors.StatusError with the
// reason if it is rejected, and another error if its objects cannot be decoded.
//
// Until the caches are synced everything is allowed, as without a webhook: the
// rules of the CRDs apply nevertheless.
func (v *Validator) Validate(request *admissionv1.AdmissionRequest) error {
	if request.Namespace != v.config.Namespace || request.SubResource != "" || !v.hasSynced() {
		return nil
	}
	switch request.Resource {
	case pools:
		return validate(request, v.validatePool, v.validatePoolDeletion)
	case machinePools:
		return validate(request, v.validateMachinePool, v.validateMachinePoolDeletion)
	}
	return nil
}

// Warnings returns what the client of an allowed request should know. It needs no caches.
func (v *Validator) Warnings(request *admissionv1.AdmissionRequest) []string {
	if request.Namespace != v.config.Namespace || request.SubResource != "" || request.Resource != pools || len(request.Object.Raw) == 0 {
		return nil
	}
	pool := &v1beta1.NstanceMachinePool{}
	if json.Unmarshal(request.Object.Raw, pool) != nil || pool.DeletionTimestamp != nil {
		return nil
	}
	return warnings(pool)
}

func (v *Validator) hasSynced() bool {
	return !slices.ContainsFunc(v.synced, func(synced cache.InformerSynced) bool { return !synced() })
}

// validate decodes the objects of a request and calls the rule for its operation.
// An object that is being deleted may always be changed, so that its finalizers can
// be removed, and deleted again.
func validate[T any, P interface {
	*T
	metav1.Object
}](request *admissionv1.AdmissionRequest, change func(before, after P) error, deletion func(P) error) error {
	var before, after P
	for _, object := range []struct {
		raw  []byte
		into *P
	}{{request.OldObject.Raw, &before}, {request.Object.Raw, &after}} {
		if len(object.raw) == 0 {
			continue
		}
		*object.into = new(T)
		if err := json.Unmarshal(object.raw, *object.into); err != nil {
			return fmt.Errorf("read the %s of the request: %w", request.Kind.Kind, err)
		}
		if (*object.into).GetDeletionTimestamp() != nil {
			return nil
		}
	}

	missing := func(what string) error {
		return fmt.Errorf("a request of operation %s has no %s", request.Operation, what)
	}
	switch request.Operation {
	case admissionv1.Create, admissionv1.Update:
		if after == nil {
			return missing("object")
		}
		if before == nil && request.Operation == admissionv1.Update {
			return missing("old object")
		}
		return change(before, after)
	case admissionv1.Delete:
		if slices.Contains(garbageCollectors, request.UserInfo.Username) {
			return nil
		}
		if before == nil {
			return missing("old object")
		}
		annotations := before.GetAnnotations()
		if _, moved := annotations[deleteForMove]; moved || annotations[v1beta1.AnnotationConfirmDeletion] == before.GetName() {
			return nil
		}
		return deletion(before)
	}
	return nil
}

// clusterIsDeleted reports whether the Cluster is being deleted. Cluster API then
// deletes all of its objects, and waits for their deletion.
func (v *Validator) clusterIsDeleted() bool {
	cluster, err := v.clusters.Get(v.config.ClusterName)
	return err == nil && cluster.DeletionTimestamp != nil
}

// forbid returns the error for a rejected deletion. The API server puts the name of
// the webhook before the reason.
func forbid(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusForbidden,
		Reason:  metav1.StatusReasonForbidden,
		Message: fmt.Sprintf(format, args...),
	}}
}

// validateMachinePool rejects a second MachinePool of a pool, and a change that removes the
// replicas of a pool's MachinePool: Cluster API would set its default, usually 1, and all other
// instances would be deleted without a request. A number that the client sets has a field owner;
// the default of Cluster API does not. With both annotations of the Cluster Autoscaler the
// replicas may be removed, because that hands them over to the autoscaler
// (docs/capi.md#replicas).
func (v *Validator) validateMachinePool(before, after *clusterv1.MachinePool) error {
	pool := capi.PoolOf(after)
	if other := v.otherMachinePool(pool, after.Name); other != "" && (before == nil || capi.PoolOf(before) != pool) {
		return forbid("MachinePool %q cannot refer to NstanceMachinePool %q, to which MachinePool %q refers already: scale that one", after.Name, pool, other)
	}
	if before == nil || capi.PoolOf(after) == "" || capi.ReplicasOwned(after) || capi.Autoscaled(after) {
		return nil
	}
	previous, defaulted := ptr.Deref(before.Spec.Replicas, 0), ptr.Deref(after.Spec.Replicas, 0)
	if defaulted >= previous {
		return nil
	}
	return apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("MachinePool").GroupKind(), after.Name, field.ErrorList{
		field.Required(field.NewPath("spec", "replicas"),
			fmt.Sprintf("without a number Cluster API makes %d of the present %d; give the number that is wanted", defaulted, previous)),
	})
}

// otherMachinePool returns a MachinePool that refers to a pool, other than the MachinePool of a
// name, "" if there is none.
func (v *Validator) otherMachinePool(pool, name string) string {
	if pool == "" {
		return ""
	}
	for _, machinePool := range v.machinePoolsOf(pool) {
		if machinePool.Name != name && machinePool.DeletionTimestamp == nil {
			return machinePool.Name
		}
	}
	return ""
}

// validateMachinePoolDeletion rejects the deletion of the MachinePool of a static pool, and of
// one of several MachinePools of a pool: Cluster API would delete the pool with it.
func (v *Validator) validateMachinePoolDeletion(machinePool *clusterv1.MachinePool) error {
	name := capi.PoolOf(machinePool)
	if name == "" || v.clusterIsDeleted() {
		return nil
	}
	pool, err := v.pools.Get(name)
	// The MachinePool of a pool that is being deleted may be deleted too.
	if err != nil || pool.DeletionTimestamp != nil {
		return nil //nolint:nilerr // a pool that is not in the cache does not exist
	}
	if isStatic(pool) {
		return forbid("MachinePool %q cannot be deleted: %s", machinePool.Name, staticReason(pool))
	}
	if other := v.otherMachinePool(name, machinePool.Name); other != "" {
		return forbid("MachinePool %q cannot be deleted: MachinePool %q refers to NstanceMachinePool %q too, which Cluster API would delete; "+
			"set spec.template.spec.infrastructureRef.name of the MachinePool that is too many to a name that does not exist, and delete it then",
			machinePool.Name, other, name)
	}
	return nil
}

// machinePoolsOf returns the MachinePools whose infrastructure is a pool.
func (v *Validator) machinePoolsOf(pool string) []*clusterv1.MachinePool {
	return controller.Indexed[clusterv1.MachinePool](v.machinePoolIndex, capi.ByPool, pool)
}
