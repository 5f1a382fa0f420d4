// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// respond writes the response of a call.
func (s *Server) respond(w http.ResponseWriter, name string, result any, err error) {
	s.mu.Lock()
	s.requestSeq++
	requestID := fmt.Sprintf("00000000-0000-0000-0000-%012d", s.requestSeq)
	s.mu.Unlock()
	status := http.StatusOK
	var document any
	if err != nil {
		refused, ok := errors.AsType[*refusal](err)
		if !ok {
			refused = &refusal{status: http.StatusInternalServerError, code: "InternalError", message: err.Error()}
		}
		status = refused.status
		document = errorResponse{Code: refused.code, Message: refused.message, RequestID: requestID}
	} else {
		document = response{
			XMLName: xml.Name{Space: "http://ec2.amazonaws.com/doc/2016-11-15/", Local: name + "Response"},
			Content: "<requestId>" + requestID + "</requestId>" + content(result),
		}
	}
	data, err := xml.Marshal(document)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(status)
	_, _ = w.Write(append([]byte(xml.Header), data...)) // the client may have closed the connection
}

type response struct {
	XMLName xml.Name
	Content string `xml:",innerxml"`
}

// content returns the members of a result as XML.
func content(result any) string {
	if result == nil {
		return ""
	}
	data, err := xml.Marshal(result)
	if err != nil {
		panic(err)
	}
	text := string(data)
	return text[strings.IndexByte(text, '>')+1 : strings.LastIndexByte(text, '<')]
}

type errorResponse struct {
	XMLName   xml.Name `xml:"Response"`
	Code      string   `xml:"Errors>Error>Code"`
	Message   string   `xml:"Errors>Error>Message"`
	RequestID string   `xml:"RequestID"`
}

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
	DNSName     string          `xml:"privateDnsName,omitempty"`
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

	IPv6Native bool `xml:"ipv6Native"`
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
