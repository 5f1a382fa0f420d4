// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import "nstance.dev/operator/pkg/apis/marekvs/v1alpha1"

// DefaultDiskPercent is the used share of a volume that a removal must not exceed, if the
// cluster does not have one.
const DefaultDiskPercent = 80

// disk returns the used and total bytes of the volume of a node.
func (s *Sample) disk() (used, total float64, ok bool) {
	if s == nil || s.DiskTotal == nil || s.DiskAvailable == nil || *s.DiskTotal <= 0 || *s.DiskAvailable > *s.DiskTotal {
		return 0, 0, false
	}
	return *s.DiskTotal - *s.DiskAvailable, *s.DiskTotal, true
}

// DiskUsed returns the largest used share of a volume in percent, nil if no node reports it.
func (o *Observation) DiskUsed() *float64 {
	var most *float64
	pods, _ := o.expected(none)
	for _, pod := range pods {
		if used, total, ok := pod.Sample.disk(); ok {
			share := 100 * used / total
			if most == nil || share > *most {
				most = &share
			}
		}
	}
	return most
}

// DiskAfterRemoval returns the largest used share of a volume in percent when the last node
// is removed and the others share its data evenly; nil if not every node reports its volume.
func (o *Observation) DiskAfterRemoval() *float64 {
	pods, want := o.expected(none)
	if len(pods) < want || want < 2 {
		return nil
	}
	var removed, most float64
	for _, pod := range pods {
		if pod.Ordinal == o.Replicas-1 {
			used, _, ok := pod.Sample.disk()
			if !ok {
				return nil
			}
			removed = used
		}
	}
	for _, pod := range pods {
		if pod.Ordinal == o.Replicas-1 {
			continue
		}
		used, total, ok := pod.Sample.disk()
		if !ok {
			return nil
		}
		most = max(most, 100*(used+removed/float64(want-1))/total)
	}
	return &most
}

func (o *Observation) checkDisk(limit int32) *Block {
	pods, _ := o.expected(none)
	for _, pod := range pods {
		if stopped := pod.Sample.WriteStopped; stopped != nil && *stopped > 0 {
			return block(v1alpha1.ReasonDiskFull, "pod %s has stopped to write, because its volume is full", o.podName(pod.Ordinal))
		}
	}
	if used := o.DiskAfterRemoval(); used != nil && *used > float64(limit) {
		return block(v1alpha1.ReasonDiskFull, "a volume would be used to %.0f %%, more than %d %%", *used, limit)
	}
	return nil
}
