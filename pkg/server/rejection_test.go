// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/servertest"
)

// TestARejectedInstanceIsCreatedOnceTheConfigurationIsCorrected, however late, and
// is not requested all the time until then.
func TestARejectedInstanceIsCreatedOnceTheConfigurationIsCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		rejected := 0
		client.PrependReactor("create", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			node := action.(clienttesting.CreateAction).GetObject().(*corev1.Node)
			if node.Labels[kwok.LabelSubnet] != "rejected" {
				return false, nil, nil
			}
			rejected++
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), node.Name, nil)
		})
		s := servertest.Start(t, servertest.Options{
			InMemory: true, Kubernetes: client,
			SubnetPools: `{"default": ["rejected"]}`,
			Groups:      `{"default": {"main": {"template": "worker", "size": 1}}}`,
		})
		operator := s.Operator("default")
		const minutes = 20
		<-time.After(minutes * time.Minute)
		synctest.Wait()
		if rejected == 0 || rejected > 2*minutes+1 {
			t.Errorf("in %d minutes %d requests were rejected", minutes, rejected)
		}

		text, err := os.ReadFile(s.ConfigPath())
		require.NoError(t, err)
		corrected := strings.Replace(string(text), `"rejected"`, `"subnet-a"`, 1)
		require.NoError(t, os.WriteFile(s.ConfigPath(), []byte(corrected), 0o600))
		<-time.After(time.Minute)
		synctest.Wait()
		if main := find(t, list(t, operator), "main"); main.ActualSize != 1 {
			t.Errorf("a minute after the configuration was corrected the group is %v", main)
		}
	})
}
