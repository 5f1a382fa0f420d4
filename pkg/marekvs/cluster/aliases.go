// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
)

type (
	serviceConfiguration = corev1ac.ServiceApplyConfiguration
	budgetConfiguration  = policyv1ac.PodDisruptionBudgetApplyConfiguration
)
