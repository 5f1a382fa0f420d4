// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package election

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/leaderelection"
)

// Timing is that of client-go's leader election.
type Timing struct {
	// LeaseDuration is how long a standby waits for a silent leader, RenewDeadline how long
	// a leader tries to renew, and RetryPeriod the time between two tries.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// DefaultTiming is the timing that applies when nothing is set.
func DefaultTiming() Timing {
	return Timing{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 800 * time.Millisecond}
}

// AddFlags makes a flag of every setting.
func (t *Timing) AddFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&t.LeaseDuration, "leader-elect-lease-duration", t.LeaseDuration, "how long a standby waits for a silent leader")
	flags.DurationVar(&t.RenewDeadline, "leader-elect-renew-deadline", t.RenewDeadline, "how long a leader tries to renew before it gives up")
	flags.DurationVar(&t.RetryPeriod, "leader-elect-retry-period", t.RetryPeriod, "how long to wait between two tries to get or renew the lease")
}

// Validate calls refuse for every wrong setting, with the name of its flag.
func (t *Timing) Validate(refuse func(flag, format string, args ...any)) {
	if t.RetryPeriod <= 0 {
		refuse("leader-elect-retry-period", "%s must be more than 0", t.RetryPeriod)
	}
	// client-go's election adds some jitter to the period.
	if least := time.Duration(leaderelection.JitterFactor * float64(t.RetryPeriod)); t.RenewDeadline <= least {
		refuse("leader-elect-renew-deadline", "%s must be more than %s, the retry period and a fifth", t.RenewDeadline, least)
	}
	// A Lease counts in seconds.
	if t.LeaseDuration < time.Second {
		refuse("leader-elect-lease-duration", "%s must be at least 1s", t.LeaseDuration)
	}
	if t.LeaseDuration <= t.RenewDeadline {
		refuse("leader-elect-lease-duration", "%s must be more than the renew deadline %s", t.LeaseDuration, t.RenewDeadline)
	}
}

// podNamespaceFile contains the namespace of the Pod of this process.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// PodNamespace returns the namespace of the Pod of this process.
func PodNamespace() (string, error) {
	namespace, err := os.ReadFile(podNamespaceFile)
	if err != nil {
		return "", fmt.Errorf("--namespace is not set and the Pod's own cannot be read: %w", err)
	}
	return strings.TrimSpace(string(namespace)), nil
}
