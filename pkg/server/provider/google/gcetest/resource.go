// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

// resource is a virtual machine in requests and responses.
type resource struct {
	Kind              string              `json:"kind,omitempty"`
	ID                string              `json:"id,omitempty"`
	Name              string              `json:"name"`
	Description       string              `json:"description,omitempty"`
	MachineType       string              `json:"machineType,omitempty"`
	Status            string              `json:"status,omitempty"`
	Zone              string              `json:"zone,omitempty"`
	CreationTimestamp string              `json:"creationTimestamp,omitempty"`
	Labels            map[string]string   `json:"labels,omitempty"`
	Metadata          *metadata           `json:"metadata,omitempty"`
	Tags              *tags               `json:"tags,omitempty"`
	Disks             []*disk             `json:"disks,omitempty"`
	NetworkInterfaces []*networkInterface `json:"networkInterfaces,omitempty"`
	ServiceAccounts   []map[string]any    `json:"serviceAccounts,omitempty"`
	Scheduling        *scheduling         `json:"scheduling,omitempty"`
}

type metadata struct {
	Items []struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	} `json:"items"`
}

type tags struct {
	Items []string `json:"items"`
}

type disk struct {
	Boot             bool        `json:"boot,omitempty"`
	AutoDelete       bool        `json:"autoDelete,omitempty"`
	Source           string      `json:"source,omitempty"`
	InitializeParams *diskParams `json:"initializeParams,omitempty"`
}

type diskParams struct {
	SourceImage string            `json:"sourceImage,omitempty"`
	DiskType    string            `json:"diskType,omitempty"`
	DiskSizeGB  string            `json:"diskSizeGb,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

type networkInterface struct {
	Name          string           `json:"name,omitempty"`
	Fingerprint   string           `json:"fingerprint,omitempty"`
	AliasIPRanges []aliasRange     `json:"aliasIpRanges,omitempty"`
	Subnetwork    string           `json:"subnetwork,omitempty"`
	NetworkIP     string           `json:"networkIP,omitempty"`
	AccessConfigs []map[string]any `json:"accessConfigs,omitempty"`
}

type scheduling struct {
	ProvisioningModel         string `json:"provisioningModel,omitempty"`
	InstanceTerminationAction string `json:"instanceTerminationAction,omitempty"`
	OnHostMaintenance         string `json:"onHostMaintenance,omitempty"`
	AutomaticRestart          *bool  `json:"automaticRestart,omitempty"`
}
