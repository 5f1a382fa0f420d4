// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

// owner is the account of the region.
const owner = "123456789012"

// The results of calls, as they are in XML.

type runResult struct {
	ReservationID string         `xml:"reservationId"`
	OwnerID       string         `xml:"ownerId"`
	Instances     []instanceItem `xml:"instancesSet>item"`
}

type describeResult struct {
	Reservations []reservationItem `xml:"reservationSet>item"`
	NextToken    string            `xml:"nextToken,omitempty"`
}

type reservationItem struct {
	ReservationID string         `xml:"reservationId"`
	OwnerID       string         `xml:"ownerId"`
	Instances     []instanceItem `xml:"instancesSet>item"`
}

type instanceItem struct {
	ID          string          `xml:"instanceId"`
	State       stateItem       `xml:"instanceState"`
	Reason      *reasonItem     `xml:"stateReason"`
	Type        string          `xml:"instanceType"`
	Zone        string          `xml:"placement>availabilityZone"`
	SubnetID    string          `xml:"subnetId"`
	Address     string          `xml:"privateIpAddress,omitempty"`
	Interfaces  []interfaceItem `xml:"networkInterfaceSet>item"`
	LaunchTime  string          `xml:"launchTime"`
	Lifecycle   string          `xml:"instanceLifecycle,omitempty"`
	ClientToken string          `xml:"clientToken"`
	Tags        []tagItem       `xml:"tagSet>item"`
}

type stateItem struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

type reasonItem struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

type tagItem struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

type interfaceItem struct {
	ID      string     `xml:"networkInterfaceId"`
	Address string     `xml:"privateIpAddress"`
	IPv6    []ipv6Item `xml:"ipv6AddressesSet>item"`

	Attachment *attachmentItem `xml:"attachment"`
}

type ipv6Item struct {
	Address string `xml:"ipv6Address"`
}

type terminateResult struct {
	Instances []changeItem `xml:"instancesSet>item"`
}

type changeItem struct {
	ID       string    `xml:"instanceId"`
	Current  stateItem `xml:"currentState"`
	Previous stateItem `xml:"previousState"`
}

type statusResult struct {
	Statuses  []statusItem `xml:"instanceStatusSet>item"`
	NextToken string       `xml:"nextToken,omitempty"`
}

type statusItem struct {
	ID       string    `xml:"instanceId"`
	Zone     string    `xml:"availabilityZone"`
	State    stateItem `xml:"instanceState"`
	Instance string    `xml:"instanceStatus>status"`
	System   string    `xml:"systemStatus>status"`
}

type subnetResult struct {
	Subnets []subnetItem `xml:"subnetSet>item"`
}

type subnetItem struct {
	ID    string `xml:"subnetId"`
	State string `xml:"state"`
	Zone  string `xml:"availabilityZone"`
	Free  int    `xml:"availableIpAddressCount"`
}

type imageResult struct {
	Images []imageItem `xml:"imagesSet>item"`
}

type imageItem struct {
	ID         string `xml:"imageId"`
	Owner      string `xml:"imageOwnerId"`
	Name       string `xml:"name"`
	Arch       string `xml:"architecture"`
	State      string `xml:"imageState"`
	Created    string `xml:"creationDate"`
	RootDevice string `xml:"rootDeviceName"`
}
