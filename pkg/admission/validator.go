// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package admission refuses changes that the rules of the kinds themselves
// cannot see: a group that another pool uses, a shard that is not configured, the
// deletion of what a shard server's configuration keeps in being.
//
// It answers the API server's AdmissionReviews on every replica, from caches
// alone. Nothing relies on it: when it does not answer, the API server goes on.
package admission

import (
	"fmt"
	"net/http"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	informers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
)

// Resources that are validated, as AdmissionReviews name them.
var (
	pools        = metav1.GroupVersionResource(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"))
	machinePools = metav1.GroupVersionResource(clusterv1.GroupVersion.WithResource("machinepools"))
)

// cleaners delete what belongs to an object that is gone already. Refusing them
// would keep a namespace or an orphan for ever.
var cleaners = []string{
	"system:serviceaccount:kube-system:namespace-controller",
	"system:serviceaccount:kube-system:generic-garbage-collector",
}

// deleteForMove marks what clusterctl move deletes after it was copied to another
// management cluster (CAPI contract).
const deleteForMove = "clusterctl.cluster.x-k8s.io/delete-for-move"

// Config says what a Validator watches over.
type Config struct {
	// Namespace is where the operator's objects are; requests elsewhere are
	// allowed.
	Namespace string
	// ClusterName is the Cluster whose deletion takes everything with it.
	ClusterName string
	// ShardsConfigMap has a key for each configured shard.
	ShardsConfigMap string
}

// Validator decides on requests to change pools. It is safe for concurrent use.
type Validator struct {
	config           Config
	pools            nstancelisters.NstanceMachinePoolNamespaceLister
	poolIndex        cache.Indexer
	machinePoolIndex cache.Indexer
	clusters         listers.ResourceIndexer[*clusterv1.Cluster]
	shards           cache.Store
	synced           []cache.InformerSynced
}

// NewValidator makes a Validator that reads the caches of these informers, to
// which it adds indexes; they must not run yet. The informer shards watches the
// one ConfigMap of the shards.
func NewValidator(
	config Config,
	poolInformer informers.NstanceMachinePoolInformer,
	machinePoolInformer *capi.Informer[*clusterv1.MachinePool],
	clusterInformer *capi.Informer[*clusterv1.Cluster],
	shards cache.SharedIndexInformer,
) (*Validator, error) {
	if err := poolInformer.Informer().AddIndexers(poolIndexers); err != nil {
		return nil, fmt.Errorf("index NstanceMachinePools: %w", err)
	}
	return &Validator{
		config:           config,
		pools:            poolInformer.Lister().NstanceMachinePools(config.Namespace),
		poolIndex:        poolInformer.Informer().GetIndexer(),
		machinePoolIndex: machinePoolInformer.GetIndexer(),
		clusters:         clusterInformer.Lister(),
		shards:           shards.GetStore(),
		synced: []cache.InformerSynced{
			poolInformer.Informer().HasSynced, machinePoolInformer.HasSynced, clusterInformer.HasSynced, shards.HasSynced,
		},
	}, nil
}

// Validate returns nil when the request is allowed, an *apierrors.StatusError
// with the reason when it is not, and another error when its objects cannot be
// read.
//
// Before the caches are complete everything is allowed, as it would be if nobody
// answered: the rules of the kinds still hold.
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

func (v *Validator) hasSynced() bool {
	return !slices.ContainsFunc(v.synced, func(synced cache.InformerSynced) bool { return !synced() })
}

// validate reads the objects of a request and asks the rule for its operation. An
// object that is being deleted may always be changed, so that its finalizers can
// go, and deleted again.
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
		if slices.Contains(cleaners, request.UserInfo.Username) {
			return nil
		}
		if before == nil {
			return missing("old object")
		}
		if _, moved := before.GetAnnotations()[deleteForMove]; moved {
			return nil
		}
		return deletion(before)
	}
	return nil
}

// clusterGoes tells whether the Cluster is being deleted. Cluster API then
// deletes all that belongs to it, and waits until it is gone.
func (v *Validator) clusterGoes() bool {
	cluster, err := v.clusters.Get(v.config.ClusterName)
	return err == nil && cluster.DeletionTimestamp != nil
}

// forbid refuses a deletion with a reason that stands alone: the API server puts
// the name of the webhook in front of it.
func forbid(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusForbidden,
		Reason:  metav1.StatusReasonForbidden,
		Message: fmt.Sprintf(format, args...),
	}}
}
